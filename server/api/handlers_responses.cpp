// What becomes of a reply of /v1/responses afterwards.
#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "server/api/handlers.h"
#include "server/api/list_page.h"
#include "server/api/response_store.h"
#include "server/api/server_context.h"

namespace bam {

ApiError no_response(const std::string& id) {
  return ApiError::not_found(
      fmt::format("There is no response '{}' here: it was never stored, or it had to make room, or it was deleted.",
                  id.substr(0, 200)),
      "response_not_found");
}

void handle_response(ServerContext& context, CallPtr call) {
  const auto stored = context.responses.find(call->caller.tenant, call->path_parameter);
  if (!stored) return call->reply(no_response(call->path_parameter));
  if (query_value(*call, "stream") == "true") {
    return call->reply(ApiError::invalid(
        "'stream': the response is complete. A stream that can be picked up again has the header X-Resumable.",
        "stream"));
  }
  call->reply_json(stored->body);
}

// One that is complete stays as it is.
void handle_response_cancel(ServerContext& context, CallPtr call) {
  if (const auto job = context.jobs.find(call->caller.tenant, call->path_parameter);
      job && job->id() == call->path_parameter && job->id().starts_with(kResponseIdPrefix)) {
    job->cancel();
    const Json json = {{"id", job->id()},
                       {"object", "response"},
                       {"created_at", std::time(nullptr)},
                       {"status", "cancelled"},
                       {"error", nullptr},
                       {"incomplete_details", nullptr},
                       {"model", context.config.served_model_names.front()},
                       {"output", Json::array()},  // its own reply has what was generated
                       {"parallel_tool_calls", true},
                       {"tool_choice", "auto"},
                       {"tools", Json::array()},
                       {"usage", nullptr}};
    return call->reply_json(dump_json(json));
  }
  handle_response(context, std::move(call));
}

void handle_response_input(ServerContext& context, CallPtr call) {
  const auto stored = context.responses.find(call->caller.tenant, call->path_parameter);
  if (!stored) return call->reply(no_response(call->path_parameter));
  std::vector<Json> items;
  for (size_t i = 0; i < stored->input.size(); ++i) {
    Json item = stored->input[i];
    if (!item.contains("type")) item["type"] = "message";
    if (!item.contains("status")) item["status"] = "completed";
    if (!item.contains("id")) item["id"] = fmt::format("in_{}_{}", call->path_parameter, i);
    if (item.contains("content") && item["content"].is_string()) {
      const bool own = item.value("role", Json()) == "assistant";
      Json part = {{"type", own ? "output_text" : "input_text"}, {"text", item["content"]}};
      if (own) part["annotations"] = Json::array();
      item["content"] = Json::array({std::move(part)});
    }
    items.push_back(std::move(item));
  }
  std::ranges::reverse(items);
  reply_page(*call, std::move(items), limits::kMessages);
}

void handle_response_delete(ServerContext& context, CallPtr call) {
  if (!context.responses.erase(call->caller.tenant, call->path_parameter))
    return call->reply(no_response(call->path_parameter));
  call->reply_json(dump_json({{"id", call->path_parameter}, {"object", "response"}, {"deleted", true}}));
}

}  // namespace bam
