#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

class Exchange;
struct ServerContext;

using Handler = void (*)(ServerContext& context, std::shared_ptr<Exchange> exchange);

enum class Access : uint8_t { kPublic, kKey, kAdmin };
// Where a handler runs: on the connection's event loop, on a worker that parses, or on the lane for calls that wait.
enum class RunOn : uint8_t { kLoop, kWorker, kSlow };

struct Route {
  std::string method;  // GET (answers HEAD too) or POST
  std::string path;    // "/v1/models/{id}": the braces match one path segment
  Handler handler = nullptr;
  Access access = Access::kKey;
  RunOn run_on = RunOn::kLoop;
  bool needs_model = false;  // 503 while the model is loading
  bool admits_work = false;  // 503 while draining
  std::string summary;       // for /openapi.json
};

struct RouteMatch {
  const Route* route = nullptr;  // null: see `allowed`
  std::string parameter;         // what {id} matched
  std::string allowed;           // methods of this path when only the method is wrong; empty: no such path
};

// Routes under /v1 answer without the prefix as well.
RouteMatch match_route(const std::vector<Route>& routes, std::string_view method, std::string_view path);

}  // namespace bam
