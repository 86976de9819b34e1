#pragma once

#include <string>
#include <vector>

#include "app/client/passkey_results.h"
#include "app/client/svg.h"

namespace bam::client {

// Accuracy by prompt length (columns) and depth (rows, 0 % on top), averages in the margins, as in the paper's
// figure. Cells that were not run stay grey.
Chart draw_heat_map(const PasskeyRun& run, const std::string& id, const std::string& title);

}  // namespace bam::client
