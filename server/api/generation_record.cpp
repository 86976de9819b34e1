#include "server/api/generation_record.h"

namespace bam {

void GenerationRecord::start(const Tokenizer& tokenizer, const DecodeOptions& options, int32_t n,
                             std::vector<PreparedPrompt> prompts) {
  for (PreparedPrompt& prompt : prompts) {
    Prompt& added = prompts_.emplace_back();
    added.num_tokens = static_cast<int64_t>(prompt.ids.size());
    for (int32_t k = 0; k < n; ++k) {
      added.choices.emplace_back().decoder = std::make_unique<ChoiceDecoder>(tokenizer, options, prompt.text_length);
    }
    added.prepared = std::move(prompt);
  }
}

int32_t GenerationRecord::index_of(size_t prompt, size_t choice) const {
  return static_cast<int32_t>(prompt * prompts_[prompt].choices.size() + choice);
}

void GenerationRecord::take(Prompt& prompt, PromptLogprobsEvent&& event) {
  std::vector<TokenRecord>& records = prompt.prepared.records;
  for (size_t i = 0; i < event.logprobs.size(); ++i) {
    const size_t position = static_cast<size_t>(event.first) + i;
    if (position < records.size()) records[position].logprobs = std::move(event.logprobs[i]);
  }
}

bool GenerationRecord::all_reported() const {
  for (const Prompt& prompt : prompts_) {
    for (const Choice& choice : prompt.choices) {
      if (choice.stage != Choice::Stage::kReported) return false;
    }
  }
  return true;
}

const char* GenerationRecord::finish_reason() const {
  const char* first = prompts_.front().choices.front().decoder->finish_reason();
  for (const Prompt& prompt : prompts_) {
    for (const Choice& choice : prompt.choices) {
      const char* reason = choice.decoder->finish_reason();
      if (reason == std::string_view(kAborted)) return reason;
    }
  }
  return first;
}

Usage GenerationRecord::usage() const {
  Usage usage;
  for (const Prompt& prompt : prompts_) {
    usage.prompt_tokens += prompt.num_tokens;
    usage.cached_tokens += prompt.cached_tokens;
    for (const Choice& choice : prompt.choices) usage.add(*choice.decoder);
  }
  return usage;
}

std::vector<ChoiceReply> GenerationRecord::replies(const GenerationRequest& request,
                                                   const ReplyOptions& options) const {
  std::vector<ChoiceReply> choices;
  for (const Prompt& prompt : prompts_) {
    const PreparedPrompt& prepared = prompt.prepared;
    for (const Choice& choice : prompt.choices) {
      ChoiceReply& reply = choices.emplace_back();
      reply.index = static_cast<int32_t>(choices.size()) - 1;
      reply.echo = prepared.text;
      reply.text = choice.collected.text;
      reply.tool_calls = choice.collected.tool_calls;
      if (request.echo && options.logprobs) reply.echo_tokens = prepared.records;
      reply.tokens = choice.collected.tokens;
      reply.finish_reason = choice.decoder->finish_reason();
      reply.stop_reason = choice.decoder->stop_reason();
      if (request.prompt_logprobs) reply.prompt_logprobs = TokenRecords(prepared.records);
      if (request.return_token_ids) reply.prompt_ids = &prepared.ids;
      reply.embedding = prompt.embedding;
      if (prompt.attention) reply.attention = &*prompt.attention;
    }
  }
  return choices;
}

std::pair<size_t, size_t> GenerationRecord::reply_size(bool detailed) const {
  size_t tokens = 0, bytes = 0;
  for (const Prompt& prompt : prompts_) {
    tokens += prompt.prepared.records.size() + prompt.prepared.ids.size();
    for (const Choice& choice : prompt.choices) {
      tokens += choice.collected.tokens.size();
      bytes += prompt.prepared.text.size() + choice.collected.text.size();
    }
  }
  return {detailed ? tokens : 0, bytes};
}

size_t GenerationRecord::held_bytes() const {
  size_t bytes = 0;
  for (const Prompt& prompt : prompts_) {
    const PreparedPrompt& held = prompt.prepared;
    bytes += held.ids.capacity() * sizeof(int32_t) + held.records.capacity() * sizeof(TokenRecord);
    bytes += held.text.empty() ? 0 : held.text.capacity();
  }
  return bytes;
}

}  // namespace bam
