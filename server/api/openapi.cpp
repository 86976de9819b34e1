#include "server/api/openapi.h"

#include <cctype>
#include <map>

#include "base/json.h"
#include "server/api/handlers.h"
#include "server/api/metrics.h"
#include "server/api/openai_api.h"
#include "server/api/route.h"

namespace bam {

namespace {

struct Bodies {
  const char* request = nullptr;  // schema name; null: no body
  const char* reply = nullptr;    // schema name; null: not JSON
  const char* content_type = "application/json";
  const char* stream_type = nullptr;  // of replies to "stream": true
  const char* event = nullptr;        // schema name of what an event of the stream holds
};

constexpr const char* kJson = "application/json";
constexpr const char* kEvents = "text/event-stream";
constexpr const char* kLines = "application/x-ndjson";

// By path, or by method and path where the methods of a path differ.
const std::map<std::string, Bodies>& bodies_by_path() {
  static const std::map<std::string, Bodies> bodies = {
      {"/v1/completions", {"CompletionRequest", "Completion", kJson, kEvents, "CompletionEvent"}},
      {"/v1/chat/completions", {"ChatRequest", "ChatCompletion", kJson, kEvents, "ChatEvent"}},
      {"/v1/stream/{id}", {nullptr, nullptr, kEvents, kLines}},
      {"DELETE /v1/stream/{id}", {nullptr, "Cancelled"}},
      {"/v1/responses", {"ResponsesRequest", "Response", kJson, kEvents, "ResponsesEvent"}},
      {"/v1/responses/{id}", {nullptr, "Response"}},
      {"DELETE /v1/responses/{id}", {nullptr, "Deleted"}},
      {"/v1/responses/{id}/cancel", {nullptr, "Response"}},
      {"/v1/responses/{id}/input_items", {nullptr, "ResponseItems"}},
      {"/v1/messages", {"MessagesRequest", "AnthropicReply", kJson, kEvents, "MessagesEvent"}},
      {"/v1/messages/count_tokens", {"CountTokensRequest", "TokenCount"}},
      {"/api/chat", {"OllamaChatRequest", "OllamaReply", kJson, kLines, "OllamaLine"}},
      {"/api/generate", {"OllamaGenerateRequest", "OllamaReply", kJson, kLines, "OllamaLine"}},
      {"/api/tags", {nullptr, "OllamaModels"}},
      {"/api/ps", {nullptr, "OllamaModels"}},
      {"/api/show", {"OllamaShowRequest", "OllamaShow"}},
      {"/api/version", {nullptr, "OllamaVersion"}},
      {"/v1/embeddings", {"EmbeddingsRequest", "Embeddings"}},
      {"/api/embed", {"OllamaEmbedRequest", "OllamaEmbeddings"}},
      {"/api/embeddings", {"OllamaEmbeddingRequest", "OllamaEmbedding"}},
      {"POST /v1/files", {nullptr, "File"}},
      {"/v1/files", {nullptr, "FileList"}},
      {"/v1/files/{id}", {nullptr, "File"}},
      {"DELETE /v1/files/{id}", {nullptr, "Deleted"}},
      {"/v1/files/{id}/content", {nullptr, nullptr, "application/octet-stream"}},
      {"POST /v1/batches", {"BatchRequest", "Batch"}},
      {"/v1/batches", {nullptr, "BatchList"}},
      {"/v1/batches/{id}", {nullptr, "Batch"}},
      {"/v1/batches/{id}/cancel", {nullptr, "Batch"}},
      {"/completion", {"LlamaCppRequest", "LlamaCppReply", kJson, kEvents, "LlamaCppEvent"}},
      {"/apply-template", {"ApplyTemplateRequest", "AppliedTemplate"}},
      {"/v1/models", {nullptr, "ModelList"}},
      {"/v1/models/{id}", {nullptr, "Model"}},
      {"/tokenize", {"TokenizeRequest", "Tokens"}},
      {"/detokenize", {"DetokenizeRequest", "Text"}},
      {"/tokenizer_info", {nullptr, "TokenizerInfo"}},
      {"/v1/requests", {nullptr, "RequestList"}},
      {"/v1/requests/{id}/cancel", {nullptr, "Cancelled"}},
      {"/v1/requests/cancel_all", {nullptr, "CancelledAll"}},
      {"/v1/kv/save", {"KvSaveRequest", "KvResult"}},
      {"/v1/kv/restore", {"KvRestoreRequest", "KvResult"}},
      {"/v1/prior", {nullptr, "Prior"}},
      {"/v1/attention", {"AttentionRequest", "Attention"}},
      {"/v1/selftest/passkey", {"PasskeyRequest", "PasskeyResult"}},
      {"/health", {nullptr, "Health"}},
      {"/livez", {nullptr, "Status"}},
      {"/readyz", {nullptr, "Status"}},
      {"/metrics", {nullptr, nullptr, "text/plain"}},
      {"/version", {nullptr, "Version"}},
      {"/props", {nullptr, "Props"}},
      {"/slots", {nullptr, "Slots"}},
      {"/openapi.json", {nullptr, "AnyObject"}},
  };
  return bodies;
}

Json ref(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }

Json json_content(const char* schema) { return {{"application/json", {{"schema", ref(schema)}}}}; }

const char* error_schema(const Route& route) {
  if (route.error_body == anthropic_error) return "AnthropicError";
  return route.error_body == ollama_error ? "OllamaError" : "Error";
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void add_errors(const Route& route, const Bodies& bodies, Json& responses) {
  const auto add = [&](const char* status, const char* text) {
    if (!responses.contains(status))
      responses[status] = {{"description", text}, {"content", json_content(error_schema(route))}};
  };
  if (bodies.request || route.path.find("passkey") != std::string::npos) {
    add("400", "The request is not valid");
    add("413", "The body is too large");
    add("415", "The body is compressed");
  }
  if (route.access == Access::kKey || route.access == Access::kAdmin) add("401", "No valid key");
  if (route.access == Access::kAdmin) add("403", "Not the admin key");
  const bool names_model = route.needs_model && bodies.request;
  if (route.path.find("{id}") != std::string::npos || route.admits_work || names_model)
    add("404", "No such model or request");
  if (route.admits_work) {
    add("408", "The request's time is over");
    add("429", "The queue is full; see Retry-After");
    add("500", "The engine failed on this request");
  }
  if (route.path.starts_with("/v1/responses/{id}")) add("400", "A stored response is complete");
  if (route.path == "/v1/stream/{id}") {
    add("400", "No such event");
    add("410", "That event is not kept any more");
  }
  if (route.path.starts_with("/v1/files") || route.path.starts_with("/v1/batches")) {
    add("400", "The request is not valid");
    add("413", "The body is too large");
    add("415", "The body is compressed");
    add("501", "The server has no --batch-dir");
  }
  if (route.needs_model || route.admits_work) add("503", "Loading, draining or overloaded");
}

// One event or line, as OpenAPI 3.2 describes streams: its data is a text that holds JSON, but for the last one of OpenAI's.
Json stream_item(const Bodies& bodies) {
  if (bodies.stream_type == std::string_view(kLines)) return ref(bodies.event);
  const Json json = {{"contentMediaType", kJson}, {"contentSchema", ref(bodies.event)}};
  const Json data = {{"type", "string"}, {"if", {{"const", "[DONE]"}}}, {"else", json}};
  return {{"type", "object"},
          {"properties", {{"event", {{"type", "string"}}}, {"id", {{"type", "string"}}}, {"data", data}}},
          {"required", {"data"}},
          {"additionalProperties", false}};
}

// What list_page() reads.
void add_page_parameters(Json& parameters) {
  const auto add = [&](const char* name, const char* text, Json schema) {
    parameters.push_back({{"name", name}, {"in", "query"}, {"description", text}, {"schema", std::move(schema)}});
  };
  add("limit", "at most so many entries; all unless set", {{"type", "integer"}, {"minimum", 1}, {"maximum", 10'000}});
  add("after", "id of the entry before the first one", {{"type", "string"}});
  add("order", "by the time of creation; desc unless set", {{"enum", {"asc", "desc"}}});
}

Json operation(const Route& route, const Bodies& bodies) {
  Json op;
  op["summary"] = route.summary;
  std::string id = lower_case(route.method);
  for (const char c : route.path) id += c == '/' || c == '{' || c == '}' || c == '.' ? '_' : c;
  op["operationId"] = id;
  if (route.path.find("{id}") != std::string::npos) {
    op["parameters"] = Json::array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (route.path == "/v1/stream/{id}" && route.method == "GET") {
    op["parameters"].push_back(
        {{"name", "from"},
         {"in", "query"},
         {"description", "number of the first event; 0 unless set, or the one behind Last-Event-ID"},
         {"schema", {{"type", "integer"}, {"minimum", 0}}}});
  }
  const bool paged =
      route.path == "/v1/files" || route.path == "/v1/batches" || route.path == "/v1/responses/{id}/input_items";
  if (paged && route.method == "GET") add_page_parameters(op["parameters"]);
  if (route.path == "/v1/files" && route.method == "POST") {
    const Json form = {{"type", "object"},
                       {"properties",
                        {{"purpose", {{"const", "batch"}}},
                         {"file", {{"type", "string"}, {"contentMediaType", "application/octet-stream"}}}}},
                       {"required", {"purpose", "file"}}};
    op["requestBody"] = {{"required", true}, {"content", {{"multipart/form-data", {{"schema", form}}}}}};
  }
  if (bodies.request) {
    op["requestBody"] = {{"required", true}, {"content", json_content(bodies.request)}};
  }
  Json content;
  if (bodies.reply) {
    content = json_content(bodies.reply);
  } else {
    content = {{bodies.content_type, {{"schema", {{"type", "string"}}}}}};
  }
  if (bodies.stream_type) content[bodies.stream_type] = Json::object();
  if (bodies.event) content[bodies.stream_type]["itemSchema"] = stream_item(bodies);
  Json responses;
  responses["200"] = {{"description", "OK"}, {"content", std::move(content)}};
  if (route.path == "/health" || route.path == "/readyz") {
    responses["503"] = {{"description", "Not ready"}, {"content", json_content(bodies.reply)}};
  }
  add_errors(route, bodies, responses);
  op["responses"] = std::move(responses);
  if (route.path == "/metrics") op["x-metrics"] = describe_metrics();
  if (route.access == Access::kPublic || route.access == Access::kOpen) op["security"] = Json::array();
  return op;
}

}  // namespace

std::string openapi_document(const std::string& version) {
  Json paths = Json::object();
  for (const Route& route : all_routes()) {
    auto it = bodies_by_path().find(route.method + " " + route.path);
    if (it == bodies_by_path().end()) it = bodies_by_path().find(route.path);
    if (it == bodies_by_path().end()) continue;  // the built-in page
    paths[route.path][lower_case(route.method)] = operation(route, it->second);
  }
  Json document;
  document["openapi"] = "3.2.0";
  document["info"] = {{"title", "bam"},
                      {"version", version},
                      {"description",
                       "Inference server for BAM language models. Routes under /v1 answer without the "
                       "prefix too. Unknown request fields are ignored and named in X-Ignored-Fields."}};
  document["paths"] = std::move(paths);
  Json schemas = Json::parse(openapi_schemas());
  schemas["CompletionRequest"] = fields_schema(generation_fields(), kInCompletions);
  schemas["TokenizeRequest"] = tokenize_schema();
  schemas["DetokenizeRequest"] = detokenize_schema();
  schemas["AttentionRequest"] = attention_schema();
  schemas["ChatRequest"] = fields_schema(generation_fields(), kInChat);
  schemas.update(Json::parse(openapi_dialect_schemas()));
  document["components"] = {{"schemas", std::move(schemas)},
                            {"securitySchemes",
                             {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
                              {"apiKey", {{"type", "apiKey"}, {"in", "header"}, {"name", "X-API-Key"}}}}}};
  // Keys are needed only when the server was started with one: the empty requirement allows none.
  document["security"] = Json::array({Json::object(), {{"bearer", Json::array()}}, {{"apiKey", Json::array()}}});
  return dump_json(document);
}

}  // namespace bam
