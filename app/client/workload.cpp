#include "app/client/workload.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "app/client/words.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;

constexpr uint64_t kPromptStream = 1, kPrefixStream = 2, kLengthStream = 3, kShuffleStream = 4;

std::string_view random_word(Rng& rng) {
  const auto at = static_cast<size_t>(rng.uniform_int(0, kAdjectives.size() + kNouns.size() - 1));
  return at < kAdjectives.size() ? kAdjectives[at] : kNouns[at - kAdjectives.size()];
}

std::string chat_role(const std::string& from) {
  if (from == "human" || from == "user") return "user";
  return from == "system" ? "system" : "assistant";
}

std::string text_of(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (object.contains(key) && object[key].is_string()) return object[key].get<std::string>();
  }
  return {};
}

// The first user turn is the prompt; the answer that follows it sets the output length.
void read_turns(const json& turns, const char* role_key, const char* text_key, DatasetEntry* entry) {
  for (const json& turn : turns) {
    if (!turn.is_object()) continue;
    const std::string role = chat_role(text_of(turn, {role_key}));
    const std::string text = text_of(turn, {text_key});
    if (role == "assistant" && !entry->prompt.empty()) {
      entry->completion = text;
      return;
    }
    if (entry->messages.is_null()) entry->messages = json::array();
    entry->messages.push_back({{"role", role}, {"content", text}});
    if (role == "user") entry->prompt += (entry->prompt.empty() ? "" : "\n") + text;
  }
}

DatasetEntry read_entry(const json& line) {
  DatasetEntry entry;
  if (!line.is_object()) return entry;
  if (line.contains("conversations") && line["conversations"].is_array()) {
    read_turns(line["conversations"], "from", "value", &entry);
  } else if (line.contains("messages") && line["messages"].is_array()) {
    read_turns(line["messages"], "role", "content", &entry);
  } else {
    entry.prompt = text_of(line, {"prompt", "text", "question", "instruction"});
    entry.completion = text_of(line, {"completion", "output", "answer", "response"});
  }
  for (const char* key : {"output_len", "max_tokens", "output_tokens"}) {
    if (line.contains(key) && line[key].is_number_integer()) entry.output_tokens = line[key].get<int64_t>();
  }
  return entry;
}

}  // namespace

LengthDistribution LengthDistribution::parse(std::string_view text, std::string_view flag) {
  LengthDistribution d;
  d.text_ = text;
  const std::vector<std::string> parts = split(text, ':');
  const auto count = [&](size_t i) { return static_cast<double>(parse_count(parts[i], flag)); };
  const auto limits = [&] {
    if (parts.size() == 5) d.low_ = count(3), d.high_ = count(4);
  };
  const bool three_or_five = parts.size() == 3 || parts.size() == 5;
  if (parts.size() == 1) {
    d.a_ = count(0);
    if (d.a_ < 1) throw UsageError("{}: a length must be at least 1", flag);
  } else if (parts[0] == "uniform" && parts.size() == 3) {
    d.kind_ = Kind::kUniform;
    d.a_ = count(1), d.b_ = count(2);
    if (d.a_ < 1 || d.b_ < d.a_) throw UsageError("{}: {} is an empty range", flag, text);
  } else if (parts[0] == "normal" && three_or_five) {
    d.kind_ = Kind::kNormal;
    d.a_ = count(1), d.b_ = count(2);
    limits();
  } else if (parts[0] == "lognormal" && three_or_five) {
    d.kind_ = Kind::kLogNormal;
    d.a_ = count(1), d.b_ = parse_number(parts[2], flag);
    limits();
    if (d.a_ < 1 || d.b_ < 0) throw UsageError("{}: {} needs a median of at least 1 and sigma >= 0", flag, text);
  } else {
    throw UsageError("{}: '{}' is none of 512, uniform:A:B, normal:MEAN:STDDEV, lognormal:MEDIAN:SIGMA", flag, text);
  }
  if (d.low_ < 1 || d.high_ < d.low_) throw UsageError("{}: {} has empty limits", flag, text);
  return d;
}

int64_t LengthDistribution::sample(Rng& rng) const {
  switch (kind_) {
    case Kind::kFixed: return static_cast<int64_t>(a_);
    case Kind::kUniform: return rng.uniform_int(static_cast<int64_t>(a_), static_cast<int64_t>(b_));
    case Kind::kNormal: return std::llround(std::clamp(a_ + b_ * rng.normal(), low_, high_));
    case Kind::kLogNormal: return std::llround(std::clamp(a_ * std::exp(b_ * rng.normal()), low_, high_));
  }
  return 1;
}

double arrival_gap_s(Rng& rng, double requests_per_s, double burstiness) {
  if (!std::isfinite(requests_per_s)) return 0;
  return rng.gamma(burstiness, 1 / (requests_per_s * burstiness));
}

std::vector<DatasetEntry> load_dataset(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<DatasetEntry> entries;
  const auto add = [&](const json& line) {
    DatasetEntry entry = read_entry(line);
    if (!entry.prompt.empty()) entries.push_back(std::move(entry));
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '[') {
    const json all = json::parse(text, nullptr, false);
    if (!all.is_array()) throw UsageError("--dataset: {} is not valid JSON", path);
    for (const json& line : all) add(line);
  } else {
    int number = 0;
    for (const std::string& raw : split(text, '\n')) {
      ++number;
      if (raw.find_first_not_of(" \t\r") == raw.npos) continue;
      const json line = json::parse(raw, nullptr, false);
      if (line.is_discarded()) throw UsageError("--dataset: {} line {} is not valid JSON", path, number);
      add(line);
    }
  }
  if (entries.empty()) throw UsageError("--dataset: {} holds no prompt", path);
  return entries;
}

TokenIds token_pool(const EncodeFn& encode) {
  std::string text;
  for (const auto word : kAdjectives) text += std::string(text.empty() ? "" : " ") + std::string(word);
  for (const auto word : kNouns) text += " " + std::string(word);
  TokenIds pool = encode(text);
  std::sort(pool.begin(), pool.end());
  pool.erase(std::unique(pool.begin(), pool.end()), pool.end());
  return pool;
}

Workload::Workload(WorkloadConfig config, TokenIds pool) : config_(std::move(config)), pool_(std::move(pool)) {}

Workload::Workload(WorkloadConfig config, std::vector<DatasetEntry> entries, const EncodeFn& encode)
    : config_(std::move(config)), entries_(std::move(entries)) {
  for (DatasetEntry& entry : entries_) {
    if (entry.output_tokens > 0 || entry.completion.empty()) continue;
    entry.output_tokens = encode ? static_cast<int64_t>(encode(entry.completion).size())
                                 : static_cast<int64_t>(entry.completion.size() / 4 + 1);
  }
  order_.resize(entries_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  Rng rng = Rng::stream(config_.seed, kShuffleStream);
  for (size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[static_cast<size_t>(rng.uniform_int(0, static_cast<int64_t>(i) - 1))]);
  }
}

WorkItem Workload::item(size_t index) const { return entries_.empty() ? random_item(index) : dataset_item(index); }

WorkItem Workload::random_item(size_t index) const {
  Rng lengths = Rng::stream(config_.seed, kLengthStream, index);
  int64_t length = config_.input.sample(lengths);
  WorkItem item;
  item.output_tokens = config_.output.sample(lengths);
  if (pool_.empty()) {
    length = std::max<int64_t>(1, std::llround(static_cast<double>(length) / config_.tokens_per_word));
  }
  const auto shared = static_cast<int64_t>(std::llround(static_cast<double>(length) * config_.prefix_share));
  Rng prefix = Rng::stream(config_.seed, kPrefixStream, index % static_cast<size_t>(config_.num_prefixes));
  Rng own = Rng::stream(config_.seed, kPromptStream, index);
  for (int64_t i = 0; i < length; ++i) {
    Rng& rng = i < shared ? prefix : own;
    if (pool_.empty()) {
      if (i > 0) item.text.push_back(' ');
      item.text += random_word(rng);
    } else {
      item.ids.push_back(pool_[static_cast<size_t>(rng.uniform_int(0, static_cast<int64_t>(pool_.size()) - 1))]);
    }
  }
  if (config_.endpoint == Endpoint::kChat) {
    item.messages = json::array({{{"role", "user"}, {"content", item.text}}});
  }
  return item;
}

WorkItem Workload::dataset_item(size_t index) const {
  const DatasetEntry& entry = entries_[order_[index % order_.size()]];
  Rng lengths = Rng::stream(config_.seed, kLengthStream, index);
  WorkItem item;
  item.output_tokens = entry.output_tokens > 0 ? entry.output_tokens : config_.output.sample(lengths);
  item.text = entry.prompt;
  if (config_.endpoint == Endpoint::kChat) {
    item.messages =
        entry.messages.is_array() ? entry.messages : json::array({{{"role", "user"}, {"content", entry.prompt}}});
  }
  return item;
}

}  // namespace bam::client
