#include "app/inspect_layers.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "app/client/passkey_prompt.h"
#include "app/client/terminal.h"
#include "engine/stage_runner.h"

namespace bam {

namespace {

std::vector<int32_t> prompt_of(const Tokenizer& tokenizer, int64_t tokens) {
  const client::PieceEncoder encoder([&](std::string_view text) { return tokenizer.encode(text, false); });
  client::PasskeyPrompt prompt =
      client::make_passkey_prompt(encoder, tokens, 0.5, client::make_passkey(1, tokens, 0.5, 0));
  return std::move(prompt.ids);
}

// "1,1,1": every layer is a stage.
std::string one_by_one(size_t layers) {
  std::string list(2 * layers - 1, '1');
  for (size_t i = 1; i < list.size(); i += 2) list[i] = ',';
  return list;
}

// The pages of one sequence that has all of them, one after the other.
std::vector<int32_t> all_pages(int64_t groups, int64_t blocks) {
  std::vector<int32_t> pages(static_cast<size_t>(groups * blocks));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

}  // namespace

double LayerTimes::of(size_t layer) const { return std::accumulate(seconds[layer].begin(), seconds[layer].end(), 0.0); }

LayerTimes measure_layers(ModelSettings settings, int64_t tokens) {
  using SteadyClock = std::chrono::steady_clock;
  const ModelConfig config = load_model_config(find_checkpoint(settings.model));
  const auto layers = static_cast<int>(config.num_layers), hidden = static_cast<int>(config.hidden_size);
  settings.stages.layers = one_by_one(static_cast<size_t>(layers));
  std::vector<int32_t> prompt;
  std::vector<float> rows;  // [tokens, hidden] from layer to layer
  LayerTimes times;
  client::LiveArea live;
  for (int l = 0; l < layers; ++l) {
    const StageModel stage = load_stage(settings, l, layers);
    if (prompt.empty()) {
      prompt = prompt_of(*stage.tokenizer, tokens);
      times.tokens = static_cast<int64_t>(prompt.size());
      rows.resize(prompt.size() * static_cast<size_t>(hidden));
    }
    EngineConfig engine = settings.engine;
    const KvLayout layout = make_kv_layout(engine.kv_dtype, static_cast<int>(config.head_dim), engine.page_size);
    const int64_t blocks = (times.tokens + engine.page_size - 1) / engine.page_size, groups = stage.model->num_groups();
    engine.kv_memory_bytes = static_cast<uint64_t>(groups * (blocks + 1)) * layout.page_bytes();
    engine.max_model_len = 0;
    const KvPlan plan = plan_kv(*stage.model, engine);
    StageRunner runner(*stage.model, plan);
    const std::vector<int32_t> pages = all_pages(groups, blocks);
    times.chunk = std::min(plan.config.max_batched_tokens, stage.model->options().max_rows);
    std::vector<double>& seconds = times.seconds.emplace_back(LayerTimes::kParts);
    for (int64_t begin = 0; begin < times.tokens; begin += times.chunk) {
      const int64_t count = std::min(times.chunk, times.tokens - begin);
      const SequenceRows sequence{pages.data(), blocks, 0, count, begin};
      float* const residual = rows.data() + begin * hidden;
      const auto start = SteadyClock::now();
      runner.run({.tokens = std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                  .sequences = {&sequence, 1},
                  .residual_in = l == 0 ? nullptr : residual,
                  .residual_out = residual});
      seconds[static_cast<size_t>(begin * LayerTimes::kParts / times.tokens)] +=
          std::chrono::duration<double>(SteadyClock::now() - start).count();
      live.draw({fmt::format("layer {} of {}, {} of {} tokens", l, layers, begin, times.tokens)});
    }
  }
  live.clear();
  return times;
}

}  // namespace bam
