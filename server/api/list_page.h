// Lists that a client reads in parts: ?limit, ?after and ?order, as OpenAI's API has them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call.h"

namespace bam {

// The value of a parameter in a request's query, as it stands there; nothing where it is missing.
std::optional<std::string> query_value(const Call& call, std::string_view name);

struct ListPage {
  size_t limit = 0;
  std::string after;  // id of the entry before the first one that is wanted
  bool ascending = false;
};

// `most`: the largest limit, and what is given to those who say none.
ApiResult<ListPage> read_list_page(const Call& call, size_t most);

// {"object": "list", …} of the entries that are wanted of `newest_first`; each has an "id". An `after` that names none is
// an error: who reads on from there would begin anew.
ApiResult<Json> list_page(std::vector<Json> newest_first, const ListPage& page);

// Answers with the part that the call asks for.
void reply_page(Call& call, std::vector<Json> newest_first, size_t most);

}  // namespace bam
