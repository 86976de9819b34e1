#pragma once

#include <string>

#include "app/model_setup.h"
#include "models/attention_walk.h"

namespace bam {

struct LookOptions {
  std::string text;  // or @FILE; empty: no look
  AttentionLook look;
  int64_t position = -1;
  bool json = false;  // what /v1/attention answers; else a table of the heads
  std::string csv;    // file for one row per head and bin
};

// Loads the model, reads the text and prints where its last token (or the one at `position`) looks. Throws Error.
void print_look(const ModelSettings& settings, const LookOptions& options);

}  // namespace bam
