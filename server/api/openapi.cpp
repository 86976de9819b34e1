#include "server/api/openapi.h"

#include <map>

#include "base/json.h"
#include "server/api/openai_api.h"
#include "server/api/route.h"

namespace bam {

namespace {

struct Bodies {
  const char* request = nullptr;  // schema name; null: no body
  const char* reply = nullptr;    // schema name; null: not JSON
  const char* content_type = "application/json";
};

const std::map<std::string, Bodies>& bodies_by_path() {
  static const std::map<std::string, Bodies> bodies = {
      {"/v1/completions", {"CompletionRequest", "Completion"}},
      {"/v1/chat/completions", {"ChatRequest", "ChatCompletion"}},
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

void add_errors(const Route& route, const Bodies& bodies, Json& responses) {
  const auto add = [&](const char* status, const char* text) {
    if (!responses.contains(status)) responses[status] = {{"description", text}, {"content", json_content("Error")}};
  };
  if (bodies.request || route.path.find("passkey") != std::string::npos) {
    add("400", "The request is not valid");
    add("413", "The body is too large");
    add("415", "The body is compressed");
  }
  if (route.access != Access::kPublic) add("401", "No valid key");
  if (route.access == Access::kAdmin) add("403", "Not the admin key");
  if (route.path.find("{id}") != std::string::npos || route.admits_work) add("404", "No such model or request");
  if (route.admits_work) {
    add("408", "The request's time is over");
    add("429", "The queue is full; see Retry-After");
    add("500", "The engine failed on this request");
  }
  if (route.needs_model || route.admits_work) add("503", "Loading, draining or overloaded");
}

Json operation(const Route& route, const Bodies& bodies) {
  Json op;
  op["summary"] = route.summary;
  std::string id = route.method == "GET" ? "get" : "post";
  for (const char c : route.path) id += c == '/' || c == '{' || c == '}' || c == '.' ? '_' : c;
  op["operationId"] = id;
  if (route.path.find("{id}") != std::string::npos) {
    op["parameters"] = Json::array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}, {"minLength", 1}}}}});
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
  if (route.admits_work && route.path.find("completions") != std::string::npos) {
    content["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  }
  Json responses;
  responses["200"] = {{"description", "OK"}, {"content", std::move(content)}};
  if (route.path == "/health" || route.path == "/readyz") {
    responses["503"] = {{"description", "Not ready"}, {"content", json_content(bodies.reply)}};
  }
  add_errors(route, bodies, responses);
  op["responses"] = std::move(responses);
  if (route.access == Access::kPublic) op["security"] = Json::array();
  return op;
}

}  // namespace

std::string openapi_document(const std::string& version) {
  Json paths = Json::object();
  for (const Route& route : all_routes()) {
    const auto it = bodies_by_path().find(route.path);
    if (it == bodies_by_path().end()) continue;  // the built-in page
    paths[route.path][route.method == "GET" ? "get" : "post"] = operation(route, it->second);
  }
  Json document;
  document["openapi"] = "3.1.0";
  document["info"] = {{"title", "bam"},
                      {"version", version},
                      {"description",
                       "Inference server for BAM language models. Routes under /v1 answer without the "
                       "prefix too. Unknown request fields are ignored and named in X-Ignored-Fields."}};
  document["paths"] = std::move(paths);
  Json schemas = Json::parse(openapi_schemas());
  schemas["CompletionRequest"] = fields_schema(generation_fields(), kInCompletions);
  schemas["ChatRequest"] = fields_schema(generation_fields(), kInChat);
  document["components"] = {{"schemas", std::move(schemas)},
                            {"securitySchemes",
                             {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
                              {"apiKey", {{"type", "apiKey"}, {"in", "header"}, {"name", "X-API-Key"}}}}}};
  // Keys are needed only when the server was started with one: the empty requirement allows none.
  document["security"] = Json::array({Json::object(), {{"bearer", Json::array()}}, {{"apiKey", Json::array()}}});
  return dump_json(document);
}

}  // namespace bam
