#include "server/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace bam {
namespace {

// A token longer than this could only ever be a whole sentence; leaving it out loses nothing.
constexpr size_t kMaxTokenBytes = 1024;

std::shared_ptr<const TokenTrie> build_trie(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids) {
  auto trie = std::make_shared<TokenTrie>();
  const auto size = static_cast<int32_t>(token_bytes.size());
  for (int32_t id : eos_ids) {
    if (id >= 0 && id < size) token_bytes[static_cast<size_t>(id)].clear();
  }
  for (auto& bytes : token_bytes) {
    if (bytes.size() > kMaxTokenBytes) bytes.clear();
    if (bytes.size() == 1) trie->spells[static_cast<uint8_t>(bytes[0])] = true;
    trie->max_depth = std::max(trie->max_depth, static_cast<uint32_t>(bytes.size()));
  }

  // In byte order the tokens appear as the trie's preorder does.
  std::vector<int32_t> order(token_bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return token_bytes[static_cast<size_t>(id)].empty(); });
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return token_bytes[static_cast<size_t>(a)] < token_bytes[static_cast<size_t>(b)];
  });
  auto& nodes = trie->nodes;
  std::vector<uint32_t> open;  // the path to the newest node
  std::string_view previous;
  auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      nodes[open.back()].skip = static_cast<uint32_t>(nodes.size());
    }
  };
  for (int32_t id : order) {
    const std::string& bytes = token_bytes[static_cast<size_t>(id)];
    const size_t limit = std::min(bytes.size(), previous.size());
    size_t shared = 0;
    while (shared < limit && bytes[shared] == previous[shared]) ++shared;
    close_to(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({.skip = 0,
                       .first_token = static_cast<uint32_t>(trie->tokens.size()),
                       .depth = static_cast<uint16_t>(i),
                       .byte = static_cast<uint8_t>(bytes[i])});
    }
    trie->tokens.push_back(id);
    previous = bytes;
  }
  close_to(0);
  nodes.push_back({.skip = static_cast<uint32_t>(nodes.size()),
                   .first_token = static_cast<uint32_t>(trie->tokens.size()),
                   .depth = 0,
                   .byte = 0});
  trie->token_bytes = std::move(token_bytes);
  trie->eos_ids = std::move(eos_ids);
  return trie;
}

}  // namespace

ConstraintVocabulary::ConstraintVocabulary(std::vector<std::string> token_bytes, std::vector<int32_t> eos_ids)
    : trie_(build_trie(std::move(token_bytes), std::move(eos_ids))) {}

}  // namespace bam
