#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call.h"

namespace bam {

struct ServerContext;

using Handler = void (*)(ServerContext& context, CallPtr call);

// kOpen: answers everybody, and says more to those with a key.
enum class Access : uint8_t { kPublic, kOpen, kKey, kAdmin };
// Where a handler runs: on the connection's event loop, on a worker that parses, or on the lane for calls that wait.
enum class RunOn : uint8_t { kLoop, kWorker, kSlow };

using ErrorBody = std::string (*)(const ApiError& error);

struct Route {
  std::string method;  // GET (answers HEAD too), POST or DELETE
  std::string path;    // "/v1/models/{id}": the braces match one path segment
  Handler handler = nullptr;
  Access access = Access::kKey;
  RunOn run_on = RunOn::kLoop;
  bool needs_model = false;  // 503 while the model is loading
  bool admits_work = false;  // 503 while draining
  std::string summary;       // for /openapi.json
  // How an API other than OpenAI's spells an error; null: {"error": {…}}.
  ErrorBody error_body = nullptr;
};

// Every route of the server; /openapi.json is made from it.
const std::vector<Route>& all_routes();

// For a path or a method that no route has: the spelling of the routes beside it.
ErrorBody error_body_beside(std::string_view path);

}  // namespace bam
