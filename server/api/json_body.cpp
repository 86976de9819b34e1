#include "server/api/json_body.h"

#include <fmt/format.h>

namespace bam {

ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return ApiError::invalid("The request body is empty; a JSON object is expected.");
  Result<Json> value = parse_json(text, limits);
  if (!value) return ApiError::invalid(fmt::format("The request body cannot be read: {}.", value.error().what()));
  if (!value->is_object()) {
    return ApiError::invalid(fmt::format("The request body must be a JSON object, got {}.", quote_json(*value)));
  }
  return std::move(value).value();
}

}  // namespace bam
