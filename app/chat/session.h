#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/chat/line_editor.h"
#include "app/chat/partner.h"

namespace bam {

struct ChatOptions {
  SamplingWishes sampling;
  std::string system, file, history_file;
  bool completion = false;
};

// The conversation of `bam chat`: reads lines, answers them, obeys commands that begin with a slash.
class ChatSession {
 public:
  ChatSession(Partner& partner, ChatOptions options);
  // Until the end of the input. The exit code: 1 if something went wrong that nobody sat there to read.
  int run();

 private:
  enum class Mode { kChat, kCompletion };
  struct SlashCommand {
    const char* name;
    const char* arguments;
    const char* help;
    void (ChatSession::*run)(const std::string& argument);
  };
  static const std::vector<SlashCommand>& commands();

  // A line, or the lines between two """. False: the input ended.
  bool read_message(std::string& text);
  void obey(const std::string& line);
  void say(const std::string& text);
  void ask();
  void drop_answer();
  void greet() const;
  void forget();
  void show_values() const;
  // What a command has done, for a person; a program that pipes lines reads answers only.
  void tell(const std::string& what) const;
  std::vector<std::string> completions(std::string_view before) const;
  std::vector<ChatMessage> whole_conversation() const;

  void help(const std::string&);
  void show_stats(const std::string& argument);
  void set_system(const std::string& argument);
  void set_seed(const std::string& argument);
  void set_value(const std::string& argument);
  void read_file(const std::string& argument);
  void save(const std::string& argument);
  void reset(const std::string&);
  void again(const std::string&);
  void set_mode(const std::string& argument);
  void quit(const std::string&);

  Partner& partner_;
  ChatOptions options_;
  LineEditor editor_;
  Mode mode_;
  std::string system_;
  std::string pending_;                // a file's text that goes in front of the next message
  std::vector<ChatMessage> messages_;  // kChat: user and assistant in turn
  std::string text_;                   // kCompletion: everything so far
  size_t asked_text_ = 0;              // how much of it was there before the last answer
  GenerationStats last_;
  bool answered_ = false, stats_always_ = false, done_ = false, failed_ = false;
};

}  // namespace bam
