#include "server/api/attention_reply.h"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "base/json.h"
#include "models/tokenizer.h"

namespace bam {
namespace {

// Ranges of so many keys come with all of their tokens.
constexpr int64_t kSpelledRange = 512;

void append_numbers(std::string& out, const char* name, const std::vector<float>& values) {
  fmt::format_to(std::back_inserter(out), R"(,"{}":[)", name);
  for (size_t i = 0; i < values.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{:.6g}", i == 0 ? "" : ",", values[i]);
  }
  out += ']';
}

}  // namespace

void append_attention_begin(std::string& out, const std::string& id, const std::string& model,
                            const AttentionReport& report) {
  fmt::format_to(std::back_inserter(out), R"({{"object":"attention","id":{},"model":{},"position":{},"from":{},)",
                 dump_json_string(id), dump_json_string(model), report.position, report.from);
  fmt::format_to(std::back_inserter(out), R"("to":{},"bin_keys":{},"heads":[)", report.to, report.bin_keys);
}

void append_attention_head(std::string& out, const HeadAttention& head) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, R"({{"layer":{},"head":{},"first_key":{},"outside":{:.6g})", head.layer, head.head, head.first_key,
                 head.outside);
  append_numbers(out, "sum", head.sum);
  append_numbers(out, "max", head.max);
  append_numbers(out, "prior", head.prior);
  append_numbers(out, "spans", head.spans);
  out += R"(,"peaks":[)";
  for (size_t i = 0; i < head.peaks.size(); ++i) {
    fmt::format_to(to, R"({}{{"key":{},"weight":{:.6g},"prior":{:.6g}}})", i == 0 ? "" : ",", head.peaks[i].key,
                   head.peaks[i].weight, head.peaks[i].prior);
  }
  out += "]}";
}

void append_attention_tokens(std::string& out, const Tokenizer& tokenizer, const AttentionReport& report,
                             const std::vector<int32_t>& ids, int64_t context) {
  std::set<int64_t> positions;
  const auto add = [&](int64_t first, int64_t last) {
    for (int64_t at = std::max<int64_t>(0, first); at <= std::min(report.position, last); ++at) positions.insert(at);
  };
  add(report.position - context, report.position);
  if (report.to - report.from <= kSpelledRange) add(report.from, report.to - 1);
  for (const HeadAttention& head : report.heads) {
    for (const HeadAttention::Peak& peak : head.peaks) add(peak.key - context, peak.key + context);
  }
  out += R"(],"tokens":{)";
  bool first = true;
  for (const int64_t at : positions) {
    fmt::format_to(std::back_inserter(out), R"({}"{}":{})", first ? "" : ",", at,
                   dump_json_string(tokenizer.piece(ids[static_cast<size_t>(at)])));
    first = false;
  }
  out += '}';
}

}  // namespace bam
