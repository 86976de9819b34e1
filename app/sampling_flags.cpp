#include "app/sampling_flags.h"

namespace bam {

void add_sampling_flags(CLI::App& app, SamplingWishes* wishes) {
  app.add_option("-n,--max-tokens", wishes->max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->check(CLI::Range(1L, 1L << 40));
  app.add_option("--temperature", wishes->temperature, "0: greedy")->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-p", wishes->top_p, "smallest set of tokens with this probability")
      ->check(CLI::Range(1e-9, 1.0));
  app.add_option("--top-k", wishes->top_k, "0: off")->check(CLI::Range(0, INT32_MAX));
  app.add_option("--min-p", wishes->min_p, "relative to the best token")->check(CLI::Range(0.0, 0.999999));
  app.add_option("--repetition-penalty", wishes->repetition_penalty, "1: off")->check(CLI::Range(1e-6, 100.0));
  app.add_option("--seed", wishes->seed, "the same seed gives the same text");
  app.add_flag("--ignore-eos", wishes->ignore_eos, "go on after the end of the text");
}

}  // namespace bam
