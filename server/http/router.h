#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/route.h"

namespace bam {

struct RouteMatch {
  const Route* route = nullptr;  // null: see `allowed`
  std::string parameter;         // what {id} matched
  std::string allowed;           // methods of this path when only the method is wrong; empty: no such path
};

// Routes under /v1 answer without the prefix as well.
RouteMatch match_route(const std::vector<Route>& routes, std::string_view method, std::string_view path);

}  // namespace bam
