#include <set>

#include "base/json.h"
#include "base/utf8.h"
#include "models/safetensors.h"

namespace bam {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxIndexEntries = 1'000'000;

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// A shard may be a symbolic link, but only to a file of the same folder.
fs::path resolve_shard(const fs::path& folder, const fs::path& index_path, const std::string& shard) {
  const fs::path path = folder / shard;
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error("{}: names shard '{}', which is not in the folder", index_path.string(), printable(shard));
  }
  const fs::path real = fs::canonical(path, error);
  const fs::path real_folder = error ? fs::path() : fs::canonical(folder, error);
  if (error) throw Error("{}: cannot resolve: {}", path.string(), error.message());
  if (real.parent_path() != real_folder) {
    throw Error("{}: is a symbolic link out of the checkpoint folder; put the file itself there", path.string());
  }
  return path;
}

// People often point at a PyTorch checkpoint first.
std::string_view conversion_hint(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {"model.pt", "pytorch_model.bin"}) {
    if (fs::exists(folder / name, error)) return "; run tools/convert.py on the PyTorch checkpoint first";
  }
  return "";
}

}  // namespace

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json_text) {
  const JsonLimits limits{.max_bytes = kMaxSafetensorsHeaderBytes, .max_members = kMaxIndexEntries};
  const Result<Json> document = parse_json(json_text, limits);
  if (!document) return document.error();
  if (!document->is_object()) return Error("must be a JSON object");
  const auto weight_map = document->find("weight_map");
  if (weight_map == document->end()) return Error("key 'weight_map' is missing");
  if (!weight_map->is_object()) return Error("key 'weight_map' must be an object, got {}", quote_json(*weight_map));
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      return Error("weight_map of tensor '{}' must be a plain file name in this folder, got {}", printable(tensor),
                   quote_json(shard));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

SafetensorsCheckpoint::SafetensorsCheckpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw Error("{}: no such checkpoint folder", folder.string());
  if (fs::exists(folder / kSingleFile, error)) {
    files_.push_back(std::make_shared<SafetensorsFile>(folder / kSingleFile));
    for (const TensorInfo& tensor : files_[0]->header().tensors) {
      tensors_.emplace(tensor.name, Entry{files_[0].get(), &tensor});
    }
  } else if (fs::exists(folder / kIndexFile, error)) {
    open_shards(folder, folder / kIndexFile);
  } else {
    throw Error("{}: has neither {} nor {}{}", folder.string(), kSingleFile, kIndexFile, conversion_hint(folder));
  }
}

void SafetensorsCheckpoint::open_shards(const fs::path& folder, const fs::path& index_path) {
  const Result<std::map<std::string, std::string>> index = parse_safetensors_index(MappedFile(index_path).text());
  if (!index) throw Error("{}: {}", index_path.string(), index.error().what());

  std::set<std::string> shards;
  for (const auto& [tensor, shard] : *index) shards.insert(shard);
  for (const std::string& shard : shards) {
    files_.push_back(std::make_shared<SafetensorsFile>(resolve_shard(folder, index_path, shard)));
    const SafetensorsFile& file = *files_.back();
    for (const TensorInfo& tensor : file.header().tensors) {
      const auto named = index->find(tensor.name);
      if (named == index->end()) {
        throw Error("{}: tensor '{}' is not in {}", file.path().string(), printable(tensor.name), kIndexFile);
      }
      if (named->second != shard) {
        throw Error("{}: tensor '{}' belongs in '{}' according to {}", file.path().string(), printable(tensor.name),
                    printable(named->second), kIndexFile);
      }
      tensors_.emplace(tensor.name, Entry{&file, &tensor});
    }
  }
  for (const auto& [tensor, shard] : *index) {
    if (!tensors_.contains(tensor)) {
      throw Error("{}: tensor '{}' is not in shard '{}'", index_path.string(), printable(tensor), printable(shard));
    }
  }
}

}  // namespace bam
