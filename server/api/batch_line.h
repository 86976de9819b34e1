// One request of a file: {"custom_id", "method", "url", "body"}.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/api/api_error.h"

namespace bam {

struct BatchLine {
  std::string custom_id;
  std::string url;
  Json body;
};

// Reads a line; on an error `line` has the custom_id that it could read.
std::optional<ApiError> read_batch_line(std::string_view text, BatchLine& line);
// The custom_id alone; empty where there is none.
std::string custom_id_of(std::string_view text);

// URLs that a line may ask for.
bool is_batch_url(std::string_view url);
bool is_blank_line(std::string_view text);

struct BatchFileCheck {
  size_t lines = 0;
  Json errors;  // OpenAI's list of {code, line, message, param}; null where nothing is wrong
};
// Looks through a whole file before any of it is computed: every line can be read, asks for `endpoint` and has a custom_id
// of its own, which says whether it was answered already.
BatchFileCheck check_batch_file(std::string_view text, std::string_view endpoint);

}  // namespace bam
