#pragma once

#include <string>
#include <vector>

#include "server/api/server_context.h"
#include "server/api/tools.h"

namespace bam {

// The prompt of a chat as the checkpoint's template writes it; a 400 where it has none or refuses the messages.
ApiResult<std::string> render_chat(const ServingModel& model, std::vector<ChatMessage> messages, const ToolUse& tools,
                                   const ChatRendering& how);

}  // namespace bam
