#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/call.h"
#include "server/api/dialect.h"
#include "server/api/event_inbox.h"
#include "server/api/generation_record.h"
#include "server/api/live_jobs.h"
#include "server/api/piece_pump.h"
#include "server/api/server_context.h"

namespace bam {

// One completions or chat request from the typed body to the last byte of its reply: one engine request per prompt, n
// choices each. A worker prepares it; everything after that happens on the connection's thread, and the engine thread
// only fills `inbox_`. The engine gets its requests when the job is open, so no event can come before that.
class GenerationJob : public LiveJob, public std::enable_shared_from_this<GenerationJob> {
 public:
  // `dialect`: of an API other than OpenAI's two.
  GenerationJob(ServerContext& context, const ServingModel& model, CallPtr call, GenerationRequest request,
                Dialect dialect = {});
  ~GenerationJob() override { leave(); }

  // Worker: checks and tokenises, then goes on on the connection's thread; answers with an error if that fails.
  void start();
  // Any thread: ends all choices with finish_reason "abort".
  void cancel() override;
  const std::string& id() const override { return meta_.id; }

  // Of token ids, texts and records of its prompts.
  size_t held_prompt_bytes() const;

 private:
  // Changed on the connection's thread only.
  //
  //   kPreparing ───open()──▶ kRunning ──▶ kReplying ──▶ kEnded      kReplying: all is known, a long reply is on its way
  //       │ cancel()            ▲  └──────────────────────▲         kEnded: the reply is out or nobody waits for it
  //       ▼                     │
  //   kCancelled ───────open()──┘  (and ends at once, without the engine)
  enum class State : uint8_t { kPreparing, kCancelled, kRunning, kReplying, kEnded };

  using Prompt = GenerationRecord::Prompt;
  using Choice = GenerationRecord::Choice;
  class Sink;

  bool enter();
  void leave();
  // On the connection's thread.
  void open();
  std::optional<ApiError> submit();
  void open_stream();
  void send(std::string events);
  void open_body(ReplyStream::Head head);
  void on_wake();
  void on_event(size_t prompt_index, Event&& event);
  void on_finish(Prompt& prompt, const FinishEvent& finish);
  void deliver();
  void deliver_choice(size_t prompt_index, size_t choice_index);
  void start_echo(size_t prompt_index, size_t choice_index);
  void next_echo();
  void complete();
  TextSource reply_source();
  std::unique_ptr<ReplyWriter> make_writer() const;
  void fail(const ApiError& error);
  void client_left();
  void on_pressure(bool full);
  void stalled();
  void finish_log(int status);
  void end();

  const std::string& tenant() const { return call_->caller.tenant; }
  void cancel_engine_requests();
  Headers reply_headers() const;

  ServerContext& context_;
  const ServingModel& model_;
  const CallPtr call_;
  GenerationRequest request_;
  const Dialect dialect_;
  ReplyMeta meta_;
  ReplyOptions reply_options_;
  DecodeOptions decode_options_;
  GenerationRecord record_;
  EventInbox inbox_;

  State state_ = State::kPreparing;
  bool entered_ = false;  // its names are in context_.jobs
  uint64_t close_ticket_ = 0;
  std::unique_ptr<ReplyWriter> writer_;  // of a stream
  std::shared_ptr<ReplyStream> stream_;  // of a stream, or of a long reply
  std::shared_ptr<PiecePump> pump_;
  std::deque<std::pair<size_t, size_t>> echoes_;  // (prompt, choice) that wait for the pump
};

// Handlers of /v1/completions and /v1/chat/completions, on a worker.
void handle_completions(ServerContext& context, CallPtr call);
void handle_chat_completions(ServerContext& context, CallPtr call);

}  // namespace bam
