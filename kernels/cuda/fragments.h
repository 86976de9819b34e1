// Which element of a matrix fragment a lane holds, in plain arithmetic (PTX ISA, "Matrix fragments for mma.m16n8k16"
// and "ldmatrix"). tests/cuda_emu/lane_maps_test.cpp checks every function against the tables written down there.
//
//   A 16x16, 4 registers of two 16-bit elements     B 16x8, 2 registers     C/D 16x8, 4 float32
//
// `i` counts the elements a lane holds: two per 16-bit register.
#pragma once

namespace bam::cuda::fragments {

#ifdef __CUDACC__
#define BAM_FRAGMENT __host__ __device__ constexpr
#else
#define BAM_FRAGMENT constexpr
#endif

BAM_FRAGMENT int group(int lane) { return lane >> 2; }    // 0..7
BAM_FRAGMENT int in_group(int lane) { return lane & 3; }  // 0..3

BAM_FRAGMENT int a_row(int lane, int i) { return group(lane) + ((i >> 1) & 1) * 8; }
BAM_FRAGMENT int a_col(int lane, int i) { return in_group(lane) * 2 + (i & 1) + (i >> 2) * 8; }
BAM_FRAGMENT int b_row(int lane, int i) { return in_group(lane) * 2 + (i & 1) + (i >> 1) * 8; }
BAM_FRAGMENT int b_col(int lane, int /*i*/) { return group(lane); }
BAM_FRAGMENT int c_row(int lane, int i) { return group(lane) + (i >> 1) * 8; }
BAM_FRAGMENT int c_col(int lane, int i) { return in_group(lane) * 2 + (i & 1); }

// ldmatrix.x4: the lane gives the address of this row of this 8x8 matrix.
BAM_FRAGMENT int ldmatrix_matrix(int lane) { return lane >> 3; }
BAM_FRAGMENT int ldmatrix_row(int lane) { return lane & 7; }
// Element e (0, 1) of a register that ldmatrix returns, as (row, column) of the stored matrix.
BAM_FRAGMENT int ldmatrix_out_row(int lane, int e, bool trans) { return trans ? in_group(lane) * 2 + e : group(lane); }
BAM_FRAGMENT int ldmatrix_out_col(int lane, int e, bool trans) { return trans ? group(lane) : in_group(lane) * 2 + e; }

// The order of the four matrices so that one ldmatrix.x4 fills
//   A      rows 0-7 | rows 8-15 of columns 0-7, then the same of columns 8-15
//   B, B'  two neighbouring 16x8 tiles: k 0-7 | k 8-15 of the first, then of the second
BAM_FRAGMENT int a_matrix_row(int matrix) { return (matrix & 1) * 8; }
BAM_FRAGMENT int a_matrix_col(int matrix) { return (matrix >> 1) * 8; }
BAM_FRAGMENT int b_matrix_k(int matrix) { return (matrix & 1) * 8; }
BAM_FRAGMENT int b_matrix_n(int matrix) { return (matrix >> 1) * 8; }

#undef BAM_FRAGMENT

}  // namespace bam::cuda::fragments
