#include <algorithm>
#include <optional>

#include "app/chat/partner.h"
#include "base/error.h"
#include "models/model_config.h"

namespace bam {
namespace {

class LocalPartner : public Partner {
 public:
  explicit LocalPartner(const ModelSettings& settings) : model_(load_model(settings)) {
    if (model_.tokenizer->chat_template().empty()) return;
    auto compiled = ChatTemplate::compile(model_.tokenizer->chat_template());
    if (!compiled) throw Error("the checkpoint's chat template: {}", compiled.error().what());
    template_ = *std::move(compiled);
  }

  std::string name() const override { return model_.checkpoint.filename().string(); }
  std::string description() const override { return model_.description() + "\n" + model_.running_description(); }
  bool can_chat() const override { return template_.has_value(); }

  GenerationStats chat(const std::vector<ChatMessage>& messages, const SamplingWishes& wishes,
                       const GenerationHooks& hooks) override {
    if (!template_) throw Error("the checkpoint has no chat template: /mode completion");
    const Tokenizer& tokenizer = *model_.tokenizer;
    const auto rendered =
        template_->render(messages, {.bos_token = tokenizer.bos_token(), .eos_token = tokenizer.eos_token()});
    if (!rendered) throw Error("the chat template: {}", rendered.error().what());
    return answer(tokenizer.encode(*rendered, false, true), true, wishes, hooks);
  }

  GenerationStats complete(const std::string& text, const SamplingWishes& wishes,
                           const GenerationHooks& hooks) override {
    return answer(model_.tokenizer->encode(text, true), false, wishes, hooks);
  }

 private:
  GenerationStats answer(std::vector<int32_t> prompt, bool at_text_start, const SamplingWishes& wishes,
                         const GenerationHooks& hooks) {
    const int64_t room = model_.engine->config().max_model_len - static_cast<int64_t>(prompt.size());
    if (room < 1)
      throw Error("the context of {} tokens is full: /reset begins anew", model_.engine->config().max_model_len);
    Request request;
    request.id = "chat";
    request.prompt = std::move(prompt);
    request.sampling = with_defaults(wishes, model_.defaults);
    request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
    DecodeOptions decode;
    decode.at_text_start = at_text_start;
    if (!wishes.ignore_eos) decode.eos_ids = decode.stop_ids = model_.engine->model_config().eos_token_ids;
    return generate_locally(model_, std::move(request), decode, hooks);
  }

  LoadedModel model_;
  std::optional<ChatTemplate> template_;
};

}  // namespace

std::unique_ptr<Partner> make_local_partner(const ModelSettings& settings) {
  return std::make_unique<LocalPartner>(settings);
}

}  // namespace bam
