#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bam {

// Lines from a person: with editing, history and completion on a terminal, plain lines elsewhere.
class LineEditor {
 public:
  enum class Kind { kLine, kInterrupted, kEnd };  // Enter, Ctrl-C, Ctrl-D or the end of the input
  struct Input {
    Kind kind;
    std::string text;  // without the newline
  };
  // What the text before the cursor could go on with: whole replacements of it.
  using Completer = std::function<std::vector<std::string>(std::string_view before)>;

  // `history_file`: empty: none is kept. The folder is made when the first line is.
  LineEditor(std::string history_file, Completer completer);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;

  bool on_terminal() const;
  Input read(const std::string& prompt);
  // Puts a line where the arrow keys and the next session find it.
  void remember(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// $XDG_STATE_HOME/bam/history or ~/.local/state/bam/history; empty without a home.
std::string default_history_file();
// Replacements of a path by the files and folders that begin with it.
std::vector<std::string> complete_path(std::string_view path);

}  // namespace bam
