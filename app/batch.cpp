#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <thread>
#include <unordered_set>

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "app/option_flags.h"
#include "app/serve.h"
#include "base/log.h"
#include "server/api/batch_runner.h"
#include "server/http/worker_pool.h"

namespace bam {

namespace {

struct BatchFiles {
  std::string input, output;
};

// What an earlier run has finished. A last line that was cut off with its process is removed.
std::unordered_set<std::string> finished_ids(const std::string& path) {
  std::unordered_set<std::string> ids;
  std::ifstream in(path, std::ios::binary);
  if (!in) return ids;
  uint64_t whole = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); whole += line.size() + 1) {
    const auto json = parse_json(line);
    const Json id = json && json->is_object() ? json->value("custom_id", Json()) : Json();
    if (!id.is_string()) throw Error("{}: is no output of bam batch; give another file", path);
    ids.insert(id.get<std::string>());
  }
  in.close();
  if (std::filesystem::file_size(path) != whole) std::filesystem::resize_file(path, whole);
  return ids;
}

int run(const ServeConfig& config, const BatchFiles& files) {
  std::ifstream input(files.input, std::ios::binary);
  if (!input) throw UsageError("cannot read {}", files.input);
  const std::unordered_set<std::string> known = finished_ids(files.output);
  std::FILE* output = std::fopen(files.output.c_str(), "ab");
  if (!output) throw UsageError("cannot write {}", files.output);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const LoadedModel loaded = load_model(config.model);
  const std::unique_ptr<ServingModel> serving = make_serving_model(loaded);
  WorkerPool workers;
  ServerContext context(config.server, workers);
  context.version = BAM_VERSION;
  context.model.store(serving.get(), std::memory_order_release);
  BatchRunner runner(context, {.tenant = "", .admin = true},
                     static_cast<size_t>(2 * loaded.engine->config().max_num_seqs));

  std::atomic<bool> finished{false}, interrupted{false};
  std::thread waiter([&] {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0 || finished) return;
    interrupted = true;
    runner.stop();
    loaded.engine->cancel_all();
  });
  size_t skipped = 0, done = 0, failed = 0;
  bool write_failed = false;
  const auto next = [&]() -> std::optional<std::string> {
    for (std::string line; !write_failed && std::getline(input, line);) {
      if (is_blank_line(line)) continue;
      if (known.empty() || !known.contains(custom_id_of(line))) return line;
      ++skipped;
    }
    return std::nullopt;
  };
  runner.run(next, [&](const BatchRunner::Result& result) {
    const std::string line = result.line + "\n";
    write_failed =
        write_failed || std::fwrite(line.data(), 1, line.size(), output) != line.size() || std::fflush(output) != 0;
    ++(result.ok ? done : failed);
  });
  finished = true;
  pthread_kill(waiter.native_handle(), SIGTERM);
  waiter.join();
  std::fclose(output);
  workers.stop();
  if (write_failed) throw Error("cannot write {}", files.output);
  std::fprintf(stderr, "%zu done, %zu failed, %zu were there before%s\n", done, failed, skipped,
               interrupted ? "; interrupted: run it again to go on" : "");
  return interrupted || failed > 0 ? 1 : 0;
}

}  // namespace

int run_batch(int argc, char** argv) {
  CLI::App app("Answers the requests of a JSONL file, without a server.", "bam batch");
  BatchFiles files;
  app.add_option("INPUT", files.input,
                 "lines of {\"custom_id\", \"method\", \"url\", \"body\"}, as of OpenAI's batch API")
      ->required()
      ->type_name("IN.jsonl");
  app.add_option("OUTPUT", files.output, "a line for each request; what it has already is not done again")
      ->required()
      ->type_name("OUT.jsonl");
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  app.footer(
      "Replies come in the order in which they are ready; custom_id says which is which. A run that was ended goes on "
      "where it\n"
      "stopped when it is started again. Exit code 1: some requests failed; their lines say why.\n\n"
      "Examples:\n"
      "  bam batch prompts.jsonl replies.jsonl\n"
      "  bam batch --model ./my-checkpoint --kv-memory 8GiB prompts.jsonl replies.jsonl");
  return flags.run(app, argc, argv, [&](const ServeConfig& config) { return run(config, files); });
}

}  // namespace bam
