#pragma once

#include "server/api/openai_reply.h"

namespace bam {

// Replies and streams of /v1/completions and /v1/chat/completions.
class OpenAiWriter final : public ReplyWriter {
 public:
  OpenAiWriter(const Tokenizer& tokenizer, const ReplyMeta& meta, ReplyOptions options,
               const GenerationRequest& request)
      : tokenizer_(tokenizer),
        meta_(meta),
        options_(options),
        include_usage_(request.include_usage),
        continuous_usage_(request.continuous_usage_stats),
        chunks_(tokenizer, meta, options, request.include_usage) {}

  std::string begin(int32_t index, const Usage& usage) override {
    return meta_.kind == ApiKind::kChat ? chunks_.role(index, shown(usage)) : std::string();
  }
  std::string delta(int32_t index, const ChoiceDelta& delta, const Usage& usage,
                    const std::vector<int32_t>* prompt_ids) override {
    return chunks_.delta(index, delta, shown(usage), prompt_ids);
  }
  TextSource echo(int32_t index, std::string_view text, TokenRecords tokens, const Usage& usage) override {
    return chunks_.echo(index, text, tokens, continuous_usage_ ? std::optional(usage) : std::nullopt);
  }
  std::string finish(int32_t index, const char* reason, const StopReason& stop_reason, const Usage& usage) override {
    return chunks_.finish(index, reason, stop_reason, shown(usage));
  }
  std::string progress(const ProgressEvent& progress, const Usage& usage) override {
    return chunks_.progress(progress, shown(usage));
  }
  std::string end(const Usage& usage) override {
    return (include_usage_ ? chunks_.usage(usage) : std::string()) + ChunkWriter::done();
  }
  std::string error(const ApiError& error) override { return ChunkWriter::error(error) + ChunkWriter::done(); }
  TextSource reply(std::vector<ChoiceReply> choices, const Usage& usage) override {
    return reply_text(tokenizer_, meta_, options_, choices, usage);
  }

 private:
  const Usage* shown(const Usage& usage) const { return continuous_usage_ ? &usage : nullptr; }

  const Tokenizer& tokenizer_;
  const ReplyMeta meta_;
  const ReplyOptions options_;
  const bool include_usage_, continuous_usage_;
  const ChunkWriter chunks_;
};

}  // namespace bam
