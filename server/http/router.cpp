#include "server/http/router.h"

namespace bam {

namespace {

// Matches `path` against a pattern with at most one {…} segment.
bool matches(std::string_view pattern, std::string_view path, std::string& parameter) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return pattern == path;
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after)) {
    return false;
  }
  const std::string_view value = path.substr(before.size(), path.size() - before.size() - after.size());
  if (value.find('/') != std::string_view::npos) return false;
  parameter = value;
  return true;
}

}  // namespace

RouteMatch match_route(const std::vector<Route>& routes, std::string_view method, std::string_view path) {
  RouteMatch result;
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string prefixed = "/v1" + std::string(path);
  for (const Route& route : routes) {
    std::string parameter;
    if (!matches(route.path, path, parameter) && !matches(route.path, prefixed, parameter)) continue;
    if (method == route.method || (method == "HEAD" && route.method == "GET")) {
      result.route = &route;
      result.parameter = std::move(parameter);
      return result;
    }
    if (!result.allowed.empty()) result.allowed += ", ";
    result.allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return result;
}

}  // namespace bam
