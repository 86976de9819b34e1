#include "app/eval/eval_task.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "app/eval/yaml_reader.h"
#include "app/units.h"
#include "base/error.h"
#include "server/jinja/ast.h"
#include "server/jinja/renderer.h"

namespace bam::eval {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSteps = 10'000'000;
constexpr size_t kMaxOutputBytes = size_t{64} << 20;

// What does not change a score.
const std::set<std::string> kIgnored = {"metadata",
                                        "tag",
                                        "group",
                                        "should_decontaminate",
                                        "doc_to_decontamination_query",
                                        "dataset_name",
                                        "training_split",
                                        "validation_split",
                                        "test_split",
                                        "fewshot_split",
                                        "task_alias",
                                        "dataset_kwargs",
                                        "dataset_path",
                                        "repeats",
                                        "include",
                                        "process_results_kwargs",
                                        "unsafe_code"};
const std::set<std::string> kRead = {
    "task",        "output_type",      "doc_to_text",       "doc_to_target", "doc_to_choice",
    "description", "target_delimiter", "fewshot_delimiter", "num_fewshot",   "fewshot_config",
    "metric_list", "filter_list",      "generation_kwargs"};

Json load_yaml(const fs::path& path, int depth = 0) {
  Json config = read_yaml(read_text_file(path.string()));
  if (!config.is_object()) throw UsageError("{} is no task: it has no keys", path.string());
  if (!config.contains("include")) return config;
  if (depth > 8) throw UsageError("{}: files include each other", path.string());
  Json includes = config["include"].is_array() ? config["include"] : Json::array({config["include"]});
  Json merged = Json::object();
  for (const Json& each : includes) {
    if (!each.is_string()) throw UsageError("{}: 'include' names a file", path.string());
    merged.update(load_yaml(path.parent_path() / each.get<std::string>(), depth + 1));
  }
  merged.update(config);
  merged.erase("include");
  return merged;
}

class TaskReader {
 public:
  explicit TaskReader(const TaskSource& source)
      : source_(source), folder_(fs::path(source.file).parent_path()), config_(load_yaml(source.file)) {}

  Task run() {
    check_keys();
    task_.name = text("task", fs::path(source_.file).stem().string());
    read_type();
    task_.target_delimiter = text("target_delimiter", " ");
    task_.num_fewshot = source_.num_fewshot.value_or(static_cast<int>(integer(config_, "num_fewshot", 0)));
    read_metrics();
    if (task_.type == OutputType::kGenerate) read_generation();
    std::vector<Json> docs = documents();
    if (source_.limit > 0 && docs.size() > static_cast<size_t>(source_.limit)) {
      docs.resize(static_cast<size_t>(source_.limit));
    }
    const std::string head = text("description", "") + examples();
    for (const Json& doc : docs) task_.items.push_back(make_item(doc, head));
    if (task_.items.empty()) throw UsageError("{} has no documents", task_.dataset);
    return std::move(task_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UsageError("{}: {}", source_.file, what); }

  void check_keys() const {
    for (const auto& [key, value] : config_.items()) {
      if (value.is_object() && value.contains("!function")) {
        fail(fmt::format("'{}' is the Python function {}, which only lm-eval can run", key,
                         value["!function"].get<std::string>()));
      }
      if (!kRead.contains(key) && !kIgnored.contains(key)) fail(fmt::format("'{}' is not supported", key));
    }
    if (integer(config_, "repeats", 1) != 1) fail("'repeats' other than 1 is not supported");
  }

  std::string text(const char* key, const std::string& otherwise) const {
    if (!config_.contains(key) || config_[key].is_null()) return otherwise;
    if (!config_[key].is_string()) fail(fmt::format("'{}' must be a text", key));
    return config_[key].get<std::string>();
  }

  int64_t integer(const Json& object, const char* key, int64_t otherwise) const {
    if (!object.contains(key) || object[key].is_null()) return otherwise;
    if (!object[key].is_number_integer()) fail(fmt::format("'{}' must be a whole number", key));
    return object[key].get<int64_t>();
  }

  void read_type() {
    const std::string type = text("output_type", "generate_until");
    if (type == "multiple_choice") {
      task_.type = OutputType::kMultipleChoice;
    } else if (type == "loglikelihood") {
      task_.type = OutputType::kLoglikelihood;
    } else if (type == "loglikelihood_rolling") {
      task_.type = OutputType::kRolling;
    } else if (type != "generate_until") {
      fail(fmt::format("output_type '{}' is not known", type));
    }
  }

  void read_metrics() {
    static const std::vector<std::vector<std::string>> kDefaults = {
        {"acc", "acc_norm", "acc_bytes"},
        {"perplexity", "acc"},
        {"word_perplexity", "byte_perplexity", "bits_per_byte"},
        {"exact_match"}};
    static const std::vector<std::set<std::string>> kKnown = {{"acc", "acc_norm", "acc_bytes"},
                                                              {"perplexity", "acc"},
                                                              {"word_perplexity", "byte_perplexity", "bits_per_byte"},
                                                              {"exact_match", "string_match_all", "string_match_part"}};
    const auto type = static_cast<size_t>(task_.type);
    const Json list = config_.value("metric_list", Json());
    if (list.is_null()) {
      for (const std::string& name : kDefaults[type]) task_.metrics.push_back({name, {}});
      return;
    }
    if (!list.is_array()) fail("'metric_list' must be a list");
    for (const Json& entry : list) {
      if (!entry.is_object() || !entry.contains("metric") || !entry["metric"].is_string()) {
        fail("a metric of 'metric_list' is one of lm-eval's names");
      }
      Metric metric{entry["metric"].get<std::string>(), {}};
      if (!kKnown[type].contains(metric.name)) {
        fail(
            fmt::format("the metric '{}' is not supported for {}", metric.name, text("output_type", "generate_until")));
      }
      metric.rules.ignore_case = entry.value("ignore_case", false);
      metric.rules.ignore_punctuation = entry.value("ignore_punctuation", false);
      metric.rules.ignore_numbers = entry.value("ignore_numbers", false);
      if (!entry.value("regexes_to_ignore", Json::array()).empty()) {
        fail("'regexes_to_ignore' are Python's patterns, which only lm-eval can run");
      }
      task_.metrics.push_back(std::move(metric));
    }
  }

  void read_generation() {
    const Json settings = config_.value("generation_kwargs", Json::object());
    for (const auto& [key, value] : settings.items()) {
      if (key == "until") {
        const Json list = value.is_array() ? value : Json::array({value});
        for (const Json& stop : list) task_.until.push_back(stop.get<std::string>());
      } else if (key == "max_gen_toks" || key == "max_tokens" || key == "max_new_tokens") {
        task_.max_gen_toks = value.get<int64_t>();
      } else if (key == "temperature") {
        task_.temperature = value.get<double>();
      } else if (key != "do_sample" || value != false) {
        fail(fmt::format("'generation_kwargs: {}' is not supported", key));
      }
    }
    // lm-eval's own end of an answer, where the file names none.
    if (!settings.contains("until")) task_.until.push_back(text("fewshot_delimiter", "\n\n"));
    if (!config_.contains("filter_list") || config_["filter_list"].is_null()) {
      task_.filters.push_back({"none", {"take_first"}});
      return;
    }
    for (const Json& entry : config_["filter_list"]) {
      Filter filter{entry.value("name", "none"), {}};
      for (const Json& step : entry.value("filter", Json::array())) {
        static const std::set<std::string> kKnown = {"take_first", "lowercase", "uppercase", "remove_whitespace"};
        const std::string function = step.value("function", "");
        if (!kKnown.contains(function))
          fail(fmt::format("the filter '{}' is not supported: only lm-eval can run it", function));
        filter.steps.push_back(function);
      }
      task_.filters.push_back(std::move(filter));
    }
  }

  std::vector<Json> documents() {
    if (source_.docs.empty())
      return split(text("test_split", text("validation_split", text("training_split", "train"))));
    if (fs::is_directory(source_.docs)) return in_folder("");
    task_.dataset = source_.docs;
    return read_documents(source_.docs);
  }

  // NAME.jsonl or NAME.json in the folder of documents; the suffix names a split.
  std::vector<Json> in_folder(const std::string& suffix) {
    for (const char* ending : {".jsonl", ".json"}) {
      const fs::path file = fs::path(source_.docs) / (task_.name + suffix + ending);
      if (!fs::exists(file)) continue;
      task_.dataset = file.string();
      return read_documents(file.string());
    }
    fail(fmt::format("{} has no {}{}.jsonl", source_.docs, task_.name, suffix));
  }

  // Documents of a split that the file names, beside the file or where the program was started.
  std::vector<Json> split(const std::string& name) {
    const std::string path = text("dataset_path", "");
    const Json files = config_.value("dataset_kwargs", Json::object()).value("data_files", Json());
    if (path != "json" || files.is_null()) {
      fail(fmt::format("the documents are {}: give a file of them with --docs",
                       path.empty() ? "not named" : "those of '" + path + "'"));
    }
    const Json named = files.is_object() ? files.value(name, Json()) : name == "train" ? files : Json();
    if (named.is_null()) fail(fmt::format("'data_files' has no split '{}'", name));
    std::vector<Json> docs;
    for (const Json& each : named.is_array() ? named : Json::array({named})) {
      fs::path file = each.get<std::string>();
      if (!fs::exists(file) && fs::exists(folder_ / file)) file = folder_ / file;
      task_.dataset = file.string();
      for (Json& doc : read_documents(file.string())) docs.push_back(std::move(doc));
    }
    return docs;
  }

  std::vector<Json> few_shot_split(const std::string& name) {
    return fs::is_directory(source_.docs) ? in_folder("_" + name) : split(name);
  }

  // The examples in front of every question.
  std::string examples() {
    if (task_.num_fewshot == 0) return {};
    const Json settings = config_.value("fewshot_config", Json::object());
    if (settings.value("sampler", "default") != "first_n") {
      fail(
          "few-shot examples other than the first ones (fewshot_config: sampler: first_n) are lm-eval's own draw: use "
          "--num-fewshot 0");
    }
    const std::string dataset = task_.dataset;
    std::vector<Json> docs = settings.contains("samples") && settings["samples"].is_array()
                                 ? settings["samples"].get<std::vector<Json>>()
                                 : few_shot_split(settings.value("split", text("fewshot_split", "train")));
    task_.dataset = dataset;
    if (docs.size() < static_cast<size_t>(task_.num_fewshot)) fail("there are fewer examples than num_fewshot");
    docs.resize(static_cast<size_t>(task_.num_fewshot));
    std::string out;
    for (const Json& doc : docs) {
      const Item item = make_item(doc, "");
      const std::string answer = task_.type == OutputType::kMultipleChoice ? item.choices[item.gold]
                                 : item.targets.empty()                    ? ""
                                                                           : item.targets[0];
      out += item.context + task_.target_delimiter + answer + text("fewshot_delimiter", "\n\n");
    }
    return out;
  }

  std::string render(const std::string& source, const Json& doc) const {
    jinja::Variables variables;
    for (const auto& [name, value] : doc.items()) variables.emplace_back(name, jinja::from_json(value));
    jinja::Renderer renderer(std::move(variables), kMaxSteps, kMaxOutputBytes);
    try {
      return renderer.run(jinja::parse_template(source, jinja::Whitespace::kPlain));
    } catch (const Error& error) {
      fail(fmt::format("template {}: {}", Json(source).dump(), error.what()));
    }
  }

  // A field of the document, or a template over it.
  std::string field_text(const std::string& source, const Json& doc) const {
    if (!doc.contains(source)) return render(source, doc);
    return doc[source].is_string() ? doc[source].get<std::string>() : doc[source].dump();
  }

  // The value of a template that is one expression, as Python would have it, not its text.
  Json field_value(const std::string& source, const Json& doc) const {
    if (doc.contains(source)) return doc[source];
    const size_t open = source.find("{{"), close = source.rfind("}}");
    const bool single = source.starts_with("{{") && source.ends_with("}}") && source.find("{{", 2) == source.npos;
    if (!single) return render(source, doc);
    const std::string expression = source.substr(open + 2, close - open - 2);
    return Json::parse(render("{{ (" + expression + ") | tojson }}", doc));
  }

  Item make_item(const Json& doc, const std::string& head) const {
    if (!doc.is_object()) fail(fmt::format("{}: a document is an object", task_.dataset));
    Item item;
    if (task_.type != OutputType::kRolling) {
      const Json source = config_.value("doc_to_text", Json());
      if (!source.is_string()) fail("'doc_to_text' must be a text");
      item.context = head + field_text(source.get<std::string>(), doc);
    }
    const Json target = config_.value("doc_to_target", Json());
    if (task_.type == OutputType::kMultipleChoice) {
      item.choices = choices_of(doc);
      item.gold = gold_of(target, doc, item.choices);
      return item;
    }
    if (!target.is_string()) fail("'doc_to_target' must be a text");
    const Json value = field_value(target.get<std::string>(), doc);
    for (const Json& each : value.is_array() ? value : Json::array({value})) {
      item.targets.push_back(each.is_string() ? each.get<std::string>() : each.dump());
    }
    return item;
  }

  std::vector<std::string> choices_of(const Json& doc) const {
    const Json source = config_.value("doc_to_choice", Json());
    const Json list = source.is_string() ? field_value(source.get<std::string>(), doc) : source;
    if (!list.is_array() || list.empty()) fail("'doc_to_choice' gives no list of choices");
    std::vector<std::string> choices;
    for (const Json& each : list) choices.push_back(each.is_string() ? each.get<std::string>() : each.dump());
    return choices;
  }

  size_t gold_of(const Json& target, const Json& doc, const std::vector<std::string>& choices) const {
    Json value = target.is_string() ? field_value(target.get<std::string>(), doc) : target;
    if (value.is_string()) {
      const std::string word = value.get<std::string>();
      const auto found = std::ranges::find(choices, word);
      if (!word.empty() && word.find_first_not_of("0123456789") == word.npos) {
        value = std::stoll(word);
      } else if (found != choices.end()) {
        return static_cast<size_t>(found - choices.begin());
      }
    }
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() >= static_cast<int64_t>(choices.size())) {
      fail(fmt::format("the right choice {} is none of {}", value.dump(), choices.size()));
    }
    return value.get<size_t>();
  }

  const TaskSource& source_;
  const fs::path folder_;
  const Json config_;
  Task task_;
};

}  // namespace

std::vector<Json> read_documents(const std::string& path) {
  const std::string text = read_text_file(path);
  Json whole = Json::parse(text, nullptr, false);
  if (whole.is_object() && whole.size() == 1 && whole.begin()->is_array()) whole = whole.begin().value();
  if (whole.is_array()) return whole.get<std::vector<Json>>();
  std::vector<Json> docs;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    docs.push_back(Json::parse(line, nullptr, false));
    if (docs.back().is_discarded()) throw UsageError("{}, line {}: no JSON", path, number);
  }
  return docs;
}

Task load_task(const TaskSource& source) { return TaskReader(source).run(); }

}  // namespace bam::eval
