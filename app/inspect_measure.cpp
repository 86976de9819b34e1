#include "app/inspect_measure.h"

#include <algorithm>
#include <chrono>

#include "app/client/passkey_prompt.h"
#include "app/client/terminal.h"
#include "app/queue_sink.h"
#include "models/head_report.h"

namespace bam {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

AttentionMeasurement measure_attention(ModelSettings settings, int64_t prompt_tokens) {
  settings.engine.prefix_cache = false;
  const LoadedModel model = load_model(settings);
  const Tokenizer* tokenizer = model.tokenizer.get();
  const client::PieceEncoder encoder([tokenizer](std::string_view text) { return tokenizer->encode(text, false); });
  const std::string key = client::make_passkey(1, prompt_tokens, 0.5, 0);
  client::PasskeyPrompt prompt = client::make_passkey_prompt(encoder, prompt_tokens, 0.5, key);

  Request request;
  request.id = "inspect";
  request.prompt = std::move(prompt.ids);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = prompt.max_tokens;
  request.sampling.ignore_eos = true;
  auto sink = std::make_shared<QueueSink>();
  const auto started = std::chrono::steady_clock::now();
  const SubmitResult submitted = model.engine->submit(std::move(request), sink);
  if (submitted.status != SubmitStatus::kAccepted) throw Error("{}", submitted.message);

  AttentionMeasurement result;
  result.prompt_tokens = prompt_tokens;
  result.key = key;
  std::vector<int32_t> answer;
  client::LiveArea live;
  while (true) {
    const Event event = sink->next();
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      live.draw({fmt::format("reading {} of {} tokens, {:.1f} s", progress->processed, progress->total,
                             seconds_since(started))});
    }
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (answer.empty()) result.first_token_seconds = seconds_since(started);
      answer.push_back(token->token);
    }
    const auto picture = model.engine->picture();
    result.kv_pages = std::max(result.kv_pages, picture->pages_used);
    if (const auto* end = std::get_if<FinishEvent>(&event)) {
      if (end->reason == FinishReason::kError) throw Error("{}", end->message);
      break;
    }
  }
  result.seconds = seconds_since(started);
  live.clear();
  result.answer = tokenizer->decode(answer);
  result.right = client::is_passkey_hit(result.answer, key);
  model.engine->drain(std::chrono::seconds(10));  // after it the last step is in the picture
  const auto picture = model.engine->picture();
  const KvLayout layout =
      make_kv_layout(model.engine->config().kv_dtype, static_cast<int>(model.engine->model_config().head_dim),
                     model.engine->config().page_size);
  result.kv_bytes = static_cast<uint64_t>(result.kv_pages) * layout.page_bytes();
  const std::vector<HeadReport>& heads = model.engine->heads();
  for (size_t i = 0; i < heads.size() && i < picture->attention.size(); ++i) {
    result.by_class[std::string(head_class(model.engine->model_config(), heads[i]))] += picture->attention[i];
  }
  return result;
}

}  // namespace bam
