#include "server/api/tool_call_reader.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/grammar/tool_calls.h"

namespace bam {

namespace {

using namespace tool_call_text;

// Bytes at the end of the text that could be the beginning of `marker`.
size_t partial_match(std::string_view text, std::string_view marker) {
  size_t size = std::min(text.size(), marker.size() - 1);
  while (size > 0 && !text.ends_with(marker.substr(0, size))) --size;
  return size;
}

}  // namespace

std::string new_tool_call_id() {
  static constexpr std::string_view kAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::uniform_int_distribution<size_t> any(0, kAlphabet.size() - 1);
  std::string id(9, ' ');
  for (char& c : id) c = kAlphabet[any(random)];
  return id;
}

std::string ToolCallReader::push(std::string_view text, std::vector<ToolCallDelta>& calls) {
  held_ += text;
  std::string content;
  while (advance(content, calls)) {
  }
  return content;
}

// One step; false when it needs more text.
bool ToolCallReader::advance(std::string& content, std::vector<ToolCallDelta>& calls) {
  switch (state_) {
    case State::kContent: {
      const size_t marker = held_.find(kOpen);
      const size_t size = marker != std::string::npos ? marker : held_.size() - partial_match(held_, kOpen);
      // Between two calls there is nothing but whitespace.
      if (num_calls_ == 0) content.append(held_, 0, size);
      held_.erase(0, size);
      if (marker == std::string::npos) return false;
      held_.erase(0, kOpen.size());
      state_ = State::kName;
      return true;
    }
    case State::kName: {
      const size_t end = held_.find(kBeforeArguments, std::min(held_.size(), kBeforeName.size()));
      if (end == std::string::npos) return false;
      calls.push_back({.index = num_calls_,
                       .id = new_tool_call_id(),
                       .name = held_.substr(kBeforeName.size(), end - kBeforeName.size()),
                       .arguments = {}});
      held_.erase(0, end + kBeforeArguments.size());
      state_ = State::kArguments;
      return true;
    }
    case State::kArguments: {
      size_t size = 0;
      for (bool done = false; size < held_.size() && !done; ++size) {
        const char c = held_[size];
        if (in_string_) {
          if (!std::exchange(escaped_, !escaped_ && c == '\\') && c == '"') in_string_ = false;
        } else if (c == '"') {
          in_string_ = true;
        } else if (c == '{' || c == '[') {
          ++depth_;
        } else if (c == '}' || c == ']') {
          done = --depth_ == 0;
        }
        if (done) state_ = State::kClose;
      }
      if (size > 0) {
        if (calls.empty() || calls.back().index != num_calls_) calls.push_back({.index = num_calls_});
        calls.back().arguments.append(held_, 0, size);
        held_.erase(0, size);
      }
      return state_ == State::kClose;
    }
    case State::kClose: {
      if (held_.size() < kClose.size()) return false;
      held_.erase(0, kClose.size());
      ++num_calls_;
      state_ = State::kContent;
      return true;
    }
  }
  return false;
}

std::string ToolCallReader::flush() {
  std::string rest;
  if (state_ == State::kContent && num_calls_ == 0 && !only_calls_) rest.swap(held_);
  return rest;
}

}  // namespace bam
