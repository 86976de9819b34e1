#include "tests/ptx/cfg.h"

#include <algorithm>

namespace ptx {

namespace {

struct Block {
  int begin = 0, end = 0;  // instructions
  std::vector<int> next, previous;
};

bool ends_block(const Instruction& instruction) {
  return instruction.flow == Flow::kBranch || instruction.flow == Flow::kExit;
}

// Basic blocks, and a last one behind every exit.
std::vector<Block> make_blocks(const Function& function) {
  const auto size = static_cast<int>(function.code.size());
  std::vector<bool> leader(static_cast<size_t>(size) + 1, false);
  leader[0] = true;
  for (int i = 0; i < size; ++i) {
    const Instruction& instruction = function.code[static_cast<size_t>(i)];
    if (instruction.flow == Flow::kBranch) leader[static_cast<size_t>(instruction.target)] = true;
    if (ends_block(instruction)) leader[static_cast<size_t>(i) + 1] = true;
  }
  std::vector<Block> blocks;
  std::vector<int> block_of(static_cast<size_t>(size) + 1, 0);
  for (int i = 0; i < size; ++i) {
    if (leader[static_cast<size_t>(i)]) blocks.push_back({i, i, {}, {}});
    blocks.back().end = i + 1;
    block_of[static_cast<size_t>(i)] = static_cast<int>(blocks.size()) - 1;
  }
  const auto exit = static_cast<int>(blocks.size());
  for (int b = 0; b < exit; ++b) {
    Block& block = blocks[static_cast<size_t>(b)];
    const Instruction& last = function.code[static_cast<size_t>(block.end) - 1];
    if (last.flow == Flow::kBranch) block.next.push_back(block_of[static_cast<size_t>(last.target)]);
    if (last.flow == Flow::kExit) block.next.push_back(exit);
    if (!ends_block(last) || last.guard >= 0) block.next.push_back(block.end < size ? b + 1 : exit);
  }
  blocks.push_back({size, size, {}, {}});
  for (int b = 0; b < exit; ++b) {
    for (const int n : blocks[static_cast<size_t>(b)].next) blocks[static_cast<size_t>(n)].previous.push_back(b);
  }
  return blocks;
}

}  // namespace

// Cooper, Harvey, Kennedy: "A simple, fast dominance algorithm", on the graph with its edges turned round.
void find_joins(Function& function) {
  const std::vector<Block> blocks = make_blocks(function);
  const int exit = static_cast<int>(blocks.size()) - 1;
  std::vector<int> order, number(blocks.size(), -1);  // post-order of the reversed graph
  std::vector<std::pair<int, size_t>> stack = {{exit, 0}};
  std::vector<bool> seen(blocks.size(), false);
  seen[static_cast<size_t>(exit)] = true;
  while (!stack.empty()) {
    auto& [block, edge] = stack.back();
    const std::vector<int>& previous = blocks[static_cast<size_t>(block)].previous;
    if (edge < previous.size()) {
      const int next = previous[edge++];
      if (!seen[static_cast<size_t>(next)]) {
        seen[static_cast<size_t>(next)] = true;
        stack.emplace_back(next, 0);
      }
    } else {
      number[static_cast<size_t>(block)] = static_cast<int>(order.size());
      order.push_back(block);
      stack.pop_back();
    }
  }
  std::vector<int> dominator(blocks.size(), -1);
  dominator[static_cast<size_t>(exit)] = exit;
  const auto meet = [&](int a, int b) {
    while (a != b) {
      while (number[static_cast<size_t>(a)] < number[static_cast<size_t>(b)]) a = dominator[static_cast<size_t>(a)];
      while (number[static_cast<size_t>(b)] < number[static_cast<size_t>(a)]) b = dominator[static_cast<size_t>(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      if (*it == exit) continue;
      int found = -1;
      for (const int next : blocks[static_cast<size_t>(*it)].next) {
        if (dominator[static_cast<size_t>(next)] < 0) continue;
        found = found < 0 ? next : meet(found, next);
      }
      if (found != dominator[static_cast<size_t>(*it)]) {
        dominator[static_cast<size_t>(*it)] = found;
        changed = true;
      }
    }
  }
  for (size_t b = 0; b + 1 < blocks.size(); ++b) {
    Instruction& last = function.code[static_cast<size_t>(blocks[b].end) - 1];
    if (last.flow != Flow::kBranch || last.guard < 0) continue;
    const int join = dominator[b];
    last.join = join < 0 || join == exit ? -1 : blocks[static_cast<size_t>(join)].begin;
  }
}

}  // namespace ptx
