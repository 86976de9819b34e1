#pragma once

#include <cstdint>

namespace bam {

// Positions a backend can address.
inline constexpr int64_t kMaxPositions = int64_t{1} << 22;

// How a model knows about order. Without SSMax the factor c_i below is 1.
enum class PositionEncoding : uint8_t { kBam, kAlibi, kNope, kRope, kRopeLocal, kSinusoidal, kT5 };

// kScaleOutside: -exp(alpha) * (|d| + eps)^beta;  kScaleInside: -(|d * exp(alpha)| + eps)^beta.
enum class PriorForm : uint8_t { kScaleOutside, kScaleInside };

// kInterleaved: dims (2t, 2t+1) are one complex number; kRotateHalf: dims (t, t + head_dim/2).
enum class RopeStyle : uint8_t { kInterleaved, kRotateHalf };

}  // namespace bam
