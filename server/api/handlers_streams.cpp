#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/json.h"
#include "server/api/handlers.h"
#include "server/api/list_page.h"

namespace bam {

namespace {

ApiError no_such_stream(const Call& call) {
  return ApiError::not_found(fmt::format("There is no resumable stream '{}', or not any more (--resume-timeout).",
                                         call.path_parameter.substr(0, 200)),
                             "stream_not_found");
}

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == UINT64_MAX) return std::nullopt;
  return value;
}

// "from=N", or the number behind the one that a browser's EventSource has seen last.
ApiResult<uint64_t> first_event(const Call& call) {
  if (const auto text = query_value(call, "from")) {
    if (const auto from = number_in(*text)) return *from;
    return ApiError::invalid("'from' must be the number of an event, from 0.", "from");
  }
  const std::string& last = call.header("last-event-id");
  if (last.empty()) return uint64_t{0};
  if (const auto seen = number_in(last)) return *seen + 1;
  return ApiError::invalid("'Last-Event-ID' must be the number of an event.", "Last-Event-ID");
}

}  // namespace

void handle_stream(ServerContext& context, CallPtr call) {
  const auto from = first_event(*call);
  if (!from) return call->reply(from.error());
  const auto stream = context.streams.find(call->caller.tenant, call->path_parameter);
  if (!stream) return call->reply(no_such_stream(*call));
  // Whoever only asks whether it is there must not take it away from its reader.
  if (call->method == "HEAD") return call->reply(HttpReply{.content_type = stream->content_type()});
  if (const auto error = stream->attach(call, *from)) return call->reply(*error);
  context.metrics.resumed_streams.fetch_add(1, std::memory_order_relaxed);
}

void handle_stream_delete(ServerContext& context, CallPtr call) {
  const std::string& tenant = call->caller.tenant;
  if (!context.streams.erase(tenant, call->path_parameter)) return call->reply(no_such_stream(*call));
  const auto job = context.jobs.find(tenant, call->path_parameter);
  if (job) job->cancel();
  call->reply_json(dump_json({{"id", call->path_parameter}, {"cancelled", job != nullptr}}));
}

}  // namespace bam
