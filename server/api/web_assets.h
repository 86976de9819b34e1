#pragma once

#include <span>
#include <string_view>

namespace bam {

// A file of web/, part of the program.
struct WebAsset {
  std::string_view path;  // "/", "/app.js"
  std::string_view content_type;
  std::string_view data;
  std::string_view etag;  // quoted
};

// Generated at build time from web/ by cmake/EmbedAssets.cmake.
std::span<const WebAsset> web_assets();

}  // namespace bam
