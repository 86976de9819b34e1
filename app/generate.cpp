#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include <CLI/CLI.hpp>

#include "app/client/http_loop.h"
#include "app/client/terminal.h"
#include "app/commands.h"
#include "app/local_generation.h"
#include "app/option_flags.h"
#include "app/sampling_flags.h"
#include "app/units.h"
#include "models/model_config.h"
#include "server/jinja/chat_template.h"

namespace bam {

namespace {

constexpr int kInterruptedExitCode = 130;  // as shells report SIGINT

struct GenerateOptions {
  std::string prompt, file;
  bool has_prompt = false;
  bool chat = false;
  bool echo = false;
  bool quiet = false;
  SamplingWishes sampling;
  std::vector<std::string> stop;
};

std::string read_prompt(const GenerateOptions& options) {
  if (options.has_prompt) return options.prompt;
  if (!options.file.empty() && options.file != "-") {
    return read_text_file(options.file);
  }
  if (options.file.empty() && isatty(STDIN_FILENO)) {
    throw UsageError("give a prompt: bam generate \"Once upon a time\", -f FILE, or on stdin");
  }
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::vector<int32_t> tokenize(const LoadedModel& model, const GenerateOptions& options, const std::string& text) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (!options.chat) return tokenizer.encode(text, true, true);
  if (tokenizer.chat_template().empty()) throw Error("--chat: the checkpoint has no chat template");
  const auto compiled = ChatTemplate::compile(tokenizer.chat_template());
  if (!compiled) throw Error("--chat: {}", compiled.error().what());
  const auto rendered =
      compiled->render({{"user", text}}, {.bos_token = tokenizer.bos_token(), .eos_token = tokenizer.eos_token()});
  if (!rendered) throw Error("--chat: {}", rendered.error().what());
  return tokenizer.encode(*rendered, false, true);
}

int generate(const ModelSettings& settings, const GenerateOptions& options) {
  const std::string text = read_prompt(options);
  const LoadedModel model = load_model(settings);
  if (!options.quiet) {
    std::fprintf(stderr, "%s\n%s\n", model.description().c_str(), model.running_description().c_str());
  }
  Request request;
  request.id = "generate";
  request.prompt = tokenize(model, options, text);
  if (request.prompt.empty()) throw UsageError("the prompt is empty");
  request.sampling = with_defaults(options.sampling, model.defaults);
  DecodeOptions decode;
  decode.at_text_start = options.chat;
  decode.stop = options.stop;
  if (!options.sampling.ignore_eos) decode.eos_ids = decode.stop_ids = model.engine->model_config().eos_token_ids;

  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const auto write_out = [terminal](const std::string& piece) {
    const std::string shown = terminal ? for_terminal(piece) : piece;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  };
  client::ReadingLine reading(!options.quiet);
  bool begun = false;
  GenerationHooks hooks;
  hooks.on_progress = [&](const ReadingProgress& progress) { reading.show(progress.elapsed_ms, progress.line()); };
  hooks.on_text = [&](const std::string& piece) {
    reading.clear();
    if (!begun && options.echo) write_out(text);
    begun = true;
    write_out(piece);
  };
  const client::InterruptGuard guard;
  hooks.interrupted = client::InterruptGuard::interrupted;
  const GenerationStats stats = generate_locally(model, std::move(request), decode, hooks);
  std::fputc('\n', stdout);
  std::fflush(stdout);
  if (!options.quiet) std::fprintf(stderr, "%s\n", stats.line().c_str());
  return client::InterruptGuard::interrupted() ? kInterruptedExitCode : 0;
}

}  // namespace

int run_generate(int argc, char** argv) {
  CLI::App app("Generates text in the terminal, without a server.", "bam generate");
  GenerateOptions options;
  std::string positional;
  CLI::Option* prompt = app.add_option("-p,--prompt", options.prompt, "the prompt")->type_name("TEXT");
  CLI::Option* argument = app.add_option("PROMPT", positional, "the prompt, as -p")->type_name("")->excludes(prompt);
  app.add_option("-f,--file", options.file, "read the prompt from a file; - is stdin")
      ->type_name("FILE")
      ->excludes(prompt)
      ->excludes(argument);
  add_sampling_flags(app, &options.sampling);
  app.add_option("--stop", options.stop, "end before this text; may be given several times")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--chat", options.chat, "use the checkpoint's chat template");
  app.add_flag("--echo", options.echo, "print the prompt too");
  app.add_flag("-q,--quiet", options.quiet, "only the generated text");
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  app.footer(std::string(kSettingsHelp) +
             "\nExamples:\n"
             "  bam generate \"Once upon a time\" -n 64 --temperature 0\n"
             "  bam generate --model ./my-checkpoint -f prompt.txt --seed 7\n"
             "  echo Hello | bam generate --chat\n"
             "\nCtrl-C ends the text and prints the statistics.");
  return flags.run(app, argc, argv, [&](const ServeConfig& config) {
    if (argument->count() > 0) options.prompt = positional;
    options.has_prompt = prompt->count() + argument->count() > 0;
    ModelSettings settings = config.model;
    settings.engine.max_num_seqs = 1;
    return generate(settings, options);
  });
}

}  // namespace bam
