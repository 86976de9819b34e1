#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/api/choice_decoder.h"
#include "server/http/exchange.h"
#include "server/api/openai_reply.h"
#include "server/api/server_context.h"
#include "server/http/sse_stream.h"

namespace bam {

// One completions or chat request from the parsed body to the last byte of its reply: one engine request per prompt, n
// choices each. prepare() and submit() run on a worker; from then on everything happens on the connection's loop. The
// engine thread only appends to `inbox_`.
class GenerationJob : public std::enable_shared_from_this<GenerationJob> {
 public:
  GenerationJob(ServerContext& context, const ServingModel& model, std::shared_ptr<Exchange> exchange,
                GenerationRequest request);
  ~GenerationJob();

  // Worker: tokenises, checks against the model's limits and hands everything to the engine; answers with an error if
  // that fails.
  void start();
  // Any thread: ends all choices with finish_reason "abort".
  void cancel();

  const std::string& id() const { return meta_.id; }
  const Caller& caller() const { return exchange_->caller; }

 private:
  struct Choice {
    std::unique_ptr<ChoiceDecoder> decoder;
    ChoiceDelta collected;  // replies that are not streamed
    bool echoed = false;
    bool reported = false;  // its finish is out
  };
  struct Prompt {
    std::vector<int32_t> ids;
    std::string text;                  // as echoed
    std::vector<TokenRecord> records;  // with echo or prompt_logprobs
    int64_t text_length = 0;           // characters
    std::string engine_id;
    int64_t cached_tokens = 0;
    std::vector<Choice> choices;
    bool submitted = false;
  };
  class Sink;

  // completions_prepare.cpp
  std::optional<ApiError> prepare();
  std::optional<ApiError> tokenize_prompts();
  std::optional<ApiError> add_prompt(std::vector<int32_t> ids, std::string text);
  std::optional<ApiError> check_length(std::vector<int32_t>& ids);
  std::optional<ApiError> check_token_ids() const;
  std::optional<ApiError> compile_constraint();
  std::optional<ApiError> check_reply_size() const;
  void build_echo(Prompt& prompt);
  std::optional<ApiError> check_queue_limits() const;
  std::optional<ApiError> submit();
  DecodeOptions decode_options() const;

  // On the loop.
  void open();
  void drain_inbox();
  void on_event(size_t prompt_index, Event&& event);
  void on_finish(Prompt& prompt, const FinishEvent& finish);
  void deliver(size_t prompt_index);
  void deliver_choice(Prompt& prompt, size_t prompt_index, size_t choice_index);
  void complete();
  void send_reply();
  void fail(const ApiError& error);
  void client_left();
  void pause(bool full);
  void stalled();
  void finish_log(int status);
  void end();

  bool all_reported() const;
  Usage usage() const;
  void cancel_engine_requests();

  ServerContext& context_;
  const ServingModel& model_;
  std::shared_ptr<Exchange> exchange_;
  GenerationRequest request_;
  ReplyMeta meta_;
  ReplyOptions reply_options_;
  DecodeOptions decode_options_;
  std::shared_ptr<const TokenConstraint> constraint_;
  std::vector<Prompt> prompts_;
  std::shared_ptr<SseStream> stream_;
  std::unique_ptr<ChunkWriter> writer_;
  uint64_t close_ticket_ = 0;
  bool registered_ = false;
  bool opened_ = false;
  bool cancel_requested_ = false;
  bool ended_ = false;  // the reply is out or nobody waits for it

  std::mutex inbox_mutex_;
  std::vector<std::pair<size_t, Event>> inbox_;  // (prompt, event), appended by the engine thread
  bool inbox_scheduled_ = false;
  std::optional<Clock::time_point> first_token_, last_token_;  // when the engine produced them
  std::atomic<bool> abandoned_{false};                         // tells the engine that nobody is listening
};

// Handlers of /v1/completions and /v1/chat/completions, on a worker.
void handle_completions(ServerContext& context, std::shared_ptr<Exchange> exchange);
void handle_chat_completions(ServerContext& context, std::shared_ptr<Exchange> exchange);

}  // namespace bam
