#include "app/chat/line_editor.h"

#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace bam {

namespace fs = std::filesystem;

namespace {

constexpr int kHistoryLines = 1000;

// libedit reads characters by the locale. Without one, a Debian machine still has this one.
void use_utf8() {
  setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

std::string common_prefix(const std::vector<std::string>& words) {
  std::string prefix = words.front();
  for (const std::string& word : words) {
    const auto end = std::mismatch(prefix.begin(), prefix.end(), word.begin(), word.end()).first;
    prefix.erase(end, prefix.end());
  }
  return prefix;
}

}  // namespace

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string history_file, prompt;
  Completer completer;
  bool interrupted = false;

  static Impl* of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self);
  }
  static char* show_prompt(EditLine* editor) { return of(editor)->prompt.data(); }
  static unsigned char on_interrupt(EditLine* editor, int) {
    of(editor)->interrupted = true;
    return CC_EOF;
  }
  static unsigned char on_suspend(EditLine* editor, int) {
    el_set(editor, EL_PREP_TERM, 0);
    std::raise(SIGTSTP);
    el_set(editor, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }
  static unsigned char on_complete(EditLine* editor, int) {
    const Impl* self = of(editor);
    const LineInfo* line = el_line(editor);
    const std::string before(line->buffer, line->cursor);
    const std::vector<std::string> found = self->completer(before);
    if (found.empty()) return CC_REFRESH_BEEP;
    const std::string prefix = common_prefix(found);
    if (prefix.size() > before.size()) {
      el_insertstr(editor, prefix.c_str() + before.size());
      return CC_REFRESH;
    }
    if (found.size() == 1) return CC_NORM;
    std::fputc('\n', stdout);
    for (const std::string& word : found) std::printf("%s\n", word.c_str());
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(std::string history_file, Completer completer) : impl_(std::make_unique<Impl>()) {
  impl_->history_file = std::move(history_file);
  impl_->completer = std::move(completer);
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
  use_utf8();
  impl_->editor = el_init("bam", stdin, stdout, stderr);
  if (impl_->editor == nullptr) return;
  EditLine* editor = impl_->editor;
  el_set(editor, EL_CLIENTDATA, impl_.get());
  el_set(editor, EL_PROMPT, &Impl::show_prompt);
  el_set(editor, EL_EDITOR, "emacs");
  // Ctrl-C as a key: it ends the line, and no signal is on its way when the answer begins.
  el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
  // Between two lines the terminal keeps every key as it is: a Ctrl-D there would be its own end of input, which the editor
  // never sees. Nor does it write typed keys into the answer.
  el_set(editor, EL_SETTY, "-x", "-icanon", nullptr);
  el_set(editor, EL_SETTY, "-x", "-echo", nullptr);
  el_set(editor, EL_ADDFN, "bam-interrupt", "drop the line", &Impl::on_interrupt);
  el_set(editor, EL_ADDFN, "bam-suspend", "stop the program for a while", &Impl::on_suspend);
  el_set(editor, EL_ADDFN, "bam-complete", "complete commands and files", &Impl::on_complete);
  el_set(editor, EL_BIND, "^C", "bam-interrupt", nullptr);
  el_set(editor, EL_BIND, "^Z", "bam-suspend", nullptr);
  el_set(editor, EL_BIND, "\t", "bam-complete", nullptr);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(editor, EL_BIND, "\033[3~", "ed-delete-next-char", nullptr);
  el_set(editor, EL_BIND, "\033[1;5C", "em-next-word", nullptr);
  el_set(editor, EL_BIND, "\033[1;5D", "ed-prev-word", nullptr);
  impl_->history = history_init();
  ::history(impl_->history, &impl_->event, H_SETSIZE, kHistoryLines);
  ::history(impl_->history, &impl_->event, H_SETUNIQUE, 1);
  el_set(editor, EL_HIST, ::history, impl_->history);
  if (!impl_->history_file.empty()) ::history(impl_->history, &impl_->event, H_LOAD, impl_->history_file.c_str());
  el_source(editor, nullptr);  // ~/.editrc
}

LineEditor::~LineEditor() {
  if (impl_->history != nullptr) history_end(impl_->history);
  if (impl_->editor != nullptr) el_end(impl_->editor);
}

bool LineEditor::on_terminal() const { return impl_->editor != nullptr; }

LineEditor::Input LineEditor::read(const std::string& prompt) {
  std::fflush(stdout);
  if (impl_->editor == nullptr) {
    std::string line;
    if (!std::getline(std::cin, line)) return {Kind::kEnd, {}};
    return {Kind::kLine, std::move(line)};
  }
  impl_->prompt = prompt;
  impl_->interrupted = false;
  int count = 0;
  const char* line = el_gets(impl_->editor, &count);
  if (impl_->interrupted) {
    std::fputs("^C\n", stdout);
    el_reset(impl_->editor);
    return {Kind::kInterrupted, {}};
  }
  if (line == nullptr || count <= 0) return {Kind::kEnd, {}};
  std::string text(line, static_cast<size_t>(count));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return {Kind::kLine, std::move(text)};
}

void LineEditor::remember(const std::string& line) {
  if (impl_->history == nullptr || line.empty()) return;
  ::history(impl_->history, &impl_->event, H_ENTER, line.c_str());
  if (impl_->history_file.empty()) return;
  std::error_code error;
  fs::create_directories(fs::path(impl_->history_file).parent_path(), error);
  const mode_t mask = umask(0077);  // conversations are nobody else's business
  ::history(impl_->history, &impl_->event, H_SAVE, impl_->history_file.c_str());
  umask(mask);
}

std::string default_history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/bam/history";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.local/state/bam/history" : std::string();
}

std::vector<std::string> complete_path(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string folder(slash == path.npos ? "" : path.substr(0, slash + 1));
  const std::string_view begin = slash == path.npos ? path : path.substr(slash + 1);
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(begin) || (begin.empty() && name.starts_with('.'))) continue;
    std::error_code unknown;
    found.push_back(folder + name + (it->is_directory(unknown) ? "/" : ""));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace bam
