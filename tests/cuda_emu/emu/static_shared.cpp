// How much static shared memory a kernel declares, before it runs. BAM_SHARED gives every array a local static object
// of the same size, whose mangled name begins with that of its kernel: the symbol table of the program says the rest.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "tests/cuda_emu/emu/fault.h"
#include "tests/cuda_emu/emu/runtime.h"

namespace cuda_emu {

namespace {

constexpr std::string_view kSuffix = "_shared_key_";

// A file mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) throw Fault(std::string("cannot read ") + path);
    size_ = static_cast<size_t>(status.st_size);
    data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data_ == MAP_FAILED) throw Fault(std::string("cannot map ") + path);
  }
  ~MappedFile() { munmap(data_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  template <typename T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(data_) + offset);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The functions of one loaded file by address, and the bytes of their shared arrays by mangled name.
struct Symbols {
  std::map<uintptr_t, std::string> functions;
  std::map<std::string, size_t> shared;  // by the kernel's name without its _Z
};

// Digits that say how much follows them.
bool is_local_name(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && std::to_string(text.size() - digits) == text.substr(0, digits);
}

Symbols read_symbols(const char* path) {
  const MappedFile file(path);
  const auto* header = file.at<ElfW(Ehdr)>(0);
  const auto* sections = file.at<ElfW(Shdr)>(header->e_shoff);
  Symbols symbols;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = file.at<char>(sections[sections[i].sh_link].sh_offset);
    const auto* table = file.at<ElfW(Sym)>(sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s) {
      const std::string_view name = names + table[s].st_name;
      const int type = ELF64_ST_TYPE(table[s].st_info);
      if (type == STT_FUNC && name.starts_with("_Z")) symbols.functions.emplace(table[s].st_value, name);
      if (type != STT_OBJECT || !name.starts_with("_ZZ") || !name.ends_with(kSuffix)) continue;
      // _ZZ <kernel> E <length of the variable's name> <variable's name>
      size_t at = name.rfind('E');
      while (at != std::string_view::npos && !is_local_name(name.substr(at + 1))) at = name.rfind('E', at - 1);
      if (at == std::string_view::npos) continue;
      symbols.shared[std::string(name.substr(3, at - 3))] += table[s].st_size;
    }
  }
  return symbols;
}

const Symbols& symbols_of(const void* kernel, uintptr_t& base) {
  static std::map<const void*, Symbols> files;  // by the address a file is loaded at
  Dl_info info{};
  if (dladdr(kernel, &info) == 0) throw Fault("a kernel that belongs to no program");
  auto it = files.find(info.dli_fbase);
  if (it == files.end()) it = files.emplace(info.dli_fbase, read_symbols(info.dli_fname)).first;
  base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  return it->second;
}

}  // namespace

std::string kernel_name(const void* kernel) {
  uintptr_t base = 0;
  const Symbols& symbols = symbols_of(kernel, base);
  auto function = symbols.functions.find(reinterpret_cast<uintptr_t>(kernel) - base);
  if (function == symbols.functions.end()) function = symbols.functions.find(reinterpret_cast<uintptr_t>(kernel));
  return function == symbols.functions.end() ? std::string() : function->second;
}

size_t static_shared_bytes(const void* kernel) {
  uintptr_t base = 0;
  const Symbols& symbols = symbols_of(kernel, base);
  const std::string name = kernel_name(kernel);
  const auto shared = symbols.shared.find(name.empty() ? name : name.substr(2));
  return shared == symbols.shared.end() ? 0 : shared->second;
}

}  // namespace cuda_emu
