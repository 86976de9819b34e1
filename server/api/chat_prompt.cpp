#include "server/api/chat_prompt.h"

namespace bam {

ApiResult<std::string> render_chat(const ServingModel& model, std::vector<ChatMessage> messages, const ToolUse& tools,
                                   bool add_generation_prompt) {
  if (!model.chat_template) {
    return ApiError::invalid("Chat is not available: " + model.chat_template_error +
                                 " Use /v1/completions, or add a chat_template to tokenizer_config.json.",
                             "messages", "no_chat_template");
  }
  write_out_tools(*model.chat_template, tools, messages);
  auto rendered = model.chat_template->render(messages, {.bos_token = model.tokenizer.bos_token(),
                                                         .eos_token = model.tokenizer.eos_token(),
                                                         .add_generation_prompt = add_generation_prompt,
                                                         .tools = tools.active() ? tools.definitions : Json()});
  if (rendered) return *std::move(rendered);
  return ApiError::invalid(std::string("The chat template refused the messages: ") + rendered.error().what(),
                           "messages");
}

}  // namespace bam
