// A whole tokenizer.model: refused with a reason, or usable for any text. Input: one byte n, n bytes of text, the file.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "models/tokenizer.h"

namespace {

// In memory where the system has such a place, and gone with the process.
struct Folder {
  std::filesystem::path path;
  Folder() {
    const std::filesystem::path shared = "/dev/shm";
    const auto root = std::filesystem::is_directory(shared) ? shared : std::filesystem::temp_directory_path();
    path = root / ("tokenizer_model_fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directory(path);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(std::string_view bytes) const {
    std::FILE* file = std::fopen((path / "tokenizer.model").c_str(), "wb");
    if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || std::fclose(file) != 0)
      std::abort();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  if (size < 1 || size - 1 < data[0]) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, data[0]);
  folder.write({text.data() + text.size(), size - 1 - text.size()});
  std::unique_ptr<bam::Tokenizer> tokenizer;
  try {
    tokenizer = bam::Tokenizer::load(folder.path);
  } catch (const bam::Error&) {
    return 0;
  }
  for (const bool special : {false, true}) {
    try {
      const std::vector<int32_t> ids = tokenizer->encode(text, true, special);
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
      tokenizer->decode(ids);
    } catch (const bam::Error&) {  // a model without <unk> cannot say everything
    }
  }
  return 0;
}
