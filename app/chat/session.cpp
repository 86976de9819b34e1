#include "app/chat/session.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "app/client/http_loop.h"
#include "app/client/terminal.h"
#include "app/suggest.h"
#include "app/units.h"
#include "base/error.h"

namespace bam {
namespace {

constexpr const char* kBlock = "\"\"\"";

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? std::string() : std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

std::string markdown(const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const ChatMessage& message : messages) out += fmt::format("## {}\n\n{}\n\n", message.role, message.content);
  return out;
}

}  // namespace

const std::vector<ChatSession::SlashCommand>& ChatSession::commands() {
  static const std::vector<SlashCommand> table = {
      {"/help", "", "this list", &ChatSession::help},
      {"/stats", "[on|off]", "what the last answer took; on: after every answer", &ChatSession::show_stats},
      {"/system", "[TEXT]", "the system message; without TEXT: none", &ChatSession::set_system},
      {"/seed", "[N]", "the same seed gives the same text; without N: random", &ChatSession::set_seed},
      {"/set", "[NAME VALUE]", "max_tokens, temperature, top_p, top_k, min_p, repetition_penalty",
       &ChatSession::set_value},
      {"/file", "PATH", "put a file's text in front of the next message", &ChatSession::read_file},
      {"/save", "PATH", "write the conversation: .json, .md, or plain text", &ChatSession::save},
      {"/again", "", "another answer to the last message", &ChatSession::again},
      {"/mode", "[chat|completion]", "talk, or let the model continue a text", &ChatSession::set_mode},
      {"/reset", "", "forget the conversation", &ChatSession::reset},
      {"/quit", "", "leave, as Ctrl-D does", &ChatSession::quit},
  };
  return table;
}

ChatSession::ChatSession(Partner& partner, ChatOptions options)
    : partner_(partner),
      options_(std::move(options)),
      editor_(options_.history_file, [this](std::string_view before) { return completions(before); }),
      mode_(options_.completion || !partner.can_chat() ? Mode::kCompletion : Mode::kChat),
      system_(options_.system) {}

int ChatSession::run() {
  if (editor_.on_terminal()) {
    greet();
    std::signal(SIGINT, SIG_IGN);  // between two lines a Ctrl-C comes too late for the answer and ends nothing
  }
  if (!options_.file.empty()) read_file(options_.file);
  std::string text;
  while (!done_ && read_message(text)) {
    if (text.starts_with('/')) {
      obey(text);
    } else if (!trimmed(text).empty() || !pending_.empty() || (mode_ == Mode::kCompletion && !text_.empty())) {
      say(text);
    }
  }
  return failed_ && !editor_.on_terminal() ? 1 : 0;
}

void ChatSession::greet() const {
  std::printf("%s\n", partner_.description().c_str());
  std::puts(mode_ == Mode::kChat ? "Say something; /help lists commands, Ctrl-D leaves."
                                 : "Begin a text and the model goes on with it; /help lists commands, Ctrl-D leaves.");
}

bool ChatSession::read_message(std::string& text) {
  while (true) {
    LineEditor::Input input = editor_.read(">>> ");
    if (input.kind == LineEditor::Kind::kEnd) {
      if (editor_.on_terminal()) std::fputc('\n', stdout);
      return false;
    }
    if (input.kind == LineEditor::Kind::kInterrupted) continue;
    editor_.remember(input.text);
    text = std::move(input.text);
    if (!text.starts_with(kBlock)) return true;
    text.erase(0, 3);
    while (!text.ends_with(kBlock)) {
      input = editor_.read("... ");
      if (input.kind != LineEditor::Kind::kLine) break;  // Ctrl-C drops the block, the end of the input closes it
      text += (text.empty() ? "" : "\n") + input.text;
    }
    if (input.kind == LineEditor::Kind::kInterrupted) continue;
    if (text.ends_with(kBlock)) text.resize(text.size() - 3);
    return true;
  }
}

void ChatSession::obey(const std::string& line) {
  const size_t blank = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, blank), argument = trimmed(std::string_view(line).substr(blank));
  std::vector<std::string> names;
  try {
    for (const SlashCommand& command : commands()) {
      if (name == command.name) return (this->*command.run)(argument);
      names.emplace_back(command.name);
    }
    const std::string hint = did_you_mean(name, names);
    throw UsageError("there is no command {}{} /help lists them", name, hint.empty() ? ";" : hint);
  } catch (const Error& error) {
    failed_ = true;
    fmt::print(stderr, "{}\n", error.what());
  }
}

void ChatSession::say(const std::string& text) {
  const std::string whole = pending_.empty() ? text : text.empty() ? pending_ : pending_ + "\n\n" + text;
  pending_.clear();
  if (mode_ == Mode::kChat) {
    messages_.push_back({"user", whole});
  } else {
    text_ += whole;
  }
  ask();
}

std::vector<ChatMessage> ChatSession::whole_conversation() const {
  std::vector<ChatMessage> all;
  if (!system_.empty()) all.push_back({"system", system_});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

void ChatSession::ask() {
  std::string answer;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  client::ReadingLine reading(true);
  GenerationHooks hooks;
  hooks.on_progress = [&](const ReadingProgress& progress) { reading.show(progress.elapsed_ms, progress.line()); };
  hooks.on_text = [&](const std::string& piece) {
    reading.clear();
    answer += piece;
    const std::string shown = terminal ? for_terminal(piece) : piece;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  };
  hooks.interrupted = client::InterruptGuard::interrupted;
  asked_text_ = text_.size();
  try {
    const client::InterruptGuard guard(true);
    last_ = mode_ == Mode::kChat ? partner_.chat(whole_conversation(), options_.sampling, hooks)
                                 : partner_.complete(text_, options_.sampling, hooks);
  } catch (const Error& error) {
    reading.clear();
    if (!answer.empty()) std::fputc('\n', stdout);
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n", error.what());
    failed_ = true;
    // The question can be asked again as it was.
    if (mode_ == Mode::kChat && !messages_.empty()) messages_.pop_back();
    return;
  }
  answered_ = true;
  if (mode_ == Mode::kChat) {
    messages_.push_back({"assistant", answer});
  } else {
    text_ += answer;
  }
  std::puts(last_.finish_reason == "interrupted" ? "\n(stopped)" : "");
  if (stats_always_) show_stats("");
}

void ChatSession::drop_answer() {
  if (mode_ == Mode::kCompletion) {
    text_.resize(std::min(asked_text_, text_.size()));
  } else if (!messages_.empty() && messages_.back().role == "assistant") {
    messages_.pop_back();
  }
}

void ChatSession::help(const std::string&) {
  for (const SlashCommand& command : commands()) {
    std::printf("  %-25s %s\n", fmt::format("{} {}", command.name, command.arguments).c_str(), command.help);
  }
  std::printf("  %-25s %s\n", "\"\"\"", "begins and ends a message of several lines");
  std::printf("  %-25s %s\n", "Ctrl-C", "stops the answer");
}

void ChatSession::show_stats(const std::string& argument) {
  if (argument == "on" || argument == "off") {
    stats_always_ = argument == "on";
    tell("statistics after every answer: " + argument);
    return;
  }
  if (!argument.empty()) throw UsageError("/stats: '{}' is not on or off", argument);
  std::puts(answered_ ? last_.line().c_str() : "no answer yet");
}

void ChatSession::tell(const std::string& what) const {
  if (editor_.on_terminal()) std::puts(what.c_str());
}

void ChatSession::set_system(const std::string& argument) {
  system_ = argument;
  tell(system_.empty() ? "no system message" : "system message: " + system_);
}

void ChatSession::set_seed(const std::string& argument) {
  if (argument.empty()) {
    options_.sampling.seed.reset();
    tell("seed: random");
  } else {
    options_.sampling.seed = static_cast<uint64_t>(parse_integer(argument, "/seed", 0, INT64_MAX));
    tell(fmt::format("seed: {}", *options_.sampling.seed));
  }
}

void ChatSession::show_values() const {
  const SamplingWishes& wishes = options_.sampling;
  const auto line = [this](const char* name, const auto& value) {
    std::printf("  %-19s %s\n", name, value ? fmt::format("{}", *value).c_str() : "(the model's own)");
  };
  line("max_tokens", std::optional(wishes.max_tokens));
  line("temperature", wishes.temperature);
  line("top_p", wishes.top_p);
  line("top_k", wishes.top_k);
  line("min_p", wishes.min_p);
  line("repetition_penalty", wishes.repetition_penalty);
}

void ChatSession::set_value(const std::string& argument) {
  if (argument.empty()) return show_values();
  const size_t blank = std::min(argument.find(' '), argument.size());
  const std::string name = argument.substr(0, blank), value = trimmed(std::string_view(argument).substr(blank));
  SamplingWishes& wishes = options_.sampling;
  const std::string what = "/set " + name;
  const auto number = [&](double min, double max) { return static_cast<float>(parse_number(value, what, min, max)); };
  if (name == "max_tokens") {
    wishes.max_tokens = parse_integer(value, what, 1, int64_t{1} << 40);
  } else if (name == "temperature") {
    wishes.temperature = number(0, 100);
  } else if (name == "top_p") {
    wishes.top_p = number(1e-9, 1);
  } else if (name == "min_p") {
    wishes.min_p = number(0, 0.999999);
  } else if (name == "repetition_penalty") {
    wishes.repetition_penalty = number(1e-6, 100);
  } else if (name == "top_k") {
    wishes.top_k = static_cast<int32_t>(parse_integer(value, what, 0, INT32_MAX));
  } else {
    throw UsageError(
        "/set: '{}' is not one of max_tokens, temperature, top_p, top_k, min_p, repetition_penalty{}", name,
        did_you_mean(name, {"max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}));
  }
  tell(fmt::format("{}: {}", name, value));
}

void ChatSession::read_file(const std::string& argument) {
  if (argument.empty()) throw UsageError("/file: give a path");
  std::string text = read_text_file(argument);
  if (editor_.on_terminal()) {
    std::printf("%s of %s will stand in front of your next message.\n",
                format_bytes(static_cast<double>(text.size())).c_str(), argument.c_str());
  }
  pending_ += (pending_.empty() ? "" : "\n\n") + text;
}

void ChatSession::save(const std::string& argument) {
  if (argument.empty()) throw UsageError("/save: give a path");
  std::string out;
  if (argument.ends_with(".json")) {
    nlohmann::ordered_json root = {{"model", partner_.name()}};
    if (mode_ == Mode::kCompletion) {
      root["prompt"] = text_;
    } else {
      root["messages"] = nlohmann::ordered_json::array();
      for (const ChatMessage& message : whole_conversation()) {
        root["messages"].push_back({{"role", message.role}, {"content", message.content}});
      }
    }
    out = root.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  } else if (mode_ == Mode::kCompletion) {
    out = text_ + "\n";
  } else if (argument.ends_with(".md")) {
    out = markdown(whole_conversation());
  } else {
    for (const ChatMessage& message : whole_conversation())
      out += fmt::format("{}: {}\n\n", message.role, message.content);
  }
  write_text_file(argument, out);
  std::printf("saved %s\n", argument.c_str());
}

void ChatSession::forget() {
  messages_.clear();
  text_.clear();
  pending_.clear();
  asked_text_ = 0;
}

void ChatSession::reset(const std::string&) {
  forget();
  tell("a new conversation");
}

void ChatSession::again(const std::string&) {
  if (!answered_ || (messages_.empty() && text_.empty())) throw UsageError("/again: there is no answer yet");
  drop_answer();
  ask();
}

void ChatSession::set_mode(const std::string& argument) {
  if (argument.empty()) {
    std::puts(mode_ == Mode::kChat ? "chat" : "completion");
    return;
  }
  check_one_of(argument, "/mode", "chat|completion");
  const Mode mode = argument == "chat" ? Mode::kChat : Mode::kCompletion;
  if (mode == Mode::kChat && !partner_.can_chat()) throw Error("/mode: the checkpoint has no chat template");
  if (mode != mode_) forget();
  mode_ = mode;
  tell("mode: " + argument);
}

void ChatSession::quit(const std::string&) { done_ = true; }

std::vector<std::string> ChatSession::completions(std::string_view before) const {
  std::vector<std::string> found;
  if (!before.starts_with('/')) return found;
  for (const char* with_path : {"/file ", "/save "}) {
    if (!before.starts_with(with_path)) continue;
    for (const std::string& path : complete_path(before.substr(6))) found.push_back(with_path + path);
  }
  for (const SlashCommand& command : commands()) {
    if (std::string_view(command.name).starts_with(before)) found.emplace_back(command.name);
  }
  return found;
}

}  // namespace bam
