#include "server/api/batch_line.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include <fmt/format.h>

#include "base/json_fields.h"

namespace bam {

namespace {

constexpr std::array<std::string_view, 4> kUrls = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                                   "/v1/responses"};
constexpr size_t kMaxErrors = 100;  // that a batch lists
constexpr size_t kMaxCustomIdBytes = 512;

}  // namespace

bool is_batch_url(std::string_view url) { return std::find(kUrls.begin(), kUrls.end(), url) != kUrls.end(); }

bool is_blank_line(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

std::optional<ApiError> read_batch_line(std::string_view text, BatchLine& line) {
  auto json = parse_json(text);
  if (!json) return ApiError::invalid(json.error().what(), "", "invalid_json_line");
  if (!json->is_object()) return ApiError::invalid("a line must be an object", "", "invalid_json_line");
  FieldReader in(*json);
  line.custom_id = in.text("custom_id", kMaxCustomIdBytes).value_or("");
  if (in.ok() && line.custom_id.empty()) in.fail("custom_id", "'custom_id' is missing.", "missing_required_parameter");
  if (in.ok() && in.text("method", 16).value_or("POST") != "POST")
    in.fail("method", "'method' must be POST.", "invalid_method");
  line.url = in.text("url", 256).value_or("");
  if (in.ok() && !is_batch_url(line.url))
    in.fail("url", fmt::format("'url' must be one of {}.", fmt::join(kUrls, ", ")), "invalid_url");
  const Json* body = in.object("body");
  if (in.ok() && !body) in.fail("body", "'body' is missing.", "missing_required_parameter");
  if (in.ok() && body->value("stream", Json()) == true)
    in.fail("body.stream", "'body.stream' must be false: a line gets one reply.", "invalid_value");
  if (!in.ok()) return ApiError::invalid(in.error());
  line.body = *body;
  return std::nullopt;
}

std::string custom_id_of(std::string_view text) {
  const auto json = parse_json(text);
  const Json id = json && json->is_object() ? json->value("custom_id", Json()) : Json();
  return id.is_string() ? id.get<std::string>() : std::string();
}

BatchFileCheck check_batch_file(std::string_view text, std::string_view endpoint) {
  BatchFileCheck check;
  Json list = Json::array();
  const auto add = [&list](const ApiError& error, const Json& line) {
    if (list.size() >= kMaxErrors) return;
    list.push_back({{"code", error.code.empty() ? "invalid_request" : error.code},
                    {"line", line},
                    {"message", error.message},
                    {"param", error.param.empty() ? Json() : Json(error.param)}});
  };
  std::unordered_map<std::string, size_t> lines_by_id;
  size_t number = 0;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::string_view here = text.substr(at, end - at);
    ++number;
    if (is_blank_line(here)) continue;
    ++check.lines;
    BatchLine line;
    auto error = read_batch_line(here, line);
    if (!error && line.url != endpoint)
      error = ApiError::invalid(fmt::format("'url' is {}, but the batch is for {}.", line.url, endpoint), "url",
                                "invalid_url");
    const auto [known, is_new] =
        line.custom_id.empty() ? std::pair(lines_by_id.end(), true) : lines_by_id.try_emplace(line.custom_id, number);
    if (!error && !is_new)
      error = ApiError::invalid(fmt::format("'custom_id' is that of line {}, too.", known->second), "custom_id",
                                "duplicate_custom_id");
    if (error) add(*error, number);
  }
  if (check.lines == 0) add(ApiError::invalid("The file has no requests.", "", "empty_file"), Json());
  if (!list.empty()) check.errors = {{"object", "list"}, {"data", std::move(list)}};
  return check;
}

}  // namespace bam
