// CUDA's small vectors with their sizes and alignments, and the qualifiers of device code.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Shared memory must come from the emulated block: use BAM_SHARED or BAM_DYNAMIC_SHARED of kernels/cuda/launch.h.
#define __shared__ static_assert(false, "use BAM_SHARED or BAM_DYNAMIC_SHARED");

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define CUDA_EMU_VECTORS(type, name, align2, align4)                  \
  struct alignas(align2) name##2 {                                    \
    type x, y;                                                        \
  };                                                                  \
  struct alignas(align4) name##4 {                                    \
    type x, y, z, w;                                                  \
  };                                                                  \
  constexpr name##2 make_##name##2(type x, type y) { return {x, y}; } \
  constexpr name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

CUDA_EMU_VECTORS(signed char, char, 2, 4)
CUDA_EMU_VECTORS(unsigned char, uchar, 2, 4)
CUDA_EMU_VECTORS(short, short, 4, 8)
CUDA_EMU_VECTORS(unsigned short, ushort, 4, 8)
CUDA_EMU_VECTORS(int, int, 8, 16)
CUDA_EMU_VECTORS(unsigned, uint, 8, 16)
CUDA_EMU_VECTORS(long long, longlong, 16, 16)
CUDA_EMU_VECTORS(float, float, 8, 16)
CUDA_EMU_VECTORS(double, double, 16, 16)
#undef CUDA_EMU_VECTORS

struct int3 {
  int x, y, z;
};
struct float3 {
  float x, y, z;
};
constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
