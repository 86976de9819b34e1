#pragma once

namespace bam {

// The GPU, or another rank, is lost for this process: a supervisor starts the next one (docs/deploy.md).
inline constexpr int kDeviceLostExitCode = 75;

}  // namespace bam
