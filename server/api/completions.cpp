// The loop's half of a generation: from engine events to the reply.
#include "server/api/completions.h"

#include <algorithm>

#include "base/log.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

// Replies with more tokens than this are put together on a worker: it takes long enough to delay other streams.
constexpr size_t kLargeReplyTokens = 4096;

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

void start_generation(ServerContext& context, std::shared_ptr<Exchange> exchange, ApiKind kind) {
  if (!exchange->is_open()) return;
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  exchange->log.is_generation = true;
  auto json = parse_json_object(exchange->body);
  exchange->drop_body();
  if (!json) return exchange->reply(json.error());
  auto request = parse_generation_request(*json, kind, model.defaults);
  *json = Json();
  if (!request) return exchange->reply(request.error());
  std::make_shared<GenerationJob>(context, model, std::move(exchange), *std::move(request))->start();
}

}  // namespace

void handle_completions(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  start_generation(context, std::move(exchange), ApiKind::kCompletion);
}

void handle_chat_completions(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  start_generation(context, std::move(exchange), ApiKind::kChat);
}

void GenerationJob::cancel() {
  exchange_->loop()->queueInLoop([job = shared_from_this()] {
    job->cancel_requested_ = true;
    if (job->opened_ && !job->ended_) job->cancel_engine_requests();
  });
}

void GenerationJob::cancel_engine_requests() {
  for (const Prompt& prompt : prompts_) {
    if (prompt.submitted) model_.engine.cancel(prompt.engine_id);
  }
}

void GenerationJob::open() {
  opened_ = true;
  if (!exchange_->is_open()) return client_left();
  close_ticket_ = exchange_->connection()->on_close([weak = weak_from_this()] {
    if (auto job = weak.lock()) job->client_left();
  });
  if (cancel_requested_) cancel_engine_requests();
  if (request_.stream) {
    writer_ = std::make_unique<ChunkWriter>(model_.tokenizer, meta_, reply_options_, request_.include_usage);
    SseStream::Callbacks callbacks;
    callbacks.on_pressure = [weak = weak_from_this()](bool full) {
      if (auto job = weak.lock()) job->pause(full);
    };
    callbacks.on_stalled = [weak = weak_from_this()] {
      if (auto job = weak.lock()) job->stalled();
    };
    stream_ = std::make_shared<SseStream>(context_, exchange_, std::move(callbacks));
    std::vector<std::pair<std::string, std::string>> headers;
    if (!request_.ignored_fields.empty()) headers.emplace_back("x-ignored-fields", join(request_.ignored_fields));
    stream_->open(headers);
    if (request_.kind == ApiKind::kChat) {
      for (int32_t i = 0; i < request_.n; ++i) stream_->send(writer_->role(i));
    }
  }
  drain_inbox();
}

void GenerationJob::drain_inbox() {
  std::vector<std::pair<size_t, Event>> events;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!opened_) return;  // open() comes back; until then the inbox stays scheduled
    events.swap(inbox_);
    inbox_scheduled_ = false;
  }
  std::vector<bool> touched(prompts_.size(), false);
  for (auto& [prompt, event] : events) {
    if (ended_) return;
    touched[prompt] = true;
    on_event(prompt, std::move(event));
  }
  for (size_t i = 0; i < prompts_.size() && !ended_; ++i) {
    if (touched[i]) deliver(i);
  }
  if (!ended_ && all_reported()) complete();
}

void GenerationJob::on_event(size_t prompt_index, Event&& event) {
  Prompt& prompt = prompts_[prompt_index];
  if (auto* token = std::get_if<TokenEvent>(&event)) {
    prompt.choices[static_cast<size_t>(token->choice)].decoder->push(token->token, std::move(token->logprobs));
  } else if (auto* progress = std::get_if<ProgressEvent>(&event)) {
    prompt.cached_tokens = std::max(prompt.cached_tokens, progress->cached);
    if (stream_ && request_.return_progress) stream_->send(writer_->progress(*progress));
  } else if (auto* logprobs = std::get_if<PromptLogprobsEvent>(&event)) {
    for (size_t i = 0; i < logprobs->logprobs.size(); ++i) {
      const size_t position = static_cast<size_t>(logprobs->first) + i;
      if (position < prompt.records.size()) prompt.records[position].logprobs = std::move(logprobs->logprobs[i]);
    }
  } else if (auto* finish = std::get_if<FinishEvent>(&event)) {
    on_finish(prompt, *finish);
  }
}

void GenerationJob::on_finish(Prompt& prompt, const FinishEvent& finish) {
  prompt.cached_tokens = std::max(prompt.cached_tokens, finish.cached_tokens);
  ChoiceDecoder& decoder = *prompt.choices[static_cast<size_t>(finish.choice)].decoder;
  if (decoder.finished()) return;  // it met a stop string before
  if (finish.reason == FinishReason::kTimeout) {
    fail(ApiError::timeout(finish.message.empty() ? "The request took too long." : finish.message));
  } else if (finish.reason == FinishReason::kError) {
    log::error("request {}: {}", prompt.engine_id, finish.message);
    fail(ApiError::internal(finish.message.empty() ? "The engine failed on this request." : finish.message));
  } else {
    decoder.finish(finish.reason);
  }
}

void GenerationJob::deliver(size_t prompt_index) {
  Prompt& prompt = prompts_[prompt_index];
  for (size_t k = 0; k < prompt.choices.size(); ++k) {
    Choice& choice = prompt.choices[k];
    if (choice.reported) continue;
    // The engine knows nothing of stop strings.
    if (choice.decoder->stopped()) model_.engine.stop(prompt.engine_id, static_cast<int32_t>(k));
    deliver_choice(prompt, prompt_index, k);
  }
}

void GenerationJob::deliver_choice(Prompt& prompt, size_t prompt_index, size_t choice_index) {
  Choice& choice = prompt.choices[choice_index];
  ChoiceDecoder& decoder = *choice.decoder;
  if (decoder.num_tokens() == 0 && !decoder.finished()) return;
  const auto index = static_cast<int32_t>(prompt_index * static_cast<size_t>(request_.n) + choice_index);
  ChoiceDelta delta = decoder.take();
  const bool finished = decoder.finished();
  if (!stream_) {
    choice.collected.text += delta.text;
    std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(choice.collected.tokens));
    choice.reported = finished;
    return;
  }
  const bool with_tokens = reply_options_.logprobs || reply_options_.token_ids;
  if (!with_tokens) delta.tokens.clear();
  const bool first = !std::exchange(choice.echoed, true);
  if (first && request_.echo) {
    // The prompt goes out as a chunk of its own, with its logprobs if they were asked for.
    ChoiceDelta echo{prompt.text, {}};
    if (reply_options_.logprobs) echo.tokens = prompt.records;
    ReplyOptions options = reply_options_;
    options.token_ids = false;
    stream_->send(ChunkWriter(model_.tokenizer, meta_, options, request_.include_usage).delta(index, echo, nullptr));
  }
  const Usage now = usage();
  const Usage* shown = request_.continuous_usage_stats ? &now : nullptr;
  const auto* prompt_ids = first && request_.return_token_ids ? &prompt.ids : nullptr;
  if (!delta.empty() || prompt_ids) stream_->send(writer_->delta(index, delta, shown, prompt_ids));
  if (finished) {
    stream_->send(writer_->finish(index, decoder.finish_reason(), decoder.stop_reason(), shown));
    choice.reported = true;
  }
}

bool GenerationJob::all_reported() const {
  for (const Prompt& prompt : prompts_) {
    for (const Choice& choice : prompt.choices) {
      if (!choice.reported) return false;
    }
  }
  return true;
}

Usage GenerationJob::usage() const {
  Usage usage;
  for (const Prompt& prompt : prompts_) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    usage.cached_tokens += prompt.cached_tokens;
    for (const Choice& choice : prompt.choices) usage.completion_tokens += choice.decoder->num_tokens();
  }
  return usage;
}

void GenerationJob::complete() {
  exchange_->log.finish = prompts_.front().choices.front().decoder->finish_reason();
  if (stream_) {
    if (request_.include_usage) stream_->send(writer_->usage(usage()));
    stream_->send(ChunkWriter::done());
    finish_log(200);
    end();
    return;
  }
  finish_log(0);
  size_t tokens = 0;
  for (const Prompt& prompt : prompts_) {
    tokens += prompt.records.size();
    for (const Choice& choice : prompt.choices) tokens += choice.collected.tokens.size();
  }
  auto self = shared_from_this();
  const bool detailed = reply_options_.logprobs || reply_options_.token_ids || request_.prompt_logprobs;
  end();
  if (!detailed || tokens <= kLargeReplyTokens ||
      !context_.workers.submit(WorkerPool::Lane::kLarge, [self] { self->send_reply(); })) {
    send_reply();
  }
}

void GenerationJob::send_reply() {
  std::vector<ChoiceReply> choices;
  for (Prompt& prompt : prompts_) {
    for (Choice& choice : prompt.choices) {
      ChoiceReply& reply = choices.emplace_back();
      reply.index = static_cast<int32_t>(choices.size()) - 1;
      reply.text = (request_.echo ? prompt.text : std::string()) + choice.collected.text;
      if (request_.echo && reply_options_.logprobs) {
        reply.tokens = prompt.records;
        reply.num_echoed = reply.tokens.size();
      }
      std::move(choice.collected.tokens.begin(), choice.collected.tokens.end(), std::back_inserter(reply.tokens));
      reply.finish_reason = choice.decoder->finish_reason();
      reply.stop_reason = choice.decoder->stop_reason();
      if (request_.prompt_logprobs) reply.prompt_logprobs = &prompt.records;
      if (request_.return_token_ids) reply.prompt_ids = &prompt.ids;
    }
  }
  HttpReply reply;
  reply.body = dump_json(reply_json(model_.tokenizer, meta_, reply_options_, choices, usage()));
  if (!request_.ignored_fields.empty()) {
    reply.headers.emplace_back("x-ignored-fields", join(request_.ignored_fields));
  }
  exchange_->reply(std::move(reply));
}

void GenerationJob::fail(const ApiError& error) {
  if (ended_) return;
  cancel_engine_requests();
  exchange_->log.finish = "error";
  if (stream_) {
    stream_->send(ChunkWriter::error(error));
    stream_->send(ChunkWriter::done());
    exchange_->log.error = error.message;
    finish_log(200);
    end();
    return;
  }
  finish_log(0);
  end();
  exchange_->reply(error);
}

void GenerationJob::client_left() {
  if (ended_) return;
  cancel_engine_requests();
  context_.metrics.disconnects.fetch_add(1, std::memory_order_relaxed);
  exchange_->log.finish = "abort";
  exchange_->log.error = "the client left";
  finish_log(499);
  end();
}

// The reader is behind: nothing more is computed for it until it has caught up.
void GenerationJob::pause(bool full) {
  for (const Prompt& prompt : prompts_) {
    if (!prompt.submitted) continue;
    if (full) {
      model_.engine.pause(prompt.engine_id);
    } else {
      model_.engine.resume(prompt.engine_id);
    }
  }
}

// What is buffered, and the error behind it, still leaves if the client wakes up within another --stall-timeout.
void GenerationJob::stalled() {
  fail(ApiError::timeout(fmt::format("The client took nothing for {:g} s (--stall-timeout).",
                                     context_.config.stall_timeout_s)));
}

// status 0: the reply itself writes the line.
void GenerationJob::finish_log(int status) {
  const Usage total = usage();
  RequestLog& log = exchange_->log;
  log.prompt_tokens = total.prompt_tokens;
  log.cached_tokens = total.cached_tokens;
  log.generated_tokens = total.completion_tokens;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (first_token_) {
      log.ttft_ms = milliseconds_between(exchange_->started, *first_token_);
      log.decode_ms = milliseconds_between(*first_token_, *last_token_);
    }
  }
  if (status == 0) return;
  log.status = status;
  log.id = exchange_->request_id;
  log.method = exchange_->method;
  log.path = exchange_->path;
  log.total_ms = milliseconds_between(exchange_->started, Clock::now());
  log.write();
}

void GenerationJob::end() {
  ended_ = true;
  abandoned_.store(true, std::memory_order_release);
  if (close_ticket_ != 0) exchange_->connection()->forget(close_ticket_);
  if (stream_) stream_->close();
  if (registered_) context_.jobs.remove(caller().tenant, meta_.id, exchange_->request_id);
  registered_ = false;
}

}  // namespace bam
