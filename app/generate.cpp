#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "app/model_setup.h"
#include "app/option_flags.h"
#include "app/queue_sink.h"
#include "base/log.h"
#include "models/model_config.h"
#include "server/api/choice_decoder.h"

namespace bam {

namespace {

struct GenerateOptions {
  std::string prompt, file;
  bool has_prompt = false;
  bool chat = false;
  bool echo = false;
  bool quiet = false;
  int64_t max_tokens = 128;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

std::string read_prompt(const GenerateOptions& options) {
  if (options.has_prompt) return options.prompt;
  if (!options.file.empty() && options.file != "-") {
    std::ifstream stream(options.file, std::ios::binary);
    if (!stream) throw UsageError("-f: cannot read {}", options.file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  if (options.file.empty() && isatty(STDIN_FILENO)) throw UsageError("give a prompt with -p, -f FILE or on stdin");
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

Request make_request(const LoadedModel& model, const GenerateOptions& options, std::vector<int32_t> prompt) {
  Request request;
  request.id = "generate";
  request.prompt = std::move(prompt);
  SamplingParams& sampling = request.sampling;
  sampling.temperature = options.temperature.value_or(model.defaults.temperature);
  sampling.top_p = options.top_p.value_or(model.defaults.top_p);
  sampling.top_k = options.top_k.value_or(model.defaults.top_k);
  sampling.min_p = options.min_p.value_or(model.defaults.min_p);
  sampling.repetition_penalty = options.repetition_penalty.value_or(model.defaults.repetition_penalty);
  sampling.seed = options.seed;
  sampling.max_tokens = options.max_tokens;
  sampling.ignore_eos = options.ignore_eos;
  return request;
}

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

int generate(const ModelSettings& settings, const GenerateOptions& options) {
  const std::string text = read_prompt(options);
  const LoadedModel model = load_model(settings);
  if (!options.quiet) std::fprintf(stderr, "%s\n", model.description().c_str());
  std::vector<int32_t> ids = tokenize(model, options, text);
  if (ids.empty()) throw UsageError("the prompt is empty");
  const int64_t limit = model.engine->config().max_model_len;
  if (static_cast<int64_t>(ids.size()) + options.max_tokens > limit) {
    throw Error("the context holds {} tokens; the prompt has {} and -n asks for {}", limit, ids.size(),
                options.max_tokens);
  }
  DecodeOptions decode;
  decode.at_text_start = options.chat;
  decode.stop = options.stop;
  if (!options.ignore_eos) decode.eos_ids = decode.stop_ids = model.engine->model_config().eos_token_ids;
  ChoiceDecoder decoder(*model.tokenizer, decode, 0);

  auto sink = std::make_shared<QueueSink>();
  const auto started = Clock::now();
  Clock::time_point first = started;
  const SubmitResult submitted = model.engine->submit(make_request(model, options, std::move(ids)), sink);
  if (submitted.status != SubmitStatus::kAccepted) throw Error("{}", submitted.message);
  if (options.echo) write_out(text);
  FinishEvent finish;
  while (true) {
    Event event = sink->next();
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (decoder.num_tokens() == 0) first = Clock::now();
      decoder.push(token->token, std::nullopt);
      if (decoder.stopped()) model.engine->stop("generate", 0);
    } else if (const auto* end = std::get_if<FinishEvent>(&event)) {
      finish = *end;
      decoder.finish(finish.reason);
      write_out(decoder.take().text);
      break;
    }
    write_out(decoder.take().text);
  }
  std::fputc('\n', stdout);
  if (finish.reason == FinishReason::kError) throw Error("{}", finish.message);
  if (!options.quiet) {
    const double prefill_ms = ms_between(started, first), decode_ms = ms_between(first, Clock::now());
    const int64_t read = finish.prompt_tokens - finish.cached_tokens;
    std::fprintf(stderr, "prompt %ld tokens in %.1f ms (%.0f tok/s) | generated %ld in %.1f ms (%.1f tok/s) | %s\n",
                 static_cast<long>(finish.prompt_tokens), prefill_ms,
                 1000.0 * static_cast<double>(read) / std::max(prefill_ms, 1e-3),
                 static_cast<long>(decoder.num_tokens()), decode_ms,
                 decoder.num_tokens() > 1
                     ? 1000.0 * static_cast<double>(decoder.num_tokens() - 1) / std::max(decode_ms, 1e-3)
                     : 0.0,
                 decoder.finish_reason());
  }
  return 0;
}

}  // namespace

int run_generate(int argc, char** argv) {
  CLI::App app("Generates text in the terminal, without a server.", "bam generate");
  GenerateOptions options;
  CLI::Option* prompt = app.add_option("-p,--prompt", options.prompt, "the prompt")->type_name("TEXT");
  app.add_option("-f,--file", options.file, "read the prompt from a file; - is stdin")
      ->type_name("FILE")
      ->excludes(prompt);
  app.add_option("-n,--max-tokens", options.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->check(CLI::Range(1L, 1L << 40));
  app.add_option("--temperature", options.temperature, "0: greedy")->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-p", options.top_p, "smallest set of tokens with this probability")
      ->check(CLI::Range(1e-9, 1.0));
  app.add_option("--top-k", options.top_k, "0: off")->check(CLI::Range(0, INT32_MAX));
  app.add_option("--min-p", options.min_p, "relative to the best token")->check(CLI::Range(0.0, 0.999999));
  app.add_option("--repetition-penalty", options.repetition_penalty, "1: off")->check(CLI::Range(1e-6, 100.0));
  app.add_option("--seed", options.seed, "the same seed gives the same text");
  app.add_option("--stop", options.stop, "end before this text; may be given several times")->expected(1)->take_all();
  app.add_flag("--ignore-eos", options.ignore_eos, "go on after the end of the text");
  app.add_flag("--chat", options.chat, "use the checkpoint's chat template");
  app.add_flag("--echo", options.echo, "print the prompt too");
  app.add_flag("-q,--quiet", options.quiet, "only the generated text");
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  app.footer(
      "Examples:\n"
      "  bam generate -p \"Once upon a time\" -n 64 --temperature 0\n"
      "  bam generate --model ./my-checkpoint -f prompt.txt --seed 7\n"
      "  echo Hello | bam generate --chat");
  return flags.run(app, argc, argv, [&](const ServeConfig& config) {
    options.has_prompt = prompt->count() > 0;
    ModelSettings settings = config.model;
    settings.engine.max_num_seqs = 1;
    return generate(settings, options);
  });
}

}  // namespace bam
