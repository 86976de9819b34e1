#include "app/local_generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "app/queue_sink.h"
#include "app/units.h"
#include "base/error.h"
#include "engine/clock.h"

namespace bam {
namespace {

constexpr std::chrono::milliseconds kLookForInterrupt{30};

// " (4.56k tok/s)", or nothing where a clock cannot tell.
std::string rate(int64_t tokens, double ms) {
  constexpr double kMeasurableMs = 0.1;
  if (tokens < 2 || !(ms >= kMeasurableMs)) return {};
  return fmt::format(" ({} tok/s)", format_value(1000.0 * static_cast<double>(tokens) / ms));
}

}  // namespace

std::string GenerationStats::line() const {
  std::string text;
  if (prompt_tokens >= 0) {
    const int64_t cached = std::max<int64_t>(cached_tokens, 0);
    text = fmt::format("prompt {} tokens", format_thousands(prompt_tokens));
    if (cached > 0) text += fmt::format(", {} cached,", format_thousands(cached));
    if (first_token_ms > 0) {
      text += fmt::format(" in {}{}", format_ms(first_token_ms), rate(prompt_tokens - cached, first_token_ms));
    }
    text += " | ";
  } else if (first_token_ms > 0) {
    text = fmt::format("first token after {} | ", format_ms(first_token_ms));
  }
  if (generated_tokens >= 0) {
    text += fmt::format("generated {}", format_thousands(generated_tokens));
    // The first token belongs to the prompt's time.
    if (generated_tokens > 1)
      text += fmt::format(" in {}{}", format_ms(decode_ms), rate(generated_tokens - 1, decode_ms));
    text += " | ";
  }
  return text + finish_reason;
}

std::string ReadingProgress::line() const {
  constexpr int64_t kWidth = 20;
  const int64_t full = total > 0 ? std::clamp<int64_t>(processed * kWidth / total, 0, kWidth) : 0;
  std::string bar;
  for (int64_t i = 0; i < kWidth; ++i) bar += i < full ? "━" : "─";
  std::string text =
      fmt::format("reading {} of {} tokens {} {} %, {}", format_thousands(processed), format_thousands(total), bar,
                  total > 0 ? processed * 100 / total : 0, format_ms(elapsed_ms));
  if (eta_ms >= 0 && processed < total) text += fmt::format(", about {} left", format_remaining(eta_ms));
  return text;
}

SamplingParams with_defaults(const SamplingWishes& wishes, const SamplingDefaults& defaults) {
  SamplingParams sampling;
  sampling.temperature = wishes.temperature.value_or(defaults.temperature);
  sampling.top_p = wishes.top_p.value_or(defaults.top_p);
  sampling.top_k = wishes.top_k.value_or(defaults.top_k);
  sampling.min_p = wishes.min_p.value_or(defaults.min_p);
  sampling.repetition_penalty = wishes.repetition_penalty.value_or(defaults.repetition_penalty);
  sampling.seed = wishes.seed;
  sampling.max_tokens = wishes.max_tokens;
  sampling.ignore_eos = wishes.ignore_eos;
  return sampling;
}

GenerationStats generate_locally(const LoadedModel& model, Request request, const DecodeOptions& decode,
                                 const GenerationHooks& hooks) {
  const int64_t limit = model.engine->config().max_model_len;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens + request.sampling.max_tokens > limit) {
    throw Error("the context holds {} tokens; the prompt has {} and {} are to be generated", limit, prompt_tokens,
                request.sampling.max_tokens);
  }
  ChoiceDecoder decoder(*model.tokenizer, decode, 0);
  auto sink = std::make_shared<QueueSink>();
  const std::string id = request.id;
  const auto started = Clock::now();
  auto first = started, last = started;
  const SubmitResult submitted = model.engine->submit(std::move(request), sink);
  if (submitted.status != SubmitStatus::kAccepted) throw Error("{}", submitted.message);

  GenerationStats stats;
  bool cancelled = false;
  while (true) {
    if (!cancelled && hooks.interrupted && hooks.interrupted()) {
      cancelled = true;
      model.engine->cancel(id);
    }
    const std::optional<Event> event = sink->next_within(kLookForInterrupt);
    if (!event) continue;
    if (const auto* progress = std::get_if<ProgressEvent>(&*event)) {
      if (hooks.on_progress && !cancelled) {
        hooks.on_progress({progress->processed, progress->total, progress->elapsed_ms, progress->eta_ms});
      }
    } else if (const auto* token = std::get_if<TokenEvent>(&*event)) {
      last = sink->arrived();
      if (decoder.num_tokens() == 0) first = last;
      decoder.push(token->token, std::nullopt);
      if (decoder.stopped()) model.engine->stop(id, 0);
    } else if (const auto* end = std::get_if<FinishEvent>(&*event)) {
      decoder.finish(end->reason);
      hooks.on_text(decoder.take().text);
      if (end->reason == FinishReason::kError) throw Error("{}", end->message);
      stats.prompt_tokens = prompt_tokens;
      stats.cached_tokens = end->cached_tokens;
      break;
    }
    if (std::string text = decoder.take().text; !text.empty()) hooks.on_text(text);
  }
  stats.generated_tokens = decoder.num_tokens();
  if (decoder.num_tokens() > 0) {
    stats.first_token_ms = ms_between(started, first);
    stats.decode_ms = ms_between(first, last);
  }
  stats.finish_reason = cancelled ? "interrupted" : decoder.finish_reason();
  return stats;
}

std::string for_terminal(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte < 0x20 && byte != '\n' && byte != '\t') {
      out += "\xe2\x90";  // ␀ and its neighbours: the control pictures
      out += static_cast<char>(0x80 + byte);
    } else if (byte == 0x7f) {
      out += "\xe2\x90\xa1";
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // the second set of controls
      out += "\xef\xbf\xbd";
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace bam
