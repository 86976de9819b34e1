#include "app/passkey_selftest.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/client/passkey_prompt.h"
#include "server/api/event_inbox.h"
#include "server/api/json_body.h"

namespace bam {

namespace {

constexpr size_t kMaxTrials = 20;
constexpr int64_t kAnswerRoom = 16;  // tokens of the context that the prompt leaves free

struct PasskeySettings {
  int64_t length = 0;
  std::vector<double> depths = {0.1, 0.5, 0.9};
  uint64_t seed = 1;
};

ApiResult<PasskeySettings> read_settings(const ServingModel& model, const Json& body) {
  PasskeySettings settings;
  FieldReader fields(body);
  const int64_t room = std::max<int64_t>(model.engine.config().max_model_len - kAnswerRoom, 1);
  settings.length = fields.integer("length", 1, room).value_or(std::min<int64_t>(1024, room));
  settings.seed = static_cast<uint64_t>(fields.integer("seed", 0, INT64_MAX).value_or(1));
  if (const Json* list = fields.array("depths", kMaxTrials)) {
    settings.depths.clear();
    for (const Json& entry : *list) {
      const double depth = entry.is_number() ? entry.get<double>() : -1;
      if (!(depth >= 0 && depth <= 1)) fields.fail("depths", "'depths' must hold numbers between 0 and 1.");
      settings.depths.push_back(depth);
    }
    if (settings.depths.empty()) fields.fail("depths", "'depths' is empty.");
  }
  if (!fields.ok()) return ApiError::invalid(fields.error());
  return settings;
}

// One prompt after the other. A worker makes each; what the engine says about it is read on the connection's thread.
class PasskeySelftest : public LiveJob, public std::enable_shared_from_this<PasskeySelftest> {
 public:
  PasskeySelftest(ServerContext& context, const ServingModel& model, CallPtr call, PasskeySettings settings)
      : context_(context),
        model_(model),
        call_(std::move(call)),
        settings_(std::move(settings)),
        id_("passkey-" + call_->request_id) {}

  // Worker.
  void start() {
    entered_ = context_.jobs.add(call_->caller.tenant, id_, call_->request_id, shared_from_this());
    if (!entered_) {
      return call_->reply(ApiError::invalid(fmt::format("A request with the id '{}' is running.", call_->request_id),
                                            "request_id", "duplicate_request_id"));
    }
    call_->post([self = shared_from_this()] {
      if (!self->call_->is_open()) return self->end();
      self->close_ticket_ = self->call_->on_close([weak = self->weak_from_this()] {
        if (auto selftest = weak.lock()) selftest->end();
      });
    });
    make_prompt();
  }

  const std::string& id() const override { return id_; }
  // Any thread.
  void cancel() override {
    call_->post([self = shared_from_this()] {
      ApiError error = ApiError::invalid("The self test was cancelled.", "", "cancelled");
      error.status = 409;
      self->fail(error);
    });
  }

 private:
  class Sink : public EventSink {
   public:
    explicit Sink(std::shared_ptr<PasskeySelftest> selftest) : selftest_(std::move(selftest)) {}
    bool on_events(std::vector<Event>&& events) override {
      const EventInbox::Pushed pushed = selftest_->inbox_.push(0, std::move(events));
      if (pushed == EventInbox::Pushed::kWake) {
        selftest_->call_->post([selftest = selftest_] { selftest->on_wake(); });
      }
      return pushed != EventInbox::Pushed::kClosed;
    }

   private:
    std::shared_ptr<PasskeySelftest> selftest_;
  };

  // Worker: prompts of half a million tokens take a while to put together.
  void make_prompt() {
    bool out_of_memory = false;
    Result<client::PasskeyPrompt> prompt = [&]() -> Result<client::PasskeyPrompt> {
      try {
        const client::PieceEncoder encoder(
            [this](std::string_view text) { return model_.tokenizer.encode(text, false); });
        const double depth = settings_.depths[trial_];
        const std::string key = client::make_passkey(settings_.seed, settings_.length, depth, 0);
        return client::make_passkey_prompt(encoder, settings_.length, depth, key);
      } catch (const Error& error) {
        return error;
      } catch (const std::bad_alloc&) {
        out_of_memory = true;
        return Error(std::string());
      }
    }();
    if (out_of_memory)
      return call_->post([self = shared_from_this()] {
        self->fail(ApiError::unavailable("The server is out of memory.", "out_of_memory", 1));
      });
    call_->post([self = shared_from_this(), prompt = std::move(prompt)]() mutable { self->ask(std::move(prompt)); });
  }

  // From here on: the connection's thread.
  void ask(Result<client::PasskeyPrompt> prompt) {
    if (ended_) return;
    if (!prompt) return fail(ApiError::invalid(prompt.error().what(), "length"));
    key_ = prompt->key;
    answer_.clear();
    Request request;
    request.id = LiveJobs::engine_name(call_->caller.tenant, fmt::format("{}#{}", id_, trial_));
    request.prompt = std::move(prompt->ids);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = prompt->max_tokens;
    if (context_.config.cache_salt_per_key) request.cache_salt = "#" + call_->caller.tenant;
    engine_id_ = request.id;
    asked_ = Clock::now();
    first_token_.reset();
    const SubmitResult result = model_.engine.submit(std::move(request), std::make_shared<Sink>(shared_from_this()));
    if (result.status == SubmitStatus::kQueueFull) {
      fail(ApiError::queue_full(result.message, result.retry_after_s));
    } else if (result.status != SubmitStatus::kAccepted) {
      fail(ApiError::invalid(result.message, "length"));
    }
  }

  void on_wake() {
    for (EventInbox::Entry& entry : inbox_.take()) {
      if (ended_) return;
      if (const auto* token = std::get_if<TokenEvent>(&entry.event)) {
        if (!first_token_) first_token_ = Clock::now();
        answer_.push_back(token->token);
      } else if (const auto* finish = std::get_if<FinishEvent>(&entry.event)) {
        on_finish(*finish);
      }
    }
  }

  void on_finish(const FinishEvent& finish) {
    if (finish.reason == FinishReason::kError) return fail(ApiError::internal(finish.message));
    if (finish.reason == FinishReason::kCancelled) return cancel();  // the engine was told to drop everything
    const std::string answer = model_.tokenizer.decode(answer_);
    const bool hit = client::is_passkey_hit(answer, key_);
    hits_ += hit ? 1 : 0;
    const double ttft_ms = first_token_ ? std::chrono::duration<double, std::milli>(*first_token_ - asked_).count() : 0;
    results_.push_back({{"depth", settings_.depths[trial_]},
                        {"key", key_},
                        {"answer", answer},
                        {"hit", hit},
                        {"prompt_tokens", finish.prompt_tokens},
                        {"cached_tokens", finish.cached_tokens},
                        {"ttft_ms", std::round(ttft_ms * 10) / 10}});
    if (++trial_ < settings_.depths.size()) {
      const auto next = [self = shared_from_this()] { self->make_prompt(); };
      if (!context_.workers.submit(Workers::Lane::kLarge, next)) {
        fail(ApiError::unavailable("Too many requests are being parsed.", "overloaded", 1));
      }
      return;
    }
    const auto trials = results_.size();
    std::string json = dump_json({{"length", settings_.length},
                                  {"hits", hits_},
                                  {"trials", trials},
                                  {"accuracy", static_cast<double>(hits_) / static_cast<double>(trials)},
                                  {"results", std::move(results_)}});
    end();
    call_->reply_json(std::move(json));
  }

  void fail(const ApiError& error) {
    if (ended_) return;
    end();
    call_->reply(error);
  }

  void end() {
    if (std::exchange(ended_, true)) return;
    inbox_.close();
    if (!engine_id_.empty()) model_.engine.cancel(engine_id_);
    if (close_ticket_ != 0) call_->forget(std::exchange(close_ticket_, 0));
    if (std::exchange(entered_, false)) context_.jobs.remove(call_->caller.tenant, id_, call_->request_id);
  }

  ServerContext& context_;
  const ServingModel& model_;
  const CallPtr call_;
  const PasskeySettings settings_;
  const std::string id_;
  EventInbox inbox_;
  uint64_t close_ticket_ = 0;
  bool entered_ = false;  // its names are in context_.jobs
  bool ended_ = false;
  size_t trial_ = 0;
  std::string key_, engine_id_;
  std::vector<int32_t> answer_;
  Clock::time_point asked_;
  std::optional<Clock::time_point> first_token_;
  int64_t hits_ = 0;
  Json results_ = Json::array();
};

}  // namespace

void run_passkey_selftest(ServerContext& context, CallPtr call) {
  const ServingModel& model = *context.model.load(std::memory_order_acquire);
  Json body = Json::object();
  if (!call->body.empty()) {
    auto parsed = parse_json_object(call->body);
    if (!parsed) return call->reply(parsed.error());
    body = *std::move(parsed);
    call->drop_body();
  }
  auto settings = read_settings(model, body);
  if (!settings) return call->reply(settings.error());
  std::make_shared<PasskeySelftest>(context, model, std::move(call), *std::move(settings))->start();
}

}  // namespace bam
