#include "server/api/completions.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/log.h"
#include "server/api/openai_writer.h"

namespace bam {

namespace {

ApiError duplicate_id(const std::string& id) {
  return ApiError::invalid(fmt::format("A request with the id '{}' is running.", id), "request_id",
                           "duplicate_request_id");
}

// Replies and echoes with more tokens or bytes than this are made on a worker, in pieces: as a whole they would take
// long enough to delay other streams.
constexpr size_t kLargeTokens = 1024;

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    // Header values must stay one line of visible characters.
    std::string clean;
    for (const char c : name.substr(0, 64)) clean += c > 0x20 && c < 0x7f && c != ',' ? c : '?';
    text += (text.empty() ? "" : ", ") + clean;
    if (text.size() > 1000) break;
  }
  return text;
}

std::string all_of(const TextSource& source) {
  std::string text, piece;
  for (bool more = true; more; piece.clear()) {
    more = source(piece);
    text += piece;
  }
  return text;
}

}  // namespace

// Receives the events of one prompt on the engine thread and wakes the connection's.
class GenerationJob::Sink : public EventSink {
 public:
  Sink(std::shared_ptr<GenerationJob> job, size_t prompt) : job_(std::move(job)), prompt_(prompt) {}

  bool on_events(std::vector<Event>&& events) override {
    try {
      hand_on(std::move(events));
    } catch (const std::bad_alloc&) {  // what is lost now cannot be said later
      job_->call_->post(
          [job = job_] { job->fail(ApiError::unavailable("The server is out of memory.", "out_of_memory", 1)); });
      throw;
    }
    return true;
  }

 private:
  void hand_on(std::vector<Event>&& events) {
    switch (job_->inbox_.push(prompt_, std::move(events))) {
      case EventInbox::Pushed::kWake: job_->call_->post([job = job_] { job->on_wake(); }); break;
      case EventInbox::Pushed::kWaiting: break;
      // The engine was told to stop or cancel; saying that nobody listens would overtake that and count as an abort.
      case EventInbox::Pushed::kClosed: break;
    }
  }

  std::shared_ptr<GenerationJob> job_;
  size_t prompt_;
};

GenerationJob::GenerationJob(ServerContext& context, const ServingModel& model, CallPtr call, GenerationRequest request,
                             Dialect dialect)
    : context_(context),
      model_(model),
      call_(std::move(call)),
      request_(std::move(request)),
      dialect_(std::move(dialect)) {
  if (!request_.request_id.empty()) call_->request_id = request_.request_id;
  meta_.kind = request_.kind;
  meta_.model = request_.model.value_or(context_.config.served_model_names.front());
  meta_.system_fingerprint = model_.system_fingerprint;
  meta_.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  meta_.started = call_->started;
  reply_options_ = {.logprobs = request_.wants_logprobs(),
                    .num_top = std::max(0, request_.engine.sampling.num_logprobs),
                    .token_ids = request_.return_token_ids,
                    .names_are_ids = request_.return_tokens_as_token_ids};
}

void GenerationJob::start() {
  auto prepared = prepare_prompts(context_, model_, call_->caller, request_, call_->log.prompt);
  if (!prepared) return call_->reply(dialect_.in_own_words(prepared.error()));
  decode_options_ = decode_options(model_, request_);
  record_.start(model_.tokenizer, decode_options_, request_.engine.n, *std::move(prepared));
  call_->log.prompt_tokens = record_.usage().prompt_tokens;
  if (!enter()) return call_->reply(duplicate_id(call_->request_id));
  call_->post([job = shared_from_this()] { job->open(); });
}

// Takes the job's names; false when they belong to another one.
bool GenerationJob::enter() {
  const std::string prefix = !dialect_.id_prefix.empty()       ? dialect_.id_prefix
                             : request_.kind == ApiKind::kChat ? "chatcmpl-"
                                                               : "cmpl-";
  const auto add = [&] {
    call_->reply_id = meta_.id = prefix + call_->request_id;
    return context_.jobs.add(tenant(), meta_.id, call_->request_id, shared_from_this());
  };
  entered_ = add();
  if (!entered_ && request_.request_id.empty()) {
    // A proxy may send one X-Request-Id for several calls.
    call_->request_id += fmt::format("-{:08x}", std::random_device{}());
    entered_ = add();
  }
  return entered_;
}

void GenerationJob::leave() {
  if (std::exchange(entered_, false)) context_.jobs.remove(tenant(), meta_.id, call_->request_id);
}

void GenerationJob::cancel() {
  call_->post([job = shared_from_this()] {
    if (job->state_ == State::kPreparing) {
      job->state_ = State::kCancelled;
    } else if (job->state_ == State::kRunning) {
      job->cancel_engine_requests();
    }
  });
}

void GenerationJob::cancel_engine_requests() {
  for (const Prompt& prompt : record_.prompts()) {
    if (!prompt.engine_id.empty()) model_.engine.cancel(prompt.engine_id);
  }
}

void GenerationJob::open() {
  const bool cancelled = state_ == State::kCancelled;
  state_ = State::kRunning;
  if (!call_->is_open()) return client_left();
  close_ticket_ = call_->on_close([weak = weak_from_this()] {
    if (auto job = weak.lock()) job->client_left();
  });
  if (!cancelled) {
    if (const auto error = submit()) return fail(*error);
  }
  if (request_.stream) open_stream();
  if (!cancelled) return;
  for (Prompt& prompt : record_.prompts()) {
    for (Choice& choice : prompt.choices) choice.decoder->finish(FinishReason::kCancelled);
  }
  deliver();
}

// Ends with an error before anything was sent, or with all prompts in the engine.
std::optional<ApiError> GenerationJob::submit() {
  std::vector<Prompt>& prompts = record_.prompts();
  for (size_t i = 0; i < prompts.size(); ++i) {
    Prompt& prompt = prompts[i];
    const bool last = i + 1 == prompts.size();
    Request request = last ? std::move(request_.engine) : request_.engine;
    if (last) request_.engine.n = request.n;
    // No id has a '~', so that no client can name its request like a part of another.
    request.id = LiveJobs::engine_name(tenant(), prompts.size() == 1 ? meta_.id : fmt::format("{}~{}", meta_.id, i));
    request.prompt =
        request_.return_token_ids ? prompt.prepared.ids : std::exchange(prompt.prepared.ids, std::vector<int32_t>());
    request.sampling.max_tokens = prompt.prepared.max_tokens;
    const std::string engine_id = request.id;
    const SubmitResult result = model_.engine.submit(std::move(request), std::make_shared<Sink>(shared_from_this(), i));
    switch (result.status) {
      case SubmitStatus::kAccepted: prompt.engine_id = engine_id; break;
      case SubmitStatus::kInvalid:
        if (dialect_.look) return ApiError::invalid(result.message);
        return ApiError::invalid(result.message, request_.kind == ApiKind::kChat ? "messages" : "prompt",
                                 "context_length_exceeded");
      case SubmitStatus::kQueueFull:
        context_.metrics.rejected_queue.fetch_add(1, std::memory_order_relaxed);
        return ApiError::queue_full(result.message, result.retry_after_s);
      case SubmitStatus::kNoMemory: return ApiError::unavailable("The server is out of memory.", "out_of_memory", 1);
      case SubmitStatus::kDraining: return ApiError::unavailable("The server is shutting down.", "draining", 5);
      case SubmitStatus::kDuplicateId: return duplicate_id(call_->request_id);  // its client left a moment ago
    }
  }
  return std::nullopt;
}

Headers GenerationJob::reply_headers() const {
  if (request_.ignored_fields.empty()) return {};
  return {{"x-ignored-fields", join(request_.ignored_fields)}};
}

void GenerationJob::open_body(ReplyStream::Head head) {
  const auto weak = weak_from_this();
  ReplyStream::Callbacks callbacks;
  callbacks.on_pressure = [weak](bool full) {
    if (auto job = weak.lock()) job->on_pressure(full);
  };
  callbacks.on_stalled = [weak] {
    if (auto job = weak.lock()) job->stalled();
  };
  stream_ = call_->open_stream(std::move(head), std::move(callbacks));
  pump_ = std::make_shared<PiecePump>(context_.workers, call_, stream_);
}

void GenerationJob::open_stream() {
  writer_ = make_writer();
  open_body({.content_type = writer_->stream_type(), .headers = reply_headers()});
}

// An empty chunk would end the body.
void GenerationJob::send(std::string events) {
  if (!events.empty()) stream_->send(std::move(events));
}

std::unique_ptr<ReplyWriter> GenerationJob::make_writer() const {
  if (dialect_.make_writer) return dialect_.make_writer(meta_);
  return std::make_unique<OpenAiWriter>(model_.tokenizer, meta_, reply_options_, request_);
}

void GenerationJob::on_wake() {
  for (EventInbox::Entry& entry : inbox_.take()) {
    if (state_ != State::kRunning) return;
    on_event(entry.prompt, std::move(entry.event));
  }
  deliver();
}

void GenerationJob::on_event(size_t prompt_index, Event&& event) {
  Prompt& prompt = record_.prompt(prompt_index);
  if (auto* token = std::get_if<TokenEvent>(&event)) {
    prompt.choices[static_cast<size_t>(token->choice)].decoder->push(std::move(*token));
  } else if (auto* progress = std::get_if<ProgressEvent>(&event)) {
    prompt.cached_tokens = std::max(prompt.cached_tokens, progress->cached);
    if (writer_ && request_.return_progress) send(writer_->progress(*progress, record_.usage()));
  } else if (auto* logprobs = std::get_if<PromptLogprobsEvent>(&event)) {
    record_.take(prompt, std::move(*logprobs));
  } else if (auto* embedding = std::get_if<EmbeddingEvent>(&event)) {
    prompt.embedding = std::move(embedding->values);
  } else if (auto* attention = std::get_if<AttentionEvent>(&event)) {
    prompt.attention = std::move(attention->report);
  } else if (auto* finish = std::get_if<FinishEvent>(&event)) {
    on_finish(prompt, *finish);
  }
}

void GenerationJob::on_finish(Prompt& prompt, const FinishEvent& finish) {
  prompt.cached_tokens = std::max(prompt.cached_tokens, finish.cached_tokens);
  ChoiceDecoder& decoder = *prompt.choices[static_cast<size_t>(finish.choice)].decoder;
  if (decoder.finished()) return;  // it met a stop string before
  std::optional<ApiError> error;
  if (finish.reason == FinishReason::kTimeout) {
    error =
        ApiError::timeout(finish.message.empty() ? "The request took too long." : finish.message, request_.own_timeout);
  } else if (finish.dead_end) {
    error = constraint_error(request_, fmt::format("{} (at token {})", finish.message, finish.generated_tokens + 1));
  } else if (finish.reason == FinishReason::kError) {
    log::error("request {}: {}", prompt.engine_id, finish.message);
    error = ApiError::internal(finish.message.empty() ? "The engine failed on this request." : finish.message);
  }
  if (!error) return decoder.finish(finish.reason);
  if (writer_) {  // all that was generated stands before the error
    for (Prompt& each : record_.prompts()) {
      for (Choice& choice : each.choices) choice.decoder->end_text();
    }
    deliver();
  }
  fail(*error);
}

void GenerationJob::deliver() {
  for (size_t i = 0; i < record_.prompts().size(); ++i) {
    for (size_t k = 0; k < record_.prompt(i).choices.size() && state_ == State::kRunning; ++k) deliver_choice(i, k);
  }
  if (state_ == State::kRunning && record_.all_reported()) complete();
}

void GenerationJob::deliver_choice(size_t prompt_index, size_t choice_index) {
  using Stage = Choice::Stage;
  Prompt& prompt = record_.prompt(prompt_index);
  Choice& choice = prompt.choices[choice_index];
  ChoiceDecoder& decoder = *choice.decoder;
  if (choice.stage == Stage::kEchoing || choice.stage == Stage::kReported) return;
  if (decoder.num_tokens() == 0 && !decoder.finished()) return;
  const int32_t index = record_.index_of(prompt_index, choice_index);
  // Load testers take the first event for the first token.
  if (choice.stage == Stage::kSilent && writer_) send(writer_->begin(index, record_.usage()));
  if (choice.stage == Stage::kSilent && writer_ && request_.echo) {
    start_echo(prompt_index, choice_index);
    if (choice.stage == Stage::kEchoing || state_ != State::kRunning) return;
  }
  const bool first = choice.stage != Stage::kSpeaking;
  choice.stage = Stage::kSpeaking;
  // The engine knows nothing of stop strings.
  if (decoder.stopped() && !prompt.engine_id.empty()) {
    model_.engine.stop(prompt.engine_id, static_cast<int32_t>(choice_index));
  }
  ChoiceDelta delta = decoder.take();
  if (!writer_) {
    choice.collected.append(std::move(delta));
    if (decoder.finished()) choice.stage = Stage::kReported;
    return;
  }
  if (!reply_options_.logprobs && !reply_options_.token_ids) delta.tokens.clear();
  const Usage now = record_.usage();
  const auto* prompt_ids = first && request_.return_token_ids ? &prompt.prepared.ids : nullptr;
  if (!delta.empty() || prompt_ids) send(writer_->delta(index, delta, now, prompt_ids));
  if (!decoder.finished() || state_ != State::kRunning) return;
  send(writer_->finish(index, decoder.finish_reason(), decoder.stop_reason(), now));
  choice.stage = Stage::kReported;
}

// The prompt goes out in chunks of its own, with its logprobs if they were asked for. A long one is made on a worker,
// and what was generated meanwhile waits.
void GenerationJob::start_echo(size_t prompt_index, size_t choice_index) {
  record_.choice(prompt_index, choice_index).stage = Choice::Stage::kEchoing;
  echoes_.emplace_back(prompt_index, choice_index);
  if (pump_->idle()) next_echo();
}

void GenerationJob::next_echo() {
  while (!echoes_.empty() && state_ == State::kRunning) {
    const auto [prompt_index, choice_index] = echoes_.front();
    echoes_.pop_front();
    const PreparedPrompt& prompt = record_.prompt(prompt_index).prepared;
    const TokenRecords tokens = reply_options_.logprobs ? TokenRecords(prompt.records) : TokenRecords();
    TextSource source =
        writer_->echo(record_.index_of(prompt_index, choice_index), prompt.text, tokens, record_.usage());
    Choice& choice = record_.choice(prompt_index, choice_index);
    if (tokens.size() > kLargeTokens || prompt.text.size() > kPieceBytes) {
      auto self = shared_from_this();  // the source refers to what the job owns
      return pump_->start([self, source = std::move(source)](std::string& out) { return source(out); },
                          [self, &choice] {
                            choice.stage = Choice::Stage::kEchoed;
                            self->next_echo();
                            self->deliver();
                          });
    }
    send(all_of(source));
    choice.stage = Choice::Stage::kEchoed;
  }
}

size_t GenerationJob::held_prompt_bytes() const {
  size_t bytes = record_.held_bytes();
  for (const PromptInput& input : request_.prompts) {
    const auto* text = std::get_if<std::string>(&input);
    bytes += text ? text->capacity() : std::get<std::vector<int32_t>>(input).capacity() * sizeof(int32_t);
  }
  return bytes;
}

void GenerationJob::complete() {
  const std::string_view finish = record_.finish_reason();
  if (finish == kAborted && dialect_.pooling != Pooling::kNone) {  // half a vector is none
    ApiError cancelled = ApiError::unavailable("The request was cancelled.", "cancelled", 0);
    cancelled.final = true;
    return fail(cancelled);
  }
  call_->log.finish = finish;
  if (writer_) {
    send(writer_->end(record_.usage()));
    finish_log(200);
    return end();
  }
  const auto [tokens, bytes] =
      record_.reply_size(reply_options_.logprobs || reply_options_.token_ids || request_.prompt_logprobs);
  if (tokens <= kLargeTokens && bytes <= kPieceBytes) {
    finish_log(0);
    end();
    return call_->reply({.body = all_of(reply_source()), .headers = reply_headers()});
  }
  state_ = State::kReplying;
  inbox_.close();
  open_body({.content_type = "application/json", .headers = reply_headers()});
  pump_->start(reply_source(), [self = shared_from_this()] {
    self->finish_log(200);
    self->end();
  });
}

// Refers to what the job owns, and keeps it alive.
TextSource GenerationJob::reply_source() {
  if (const auto times = inbox_.token_times()) meta_.first_token = times->first;
  std::shared_ptr<ReplyWriter> writer = make_writer();
  TextSource source = writer->reply(record_.replies(request_, reply_options_), record_.usage());
  return [self = shared_from_this(), writer, source = std::move(source)](std::string& out) { return source(out); };
}

// Nothing was sent yet, or a stream is open.
void GenerationJob::fail(const ApiError& error) {
  if (state_ != State::kRunning) return;
  cancel_engine_requests();
  call_->log.finish = "error";
  if (!writer_) {
    finish_log(0);
    end();
    return call_->reply(error);
  }
  send(writer_->error(error));
  call_->log.error = error.message;
  finish_log(200);
  end();
}

void GenerationJob::client_left() {
  if (state_ == State::kEnded) return;
  cancel_engine_requests();
  context_.metrics.disconnects.fetch_add(1, std::memory_order_relaxed);
  call_->log.finish = kAborted;
  call_->log.error = "the client left";
  finish_log(499);
  end();
}

// While the reader is behind, nothing more is computed or put together for it.
void GenerationJob::on_pressure(bool full) {
  for (const Prompt& prompt : record_.prompts()) {
    if (prompt.engine_id.empty()) continue;
    if (full) {
      model_.engine.pause(prompt.engine_id);
    } else {
      model_.engine.resume(prompt.engine_id);
    }
  }
  if (!full) pump_->drained();
}

// What is buffered, and the error behind it, still leaves if the client wakes up within another --stall-timeout.
void GenerationJob::stalled() {
  const std::string message =
      fmt::format("The client took nothing for {:g} s (--stall-timeout).", context_.config.stall_timeout_s);
  if (state_ == State::kRunning) return fail(ApiError::timeout(message, false));
  // Half a JSON text cannot say so; a connection that breaks off does.
  call_->log.error = message;
  finish_log(200);
  const auto stream = std::exchange(stream_, nullptr);
  end();
  stream->abort();
}

// status 0: the reply itself writes the line.
void GenerationJob::finish_log(int status) {
  const Usage total = record_.usage();
  RequestLog& log = call_->log;
  log.prompt_tokens = total.prompt_tokens;
  log.cached_tokens = total.cached_tokens;
  log.generated_tokens = total.completion_tokens;
  if (const auto times = inbox_.token_times()) {
    log.ttft_ms = milliseconds_between(call_->started, times->first);
    log.decode_ms = milliseconds_between(times->first, times->second);
  }
  if (status == 0) return;
  log.status = status;
  log.id = call_->request_id;
  log.method = call_->method;
  log.path = call_->path;
  log.total_ms = milliseconds_between(call_->started, Clock::now());
  log.write();
}

void GenerationJob::end() {
  state_ = State::kEnded;
  inbox_.close();
  if (pump_) pump_->stop();
  echoes_.clear();
  if (close_ticket_ != 0) call_->forget(std::exchange(close_ticket_, 0));
  if (stream_) stream_->close();
  leave();
}

}  // namespace bam
