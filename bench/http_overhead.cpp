// What the HTTP layer costs: the same requests to an engine in this process and to `bam serve`, in turn.
//
//   http_overhead --model DIR --bam build/bam [--streams 1,16,64,256] [--tokens 64] [--requests 1000] [--rounds 3]
//
// First every stream's token ids are compared with the engine's: none may be lost, doubled or different. Then both are
// timed. Wall-clock times of a busy machine vary; CPU time per token is what the layer itself adds.
#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "bench/support/http_client.h"
#include "bench/support/runner.h"
#include "bench/support/server_process.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/bam.h"
#include "models/weights.h"

namespace bam::bench {
namespace {

constexpr int64_t kMaxStreams = 256;
constexpr int64_t kPromptTokens = 8;

struct Options {
  std::string model = "checkpoints/demo", program = "build/bam";
  std::vector<int64_t> streams{1, 16, 64, 256};
  int64_t tokens = 64, requests = 1000, concurrency = 16;
  int rounds = 3, threads = 0;
};

struct Measured {
  double seconds = 0, cpu_seconds = 0;
  double first_token_ms = 0, gap_ms = 0;  // medians over the requests
};

std::vector<int32_t> prompt_of(int64_t index, int64_t vocab) {
  return random_tokens(kPromptTokens, vocab, static_cast<uint64_t>(index) + 1);
}

double cpu_seconds_of_this_process() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Measured summarize(const std::vector<Reply>& replies, double seconds, double cpu_seconds) {
  std::vector<double> first, gaps;
  for (const Reply& reply : replies) {
    first.push_back(1e3 * (reply.first_token_s - reply.sent_s));
    if (reply.num_tokens > 1) {
      gaps.push_back(1e3 * (reply.last_token_s - reply.first_token_s) / static_cast<double>(reply.num_tokens - 1));
    }
  }
  return {seconds, cpu_seconds, median(first), gaps.empty() ? 0 : median(gaps)};
}

// The engine without a server around it. Requests follow each other as soon as one of `concurrency` ends.
class DirectEngine {
 public:
  explicit DirectEngine(const Options& options) : backend_(make_cpu_backend({options.threads})) {
    EngineConfig config;
    config.kv_memory_bytes = 512ull << 20;
    config.max_num_seqs = kMaxStreams;
    const ModelConfig model_config = load_model_config(options.model);
    ModelOptions model_options;
    model_options.max_rows = config.max_batched_tokens;
    model_options.max_logit_rows = kMaxStreams;
    CheckpointWeights weights = load_weights(options.model, model_config);
    engine_ = std::make_unique<Engine>(
        std::make_unique<BamModel>(*backend_, model_config, std::move(weights), model_options), config, 0);
  }

  int64_t vocab() const { return engine_->model_config().vocab_size; }

  std::vector<Reply> run(int64_t concurrency, int64_t requests, int64_t tokens) {
    std::vector<Reply> replies(static_cast<size_t>(requests));
    Shared shared;
    for (int64_t next = 0; next < requests; ++next) {
      std::unique_lock lock(shared.mutex);
      shared.ended.wait(lock, [&] { return shared.running < concurrency; });
      ++shared.running;
      lock.unlock();
      submit(next, tokens, replies[static_cast<size_t>(next)], shared);
    }
    std::unique_lock lock(shared.mutex);
    shared.ended.wait(lock, [&] { return shared.running == 0; });
    return replies;
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable ended;
    int64_t running = 0;
  };

  class Sink : public EventSink {
   public:
    Sink(Reply& reply, Shared& shared) : reply_(reply), shared_(shared) {}
    bool on_events(std::vector<Event>&& events) override {
      bool done = false;
      for (const Event& event : events) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) reply_.add_token(token->token, now_seconds());
        done |= std::holds_alternative<FinishEvent>(event);
      }
      if (done) {
        const std::lock_guard lock(shared_.mutex);
        --shared_.running;
        shared_.ended.notify_all();
      }
      return true;
    }

   private:
    Reply& reply_;
    Shared& shared_;
  };

  void submit(int64_t index, int64_t tokens, Reply& reply, Shared& shared) {
    Request request;
    request.id = fmt::format("direct-{}", serial_++);
    request.prompt = prompt_of(index, vocab());
    request.sampling.max_tokens = tokens;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    reply.sent_s = now_seconds();
    const SubmitResult result = engine_->submit(std::move(request), std::make_shared<Sink>(reply, shared));
    if (result.status != SubmitStatus::kAccepted) throw Error("{}", result.message);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Engine> engine_;
  int64_t serial_ = 0;
};

std::string body_of(int64_t index, int64_t vocab, int64_t tokens, bool ids) {
  return fmt::format(
      R"({{"prompt":[{}],"max_tokens":{},"temperature":0,"ignore_eos":true,"stream":true,"return_token_ids":{},)"
      R"("stream_options":{{"include_usage":true}}}})",
      fmt::join(prompt_of(index, vocab), ","), tokens, ids);
}

class Comparison {
 public:
  explicit Comparison(const Options& options)
      : options_(options),
        direct_(options),
        server_(options.program,
                {"serve", "--model", options.model, "--port", "0", "--kv-memory", "512MiB", "--max-num-seqs",
                 std::to_string(kMaxStreams), "--threads", std::to_string(options.threads)}) {}

  // Token by token the same, and as many as asked for.
  void verify(int64_t streams) {
    const std::vector<Reply> expected = direct_.run(streams, streams, options_.tokens);
    const std::vector<Reply> got = over_http(streams, streams, options_.tokens, true);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (got[i].tokens != expected[i].tokens || got[i].num_tokens != options_.tokens) {
        throw Error("stream {} of {}: {} tokens over HTTP, {} from the engine, or not the same ones", i, streams,
                    got[i].tokens.size(), expected[i].tokens.size());
      }
    }
  }

  void report(int64_t concurrency, int64_t requests, int64_t tokens) {
    std::map<std::string, std::vector<double>> samples;
    for (int round = 0; round < options_.rounds; ++round) {
      const Measured direct =
          measure([&] { return direct_.run(concurrency, requests, tokens); }, cpu_seconds_of_this_process);
      const Measured http = measure([&] { return over_http(concurrency, requests, tokens, false); },
                                    [&] { return server_.cpu_seconds(); });
      samples["direct"].push_back(direct.seconds);
      samples["http"].push_back(http.seconds);
      samples["direct cpu"].push_back(direct.cpu_seconds);
      samples["http cpu"].push_back(http.cpu_seconds);
      samples["first"].push_back(http.first_token_ms - direct.first_token_ms);
      samples["direct gap"].push_back(direct.gap_ms);
      samples["http gap"].push_back(http.gap_ms);
    }
    const auto mid = [&](const char* name) { return median(samples[name]); };
    const double total = static_cast<double>(requests * tokens), count = static_cast<double>(requests);
    const double cpu_us = 1e6 / total;
    std::printf(
        "%7lld %8lld %6lld | %9.0f %9.0f | %8.0f %8.0f | %7.3f %7.3f %+8.3f | %6.1f %6.1f %+7.1f | %+8.2f | %7.1f\n",
        static_cast<long long>(concurrency), static_cast<long long>(requests), static_cast<long long>(tokens),
        total / mid("direct"), total / mid("http"), count / mid("direct"), count / mid("http"), mid("direct gap"),
        mid("http gap"), mid("http gap") - mid("direct gap"), cpu_us * mid("direct cpu"), cpu_us * mid("http cpu"),
        cpu_us * (mid("http cpu") - mid("direct cpu")), mid("first"),
        static_cast<double>(server_.resident_bytes()) / (1 << 20));
    std::fflush(stdout);
  }

 private:
  std::vector<Reply> over_http(int64_t concurrency, int64_t requests, int64_t tokens, bool ids) {
    std::vector<std::string> bodies;
    for (int64_t i = 0; i < requests; ++i) bodies.push_back(body_of(i, direct_.vocab(), tokens, ids));
    std::vector<Reply> replies =
        run_streams(server_.port(), "/v1/completions", bodies, static_cast<size_t>(concurrency));
    for (size_t i = 0; i < replies.size(); ++i) {
      if (replies[i].num_tokens != tokens)
        throw Error("request {}: {} of {} tokens came", i, replies[i].num_tokens, tokens);
    }
    return replies;
  }

  template <typename Run, typename Cpu>
  static Measured measure(Run run, Cpu cpu) {
    const double cpu_before = cpu(), before = now_seconds();
    const std::vector<Reply> replies = run();
    return summarize(replies, now_seconds() - before, cpu() - cpu_before);
  }

  const Options& options_;
  DirectEngine direct_;
  ServerProcess server_;
};

int run(int argc, char** argv) {
  Options options;
  CLI::App app("The HTTP layer against the engine alone");
  app.add_option("--model", options.model, "checkpoint folder")->capture_default_str();
  app.add_option("--bam", options.program, "the program to measure")->capture_default_str();
  app.add_option("--streams", options.streams, "streams at once, at most 256")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMaxStreams));
  app.add_option("--tokens", options.tokens, "tokens per stream")->check(CLI::Range(2, 100000));
  app.add_option("--requests", options.requests, "one-token requests")->check(CLI::Range(1, 1000000));
  app.add_option("--rounds", options.rounds, "repetitions; medians are shown")->check(CLI::Range(1, 100));
  app.add_option("--threads", options.threads, "compute threads of each side; 0: all");
  CLI11_PARSE(app, argc, argv);

  Comparison comparison(options);
  for (const int64_t streams : options.streams) comparison.verify(streams);
  std::printf("same tokens over HTTP and from the engine for %s streams\n\n",
              fmt::format("{}", fmt::join(options.streams, ", ")).c_str());
  std::printf("%23s | %-19s | %-17s | %-24s | %-21s | %-8s | %s\n", "", "tokens/s", "requests/s", "ms between tokens",
              "CPU us per token", "1st tok.", "server");
  std::printf("%7s %8s %6s | %9s %9s | %8s %8s | %7s %7s %8s | %6s %6s %7s | %8s | %7s\n", "streams", "requests",
              "tokens", "direct", "HTTP", "direct", "HTTP", "direct", "HTTP", "added", "direct", "HTTP", "added",
              "added ms", "RSS MiB");
  for (const int64_t streams : options.streams) comparison.report(streams, streams, options.tokens);
  comparison.report(options.concurrency, options.requests, 1);
  return 0;
}

}  // namespace
}  // namespace bam::bench

int main(int argc, char** argv) { return bam::bench::run_program("bench_http_overhead", bam::bench::run, argc, argv); }
