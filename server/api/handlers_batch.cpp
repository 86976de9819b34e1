#include <fmt/format.h>

#include "server/api/batch_store.h"
#include "server/api/handlers.h"
#include "server/api/json_body.h"
#include "server/api/list_page.h"

namespace bam {

namespace {

// The parts of a form that an upload needs.
struct Upload {
  std::string purpose, filename;
  std::string_view content;
  bool has_file = false;
};

// The value of name="…" in a header of a part; .NET leaves the quotes out.
std::string parameter(std::string_view header, std::string_view name) {
  const std::string key = fmt::format("{}=", name);
  for (size_t at = header.find(key); at != std::string_view::npos; at = header.find(key, at + 1)) {
    if (at == 0 || (header[at - 1] != ' ' && header[at - 1] != ';')) continue;
    const std::string_view value = header.substr(at + key.size());
    if (!value.starts_with('"')) return std::string(value.substr(0, value.find_first_of("; \r\n")));
    const size_t end = value.find('"', 1);
    return end == std::string_view::npos ? std::string() : std::string(value.substr(1, end - 1));
  }
  return {};
}

// multipart/form-data as browsers and SDKs send it.
ApiResult<Upload> read_form(std::string_view type, std::string_view body) {
  const ApiError malformed =
      ApiError::invalid("The body must be multipart/form-data with the fields 'file' and 'purpose'.", "file");
  const size_t at = type.find("boundary=");
  if (!type.starts_with("multipart/form-data") || at == std::string_view::npos) return malformed;
  std::string_view name = type.substr(at + 9);
  name = name.substr(0, name.find(';'));
  if (name.size() >= 2 && name.front() == '"') name = name.substr(1, name.size() - 2);
  if (name.empty() || name.size() > 70) return malformed;
  const std::string boundary = fmt::format("--{}", name);
  if (!body.starts_with(boundary)) return malformed;
  Upload upload;
  body.remove_prefix(boundary.size());
  while (body.starts_with("\r\n")) {
    const size_t head_end = body.find("\r\n\r\n");
    const size_t end = head_end == std::string_view::npos ? head_end : body.find("\r\n" + boundary, head_end + 2);
    if (end == std::string_view::npos) return malformed;
    const std::string_view head = body.substr(2, head_end - 2);
    const std::string_view content =
        end < head_end + 4 ? std::string_view() : body.substr(head_end + 4, end - head_end - 4);
    const std::string field = parameter(head, "name");
    if (field == "purpose") upload.purpose = content.substr(0, 64);
    if (field == "file") {
      upload.filename = parameter(head, "filename").substr(0, 255);
      upload.content = content;
      upload.has_file = true;
    }
    body.remove_prefix(end + 2 + boundary.size());
  }
  if (!body.starts_with("--") || !upload.has_file) return malformed;
  return upload;
}

ApiError unknown(const char* what, const std::string& id) {
  return ApiError::not_found(fmt::format("There is no {} '{}'.", what, id.substr(0, 200)),
                             fmt::format("{}_not_found", what));
}

// The store, or an answer that there is none.
BatchStore* store_of(ServerContext& context, Call& call) {
  if (context.batches) return context.batches.get();
  call.reply(ApiError::not_built("Files and batches need a folder to survive in: start the server with --batch-dir."));
  return nullptr;
}

void reply_or_unknown(Call& call, const std::optional<Json>& json, const char* what) {
  if (!json) return call.reply(unknown(what, call.path_parameter));
  call.reply_json(dump_json(*json));
}

}  // namespace

void handle_file_upload(ServerContext& context, CallPtr call) {
  BatchStore* store = store_of(context, *call);
  if (!store) return;
  const auto form = read_form(call->header("content-type"), call->body);
  if (!form) return call->reply(form.error());
  if (form->purpose != "batch") return call->reply(ApiError::invalid("'purpose' must be \"batch\".", "purpose"));
  const auto file = store->add_file(call->caller.tenant, form->filename, form->purpose, form->content);
  if (!file) return call->reply(file.error());
  call->reply_json(dump_json(*file));
}

void handle_files(ServerContext& context, CallPtr call) {
  BatchStore* store = store_of(context, *call);
  if (!store) return;
  reply_page(*call, store->files(call->caller.tenant, query_value(*call, "purpose").value_or("")),
             BatchStore::kMaxFiles);
}

void handle_file(ServerContext& context, CallPtr call) {
  if (BatchStore* store = store_of(context, *call))
    reply_or_unknown(*call, store->file(call->caller.tenant, call->path_parameter), "file");
}

void handle_file_content(ServerContext& context, CallPtr call) {
  BatchStore* store = store_of(context, *call);
  if (!store) return;
  auto content = store->file_content(call->caller.tenant, call->path_parameter);
  if (!content) return call->reply(unknown("file", call->path_parameter));
  call->reply(HttpReply{.body = *std::move(content), .content_type = "application/octet-stream"});
}

void handle_file_delete(ServerContext& context, CallPtr call) {
  BatchStore* store = store_of(context, *call);
  if (!store) return;
  if (!store->delete_file(call->caller.tenant, call->path_parameter))
    return call->reply(unknown("file", call->path_parameter));
  call->reply_json(dump_json({{"id", call->path_parameter}, {"object", "file"}, {"deleted", true}}));
}

void handle_batch_create(ServerContext& context, CallPtr call) {
  BatchStore* store = store_of(context, *call);
  if (!store) return;
  const auto body = parse_json_object(call->body);
  if (!body) return call->reply(body.error());
  const auto batch = store->add_batch(call->caller, *body);
  if (!batch) return call->reply(batch.error());
  call->reply_json(dump_json(*batch));
}

void handle_batches(ServerContext& context, CallPtr call) {
  if (BatchStore* store = store_of(context, *call))
    reply_page(*call, store->batches(call->caller.tenant), BatchStore::kMaxBatches);
}

void handle_batch(ServerContext& context, CallPtr call) {
  if (BatchStore* store = store_of(context, *call))
    reply_or_unknown(*call, store->batch(call->caller.tenant, call->path_parameter), "batch");
}

void handle_batch_cancel(ServerContext& context, CallPtr call) {
  if (BatchStore* store = store_of(context, *call))
    reply_or_unknown(*call, store->cancel(call->caller.tenant, call->path_parameter), "batch");
}

}  // namespace bam
