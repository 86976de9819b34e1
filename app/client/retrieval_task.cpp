#include "app/client/retrieval_task.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "app/client/words.h"
#include "app/units.h"
#include "base/error.h"
#include "base/hash.h"

namespace bam::client {
namespace {

constexpr int kMagicDigits = 7;
constexpr int64_t kNiahMaxTokens = 128;  // RULER's
constexpr size_t kMaxNeedleUnits = 8192;

std::string random_digits(Rng& rng, int digits) {
  std::string text;
  for (int i = 0; i < digits; ++i) {
    text.push_back(static_cast<char>('0' + rng.uniform_int(i == 0 ? 1 : 0, 9)));
  }
  return text;
}

std::string random_uuid(Rng& rng) {
  const uint64_t a = rng.next(), b = rng.next();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:x}{:03x}-{:012x}", a >> 32, a >> 16 & 0xffff, a & 0xfff, 8 + (b >> 62),
                     b >> 48 & 0xfff, b & 0xffffffffffff);
}

std::string needle_sentence(std::string_view kind, std::string_view key, std::string_view value) {
  return fmt::format("A special magic {} for {} is: {}.", kind, key, value);
}

std::string join_with_and(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += i + 1 == items.size() ? " and " : ", ";
    text += items[i];
  }
  return text;
}

}  // namespace

const std::vector<TaskInfo>& all_tasks() {
  static const std::vector<TaskInfo> tasks = {
      {"passkey", HaystackKind::kFiller, false, false, 1, 1, 1},
      {"niah_single_1", HaystackKind::kFiller, false, false, 1, 1, 1},
      {"niah_single_2", HaystackKind::kText, false, false, 1, 1, 1},
      {"niah_single_3", HaystackKind::kText, true, false, 1, 1, 1},
      {"niah_multikey_1", HaystackKind::kText, false, false, 4, 1, 1},
      {"niah_multikey_2", HaystackKind::kNeedles, false, false, 1, 1, 1},
      {"niah_multikey_3", HaystackKind::kNeedles, true, true, 1, 1, 1},
      {"niah_multivalue", HaystackKind::kText, false, false, 1, 4, 1},
      {"niah_multiquery", HaystackKind::kText, false, false, 4, 1, 4},
  };
  return tasks;
}

const TaskInfo* find_task(std::string_view name) {
  if (name == "niah_multikey") name = "niah_multikey_1";
  for (const TaskInfo& task : all_tasks()) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

const TaskInfo& check_task(const TaskConfig& config) {
  const TaskInfo* info = find_task(config.task);
  if (info == nullptr) {
    std::string names;
    for (const TaskInfo& task : all_tasks()) names += fmt::format(" {}", task.name);
    throw UsageError("--task: '{}' is unknown; there are:{}", config.task, names);
  }
  if (info->haystack == HaystackKind::kText && config.filler_text.empty()) {
    throw UsageError("--task {} hides needles in natural text: give one with --filler-file FILE", info->name);
  }
  if (info->haystack == HaystackKind::kNeedles && !config.filler_text.empty()) {
    throw UsageError("--task {} makes its own haystack of needles: --filler-file does not apply", info->name);
  }
  return *info;
}

TaskBuilder::TaskBuilder(TaskConfig config, EncodeFn encode)
    : config_(std::move(config)), info_(&check_task(config_)), encoder_(std::move(encode)) {
  if (!config_.filler_text.empty()) {
    sentences_ = split_sentences(config_.filler_text);
    if (sentences_.empty()) throw UsageError("--filler-file holds no text");
  } else if (info_->haystack == HaystackKind::kFiller) {
    sentences_ = {std::string(PasskeyWording::kFiller)};
  } else {
    // One fixed haystack of unique keys per seed; the asked-for needle never uses one of them.
    Rng rng = Rng::stream(config_.seed, 0x6e6565646c6573);
    std::set<std::string> keys;
    const char* kind = info_->uuid_values ? "uuid" : "number";
    while (keys.size() < kMaxNeedleUnits) {
      const std::string key = random_key(rng);
      if (keys.insert(key).second) sentences_.push_back(needle_sentence(kind, key, random_value(rng)));
    }
  }
}

std::string TaskBuilder::random_key(Rng& rng) const {
  if (info_->uuid_keys) return random_uuid(rng);
  const auto adjective = static_cast<size_t>(rng.uniform_int(0, kAdjectives.size() - 1));
  const auto noun = static_cast<size_t>(rng.uniform_int(0, kNouns.size() - 1));
  return fmt::format("{}-{}", kAdjectives[adjective], kNouns[noun]);
}

std::string TaskBuilder::random_value(Rng& rng) const {
  return info_->uuid_values ? random_uuid(rng) : random_digits(rng, kMagicDigits);
}

void TaskBuilder::extend_units(int64_t tokens) {
  while (unit_tokens_ < tokens && next_sentence_ < sentences_.size()) {
    TokenIds ids = encoder_.next(sentences_[next_sentence_++]);
    if (ids.empty()) continue;
    unit_tokens_ += static_cast<int64_t>(ids.size());
    units_.push_back(std::move(ids));
  }
}

void TaskBuilder::add_distractors(int64_t length, Rng& rng, const std::vector<std::string>& answers,
                                  PromptParts* parts) const {
  // "The amber door code is 4821.": another number with its own name, at random places.
  static constexpr std::string_view kKinds[] = {"code", "number", "count", "price", "score"};
  const auto count = std::llround(config_.distractors_per_1k * static_cast<double>(length) / 1000);
  for (int64_t i = 0; i < count; ++i) {
    const int digits = static_cast<int>(rng.uniform_int(3, 6));
    std::string value = random_digits(rng, digits);
    while (std::find(answers.begin(), answers.end(), value) != answers.end()) {
      value = random_digits(rng, digits);
    }
    const auto noun = kNouns[static_cast<size_t>(rng.uniform_int(0, kNouns.size() - 1))];
    const auto kind = kKinds[static_cast<size_t>(rng.uniform_int(0, std::size(kKinds) - 1))];
    parts->inserts.push_back({encoder_.next(fmt::format("The {} {} is {}.", noun, kind, value)), rng.uniform()});
  }
}

PreparedPrompt TaskBuilder::prepare(int64_t length, double depth, int repeat) {
  PreparedPrompt prepared;
  prepared.length = length;
  Rng rng = Rng::stream(config_.seed ^ hash_bytes(info_->name), static_cast<uint64_t>(length),
                        static_cast<uint64_t>(std::llround(depth * 1e6)), static_cast<uint64_t>(repeat));
  if (info_->name == "passkey") {
    prepare_passkey(depth, repeat, &prepared);
  } else {
    prepare_niah(depth, rng, &prepared);
  }
  add_distractors(length, rng, prepared.answers, &prepared.parts);
  if (prepared.parts.fixed_tokens() > length) {
    throw Error("--lengths: {} tokens are too few for {}: instructions, needles and question take {}", length,
                info_->name, prepared.parts.fixed_tokens());
  }
  extend_units(length);
  return prepared;
}

TaskPrompt TaskBuilder::assemble(const PreparedPrompt& prepared) const {
  AssembledPrompt assembled = assemble_prompt(prepared.parts, units_, prepared.length);
  TaskPrompt prompt;
  prompt.ids = std::move(assembled.ids);
  prompt.answers = prepared.answers;
  prompt.max_tokens = prepared.max_tokens;
  for (const size_t i : prepared.answer_inserts) prompt.needle_at.push_back(assembled.insert_at[i]);
  return prompt;
}

void TaskBuilder::prepare_passkey(double depth, int repeat, PreparedPrompt* prepared) const {
  const std::string key = make_passkey(config_.seed, prepared->length, depth, repeat, config_.digits);
  prepared->parts = passkey_parts(encoder_, depth, key);
  prepared->answers = {key};
  prepared->answer_inserts = {0};
  prepared->max_tokens = passkey_max_tokens(encoder_, key);
}

void TaskBuilder::prepare_niah(double depth, Rng& rng, PreparedPrompt* prepared) const {
  const std::string kind = info_->uuid_values ? "uuid" : "number";
  const bool plural = info_->num_values > 1 || info_->num_queries > 1;
  const bool many = plural || info_->num_keys > 1 || info_->haystack == HaystackKind::kNeedles;
  PromptParts& parts = prepared->parts;
  parts.head =
      encoder_.first(many ? fmt::format("Special magic {0}s are hidden in the text that follows. Memorize them: I will "
                                        "ask you about the {0}s afterwards.",
                                        kind)
                          : fmt::format("A special magic {0} is hidden in the text that follows. Memorize it: I will "
                                        "ask you about the {0} afterwards.",
                                        kind));
  std::vector<std::string> keys;
  while (static_cast<int>(keys.size()) < info_->num_keys) {
    const std::string key = random_key(rng);
    const auto holds_key = [&](const std::string& s) { return s.find(" for " + key + " is") != s.npos; };
    const bool taken =
        std::find(keys.begin(), keys.end(), key) != keys.end() ||
        (info_->haystack == HaystackKind::kNeedles && std::any_of(sentences_.begin(), sentences_.end(), holds_key));
    if (!taken) keys.push_back(key);
  }
  // The first needle sits at the cell's depth; all others anywhere, as in RULER.
  for (int k = 0; k < info_->num_keys; ++k) {
    for (int v = 0; v < info_->num_values; ++v) {
      const std::string value = random_value(rng);
      const double at = k == 0 && v == 0 ? depth : rng.uniform();
      if (k < info_->num_queries) {
        prepared->answers.push_back(value);
        prepared->answer_inserts.push_back(parts.inserts.size());
      }
      parts.inserts.push_back({encoder_.next(needle_sentence(kind, keys[static_cast<size_t>(k)], value)), at});
    }
  }
  keys.resize(static_cast<size_t>(info_->num_queries));
  const std::string asked = join_with_and(keys);
  parts.tail = encoder_.next(
      plural ? fmt::format("What are all the special magic {0}s for {1} mentioned in the text? The special "
                           "magic {0}s for {1} mentioned in the text are",
                           kind, asked)
             : fmt::format("What is the special magic {0} for {1} mentioned in the text? The special magic "
                           "{0} for {1} mentioned in the text is",
                           kind, asked));
  prepared->max_tokens = kNiahMaxTokens;
}

double TaskBuilder::score(const std::vector<std::string>& answers, std::string_view output) const {
  if (info_->name == "passkey") return is_passkey_hit(output, answers[0]) ? 1 : 0;
  std::string lower(output);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  double found = 0;
  for (const std::string& answer : answers) found += lower.find(answer) != lower.npos;
  return found / static_cast<double>(answers.size());
}

}  // namespace bam::client
