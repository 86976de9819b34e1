#include "server/api/list_page.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/format.h>

namespace bam {

std::optional<std::string> query_value(const Call& call, std::string_view name) {
  std::string_view rest = call.query;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (part.size() > name.size() && part.starts_with(name) && part[name.size()] == '=')
      return std::string(part.substr(name.size() + 1));
  }
  return std::nullopt;
}

ApiResult<ListPage> read_list_page(const Call& call, size_t most) {
  ListPage page{.limit = most, .after = query_value(call, "after").value_or("")};
  if (const auto text = query_value(call, "limit")) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), page.limit);
    if (error != std::errc() || end != text->data() + text->size() || page.limit < 1 || page.limit > most)
      return ApiError::invalid(fmt::format("'limit' must be a number from 1 to {}.", most), "limit");
  }
  const std::string order = query_value(call, "order").value_or("desc");
  if (order != "asc" && order != "desc") return ApiError::invalid("'order' must be asc or desc.", "order");
  page.ascending = order == "asc";
  return page;
}

ApiResult<Json> list_page(std::vector<Json> newest_first, const ListPage& page) {
  std::vector<Json>& entries = newest_first;
  if (page.ascending) std::reverse(entries.begin(), entries.end());
  auto first = entries.begin();
  if (!page.after.empty()) {
    first = std::find_if(entries.begin(), entries.end(), [&](const Json& entry) { return entry["id"] == page.after; });
    if (first == entries.end())
      return ApiError::invalid(fmt::format("'after': there is no '{}' in this list.", page.after.substr(0, 200)),
                               "after");
    ++first;
  }
  const auto count = std::min(page.limit, static_cast<size_t>(std::distance(first, entries.end())));
  const auto last = first + static_cast<ptrdiff_t>(count);
  const bool has_more = last != entries.end();
  Json data(std::vector<Json>(std::make_move_iterator(first), std::make_move_iterator(last)));
  const Json first_id = data.empty() ? Json() : data.front()["id"], last_id = data.empty() ? Json() : data.back()["id"];
  return Json{{"object", "list"},
              {"data", std::move(data)},
              {"first_id", first_id},
              {"last_id", last_id},
              {"has_more", has_more}};
}

void reply_page(Call& call, std::vector<Json> newest_first, size_t most) {
  const auto page = read_list_page(call, most);
  if (!page) return call.reply(page.error());
  const auto list = list_page(std::move(newest_first), *page);
  if (!list) return call.reply(list.error());
  call.reply_json(dump_json(*list));
}

}  // namespace bam
