#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "app/chat/partner.h"
#include "base/error.h"

namespace bam {
namespace {

using nlohmann::json;
using namespace client;

class RemotePartner : public Partner {
 public:
  explicit RemotePartner(const TargetOptions& options) : target_(options) { target_.connect(); }

  std::string name() const override { return target_.model(); }
  std::string description() const override {
    return fmt::format("{} on {}{}", target_.model(), target_.url(),
                       target_.server_name().empty() ? "" : " (" + target_.server_name() + ")");
  }
  bool can_chat() const override { return true; }

  GenerationStats chat(const std::vector<ChatMessage>& messages, const SamplingWishes& wishes,
                       const GenerationHooks& hooks) override {
    json body = request(wishes);
    for (const ChatMessage& message : messages) {
      body["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    return ask(Endpoint::kChat, body, hooks);
  }

  GenerationStats complete(const std::string& text, const SamplingWishes& wishes,
                           const GenerationHooks& hooks) override {
    json body = request(wishes);
    body["prompt"] = text;
    return ask(Endpoint::kCompletions, body, hooks);
  }

 private:
  json request(const SamplingWishes& wishes) const {
    json body = {{"model", target_.model()},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"max_tokens", wishes.max_tokens}};
    // Only what was asked for: strict servers refuse fields that they do not know.
    if (wishes.temperature) body["temperature"] = *wishes.temperature;
    if (wishes.top_p) body["top_p"] = *wishes.top_p;
    if (wishes.top_k) body["top_k"] = *wishes.top_k;
    if (wishes.min_p) body["min_p"] = *wishes.min_p;
    if (wishes.repetition_penalty) body["repetition_penalty"] = *wishes.repetition_penalty;
    if (wishes.seed) body["seed"] = *wishes.seed;
    if (wishes.ignore_eos) body["ignore_eos"] = true;
    if (target_.reports_progress()) body["return_progress"] = true;
    return body;
  }

  GenerationStats ask(Endpoint endpoint, const json& body, const GenerationHooks& hooks) {
    HttpLoop loop(target_.http_settings());
    CallResult result;
    auto call =
        std::make_shared<CompletionCall>(endpoint, TimePoint{}, [&](CallResult&& done) { result = std::move(done); });
    call->listen({.on_text = [&](const std::string& text) { hooks.on_text(text); },
                  .on_progress =
                      [&](const PromptProgress& progress) {
                        if (!hooks.on_progress) return;
                        hooks.on_progress({progress.processed, progress.total, progress.time_ms, progress.eta_ms});
                      }});
    loop.send({.url = target_.endpoint_url(endpoint),
               .body = body.dump(-1, ' ', false, json::error_handler_t::replace),
               .timeout_s = target_.timeout_s()},
              call);
    loop.run([&] { return !(hooks.interrupted && hooks.interrupted()) && loop.num_active() > 0; });
    const bool interrupted = result.failure == Failure::kCancelled;
    hooks.on_text("");
    if (!result.ok() && !interrupted) throw Error("{}", result.error);
    GenerationStats stats;
    stats.prompt_tokens = result.prompt_tokens;
    stats.cached_tokens = result.cached_tokens;
    if (result.has_first_token()) {
      stats.first_token_ms = result.ttft_ms();
      stats.decode_ms = ms_between(result.chunk_times.front(), result.chunk_times.back());
    }
    stats.generated_tokens = result.output_tokens();
    stats.finish_reason = interrupted ? "interrupted" : result.finish_reason;
    return stats;
  }

  Target target_;
};

}  // namespace

std::unique_ptr<Partner> make_remote_partner(const TargetOptions& target) {
  return std::make_unique<RemotePartner>(target);
}

}  // namespace bam
