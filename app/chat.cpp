// `bam chat`: a conversation in the terminal.
#include <algorithm>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "app/chat/session.h"
#include "app/commands.h"
#include "app/option_flags.h"
#include "app/sampling_flags.h"

namespace bam {
namespace {

// http://…, https://…, or host:port where no such folder exists.
bool is_url(const std::string& text) {
  if (text.starts_with("http://") || text.starts_with("https://")) return true;
  if (text.find("://") != text.npos) throw UsageError("{} begins with neither http:// nor https://", text);
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0 || colon + 1 == text.size() || std::filesystem::exists(text)) return false;
  const std::string_view port = std::string_view(text).substr(colon + 1, text.find('/', colon) - colon - 1);
  return !port.empty() && std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// What --model says, if it was given: with a URL it is a name there, and a folder from the environment is none.
std::string model_flag(const ServeConfig& config) {
  for (const ServeConfig::Resolved& setting : config.resolved) {
    if (setting.name == "model" && setting.origin == "--model") return setting.value;
  }
  return {};
}

}  // namespace

int run_chat(int argc, char** argv) {
  CLI::App app("Talks to a model in this process, or to any OpenAI-compatible server.", "bam chat");
  ChatOptions options;
  client::TargetOptions target;
  std::string partner;
  bool no_history = false;
  options.sampling.max_tokens = 1024;
  target.api_key = client::default_api_key();
  app.add_option("MODEL|URL", partner, "checkpoint folder, demo, or a server's address")->type_name("");
  app.add_option("--system", options.system, "the system message")->type_name("TEXT");
  app.add_option("-f,--file", options.file, "put a file's text in front of the first message")->type_name("FILE");
  app.add_flag("--completion", options.completion, "let the model continue a text, as base models do");
  app.add_flag("--no-history", no_history, "keep no lines for the next session");
  add_sampling_flags(app, &options.sampling);
  app.add_option("--api-key", target.api_key, "the server's key (default: $BAM_API_KEY, $OPENAI_API_KEY)")
      ->type_name("KEY");
  app.add_option("--header", target.headers, "extra header for the server; may be repeated")
      ->type_name("\"Name: value\"")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--insecure", target.insecure, "do not verify the server's TLS certificate");
  OptionFlags flags(app, [](const ServeOption& option) { return option.model; });
  app.footer(std::string(kSettingsHelp) +
             "\nExamples:\n"
             "  bam chat\n"
             "  bam chat ./my-checkpoint --temperature 0.7\n"
             "  bam chat http://127.0.0.1:8000 --file report.txt\n"
             "  bam chat https://api.example.com/v1 --model their-model\n"
             "\nA checkpoint without a chat template is given texts to continue. /help in the\n"
             "conversation lists its commands.");
  return flags.run(app, argc, argv, [&](const ServeConfig& config) {
    const std::string model = model_flag(config);
    if (!no_history) options.history_file = default_history_file();
    std::unique_ptr<Partner> other;
    if (is_url(partner)) {
      target.url = partner;
      target.model = model;
      other = make_remote_partner(target);
    } else {
      ModelSettings settings = config.model;
      if (!partner.empty() && !model.empty()) throw UsageError("the model is given twice: '{}' and --model", partner);
      if (!partner.empty()) settings.model = partner;
      settings.engine.max_num_seqs = 1;
      other = make_local_partner(settings);
    }
    return ChatSession(*other, std::move(options)).run();
  });
}

}  // namespace bam
