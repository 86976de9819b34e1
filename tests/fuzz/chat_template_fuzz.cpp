// Template text from anywhere: compiling and rendering must neither crash, hang nor leak.
#include <cstdlib>
#include <string>

#include "server/jinja/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto compiled = bam::ChatTemplate::compile(std::string(reinterpret_cast<const char*>(data), size));
  if (!compiled.ok()) return 0;
  const auto text =
      compiled->render({{"system", "Be \xC3\xA9 brief"}, {"user", " Hi\n"}, {"assistant", "a,b\xFF"}, {"user", ""}},
                       {.bos_token = "<s>", .eos_token = "</s>"});
  if (text.ok() && text->size() > (size_t{8} << 20)) std::abort();
  return 0;
}
