#pragma once

#include <CLI/CLI.hpp>

#include "app/local_generation.h"

namespace bam {

// -n --temperature --top-p --top-k --min-p --repetition-penalty --seed --ignore-eos
void add_sampling_flags(CLI::App& app, SamplingWishes* wishes);

}  // namespace bam
