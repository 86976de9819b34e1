#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/choice_decoder.h"
#include "server/api/openai_reply.h"
#include "server/api/prepare.h"

namespace bam {

// What a generation was asked for and has produced so far, prompt by prompt and choice by choice. It belongs to one
// thread at a time.
class GenerationRecord {
 public:
  struct Choice {
    // kSilent: nothing was delivered. kEchoing: the prompt is on its way, and what was generated waits for its end.
    enum class Stage : uint8_t { kSilent, kEchoing, kEchoed, kSpeaking, kReported };
    Stage stage = Stage::kSilent;
    std::unique_ptr<ChoiceDecoder> decoder;
    ChoiceDelta collected;  // replies that are not streamed
  };
  struct Prompt {
    PreparedPrompt prepared;  // its ids are the engine's from submit() on, unless the reply needs them
    std::string engine_id;
    int64_t num_tokens = 0;
    int64_t cached_tokens = 0;
    std::vector<float> embedding;
    std::optional<AttentionReport> attention;
    std::vector<Choice> choices;
  };

  // `options` outlive the record.
  void start(const Tokenizer& tokenizer, const DecodeOptions& options, int32_t n, std::vector<PreparedPrompt> prompts);

  std::vector<Prompt>& prompts() { return prompts_; }
  const std::vector<Prompt>& prompts() const { return prompts_; }
  Prompt& prompt(size_t index) { return prompts_[index]; }
  Choice& choice(size_t prompt, size_t choice) { return prompts_[prompt].choices[choice]; }
  // Of a choice in the reply.
  int32_t index_of(size_t prompt, size_t choice) const;

  void take(Prompt& prompt, PromptLogprobsEvent&& event);
  bool all_reported() const;
  // Of the whole: "abort" when any choice was cut off so, else the first one's.
  const char* finish_reason() const;
  Usage usage() const;

  // All choices as the reply shows them. They refer to the record.
  std::vector<ChoiceReply> replies(const GenerationRequest& request, const ReplyOptions& options) const;
  // Tokens that the reply describes one by one, and bytes of text.
  std::pair<size_t, size_t> reply_size(bool detailed) const;
  // Of token ids, texts and records of the prompts.
  size_t held_bytes() const;

 private:
  std::vector<Prompt> prompts_;
};

}  // namespace bam
