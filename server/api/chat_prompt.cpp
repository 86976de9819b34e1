#include "server/api/chat_prompt.h"

namespace bam {

namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Ends the prompt where its last message does, as Hugging Face's templates are cut: behind the message's own last blank
// if the template keeps it.
std::optional<ApiError> cut_behind(std::string& prompt, std::string_view message) {
  const std::string_view core = stripped(message);
  const size_t at = core.empty() ? std::string::npos : prompt.rfind(core);
  if (at == std::string::npos) {
    return ApiError::invalid(
        "'continue_final_message': the last message is empty, or the chat template does not show it.",
        "continue_final_message");
  }
  const std::string_view tail = message.substr(message.find(core));
  const bool kept = std::string_view(prompt).substr(at, tail.size()) == tail;
  prompt.resize(at + (kept ? tail.size() : core.size()));
  return std::nullopt;
}

}  // namespace

ApiResult<std::string> render_chat(const ServingModel& model, std::vector<ChatMessage> messages, const ToolUse& tools,
                                   const ChatRendering& how) {
  if (!model.chat_template) {
    return ApiError::invalid("Chat is not available: " + model.chat_template_error +
                                 " Use /v1/completions, or add a chat_template to tokenizer_config.json.",
                             "messages", "no_chat_template");
  }
  if (how.continue_final_message && how.add_generation_prompt.value_or(false)) {
    return ApiError::invalid("'continue_final_message' and 'add_generation_prompt' cannot both be true.",
                             "continue_final_message");
  }
  if (!model.chat_template->knows_developers()) {  // OpenAI's newer name of the system
    for (ChatMessage& message : messages) {
      if (message.role == "developer") message.role = "system";
    }
  }
  write_out_tools(*model.chat_template, tools, messages);
  auto rendered = model.chat_template->render(
      messages, {.bos_token = model.tokenizer.bos_token(),
                 .eos_token = model.tokenizer.eos_token(),
                 .add_generation_prompt = how.add_generation_prompt.value_or(!how.continue_final_message),
                 .tools = tools.active() ? tools.definitions : Json(),
                 .variables = how.variables});
  if (!rendered) {
    return ApiError::invalid(std::string("The chat template refused the messages: ") + rendered.error().what(),
                             "messages");
  }
  if (how.continue_final_message) {
    if (auto error = cut_behind(*rendered, messages.back().content)) return *error;
  }
  return *std::move(rendered);
}

}  // namespace bam
