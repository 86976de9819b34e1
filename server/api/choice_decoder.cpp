#include "server/api/choice_decoder.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/utf8.h"

namespace bam {

namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  if (tokenizer.is_special(id)) return tokenizer.piece(id);
  const std::string& bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

void ChoiceDelta::append(ChoiceDelta&& later) {
  text += later.text;
  std::move(later.tokens.begin(), later.tokens.end(), std::back_inserter(tokens));
  for (ToolCallDelta& call : later.tool_calls) {
    if (tool_calls.empty() || tool_calls.back().index != call.index) {
      tool_calls.push_back(std::move(call));
    } else {
      tool_calls.back().arguments += call.arguments;
    }
  }
}

ChoiceDecoder::ChoiceDecoder(const Tokenizer& tokenizer, const DecodeOptions& options, int64_t first_offset)
    : tokenizer_(tokenizer),
      options_(options),
      detokenizer_(tokenizer, options.at_text_start, options.skip_special, options.space_specials),
      matcher_(options.stop),
      decoded_(first_offset),
      released_(first_offset) {
  if (options.tool_calls) tool_calls_.emplace(options.only_tool_calls);
}

const char* ChoiceDecoder::finish_reason() const {
  const bool stopped = finish_reason_ && std::string_view(finish_reason_) == "stop";
  return stopped && tool_calls_ && tool_calls_->ended_with_calls() ? "tool_calls" : finish_reason_;
}

void ChoiceDecoder::push(TokenEvent&& event) {
  if (!finished_ && !stopped_) {
    accepted_drafts_ += event.drafted ? 1 : 0;
    rejected_drafts_ += event.rejected_drafts;
  }
  push(event.token, std::move(event.logprobs));
}

void ChoiceDecoder::push(int32_t token, std::optional<TokenLogprobs> logprobs) {
  if (finished_ || stopped_ || text_ended_) return;
  ++num_tokens_;
  Pending& pending = pending_.emplace_back();
  pending.record.id = token;
  pending.record.logprobs = std::move(logprobs);
  pending.record.text_offset = decoded_;
  std::string text;
  const bool is_stop = contains(options_.stop_ids, token);
  if (is_stop) {
    // The token that ends the text is not part of it, unless asked for (an EOS has no text anyway).
    if (!contains(options_.eos_ids, token)) stop_reason_ = token;
    if (options_.include_stop_str) text = detokenizer_.push(token);
  } else {
    text = detokenizer_.push(token);
  }
  decoded_ += count_characters(text);
  // Bytes of an unfinished character show up with a later token: at least one more character.
  const bool incomplete =
      text.empty() && !tokenizer_.is_special(token) && !is_stop && !tokenizer_.token_bytes(token).empty();
  pending.end = decoded_ + (incomplete ? 1 : 0);
  if (options_.token_texts) pending.record.text = text;
  emit(text);
}

void ChoiceDecoder::emit(std::string_view text) {
  std::string certain = matcher_.push(text);
  if (matcher_.matched()) {
    stopped_ = true;
    finished_ = true;
    finish_reason_ = "stop";
    stop_reason_ = *matcher_.matched();
    released_ += count_characters(certain);
    // Tokens that began before the stop string stay; those inside it never existed for the client.
    while (!pending_.empty() && pending_.back().record.text_offset >= released_ && !options_.include_stop_str) {
      pending_.pop_back();
    }
    if (options_.include_stop_str) {
      certain += *matcher_.matched();
    } else {
      cut_records(released_);
    }
    for (Pending& pending : pending_) delta_.tokens.push_back(std::move(pending.record));
    pending_.clear();
    delta_.text += certain;
    return;
  }
  released_ += count_characters(certain);
  delta_.text += certain;
  release_records();
}

// The text ends there, in the middle of a token perhaps.
void ChoiceDecoder::cut_records(int64_t end) {
  for (Pending& pending : pending_) {
    std::string& text = pending.record.text;
    const int64_t keep = end - pending.record.text_offset;
    if (count_characters(text) <= keep) continue;
    size_t size = 0;
    for (int64_t i = 0; i < keep; ++i) {
      do ++size;
      while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80);
    }
    text.resize(size);
  }
}

void ChoiceDecoder::release_records() {
  while (!pending_.empty() && pending_.front().end <= released_) {
    delta_.tokens.push_back(std::move(pending_.front().record));
    pending_.pop_front();
  }
}

void ChoiceDecoder::end_text() {
  if (finished_ || text_ended_) return;
  text_ended_ = true;
  const std::string rest = detokenizer_.flush();
  decoded_ += count_characters(rest);
  for (Pending& pending : pending_) pending.end = std::min(pending.end, decoded_);
  if (options_.token_texts && !pending_.empty()) pending_.back().record.text += rest;
  emit(rest);
  if (finished_) return;  // the last characters completed a stop string
  const std::string held = matcher_.flush();
  released_ += count_characters(held);
  delta_.text += held;
  release_records();
}

void ChoiceDecoder::finish(FinishReason reason) {
  end_text();
  if (finished_) return;
  finished_ = true;
  switch (reason) {
    case FinishReason::kStop: finish_reason_ = "stop"; break;
    case FinishReason::kLength: finish_reason_ = "length"; break;
    case FinishReason::kCancelled: finish_reason_ = kAborted; break;
    case FinishReason::kTimeout:
    case FinishReason::kError: finish_reason_ = "error"; break;
  }
  if (reason != FinishReason::kStop) stop_reason_ = std::monostate{};
}

ChoiceDelta ChoiceDecoder::take() {
  ChoiceDelta delta;
  std::swap(delta, delta_);
  if (tool_calls_) {
    delta.text = tool_calls_->push(delta.text, delta.tool_calls);
    if (finished_ || text_ended_) delta.text += tool_calls_->flush();
  }
  return delta;
}

}  // namespace bam
