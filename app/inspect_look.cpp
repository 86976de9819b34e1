#include "app/inspect_look.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "app/client/terminal.h"
#include "app/queue_sink.h"
#include "app/units.h"
#include "models/head_report.h"
#include "server/api/attention_reply.h"

namespace bam {
namespace {

constexpr int64_t kContext = 8;

AttentionReport look(const LoadedModel& model, const LookOptions& options, const std::vector<int32_t>& ids) {
  Request request;
  request.id = "look";
  request.prompt = ids;
  request.sampling.max_tokens = 0;
  request.look = options.look;
  auto sink = std::make_shared<QueueSink>();
  const SubmitResult submitted = model.engine->submit(std::move(request), sink);
  if (submitted.status != SubmitStatus::kAccepted) throw UsageError("{}", submitted.message);
  client::LiveArea live;
  AttentionReport report;
  while (true) {
    Event event = sink->next();
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      live.draw({fmt::format("reading {} of {} tokens", progress->processed, progress->total)});
    } else if (auto* seen = std::get_if<AttentionEvent>(&event)) {
      report = std::move(seen->report);
    } else if (const auto* end = std::get_if<FinishEvent>(&event)) {
      live.clear();
      if (end->reason != FinishReason::kLength) throw Error("{}", end->message);
      return report;
    }
  }
}

std::string as_csv(const AttentionReport& report) {
  std::string out = "layer,head,first_key,last_key,weight,largest,prior\n";
  for (const HeadAttention& head : report.heads) {
    for (size_t b = 0; b < head.sum.size(); ++b) {
      const int64_t first = report.from + static_cast<int64_t>(b) * report.bin_keys;
      out += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g}\n", head.layer, head.head, first,
                         std::min(report.to, first + report.bin_keys) - 1, head.sum[b], head.max[b], head.prior[b]);
    }
  }
  return out;
}

// The token with a few before and behind it, in one line.
std::string around(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t at) {
  const int64_t begin = std::max<int64_t>(0, at - 5);
  const int64_t end = std::min(static_cast<int64_t>(ids.size()), at + 4);
  const auto text = [&](int64_t from, int64_t to) {
    return excerpt(tokenizer.decode({ids.begin() + from, ids.begin() + to}), 60);
  };
  return fmt::format("{}[{}]{}", text(begin, at), text(at, at + 1), text(at + 1, end));
}

std::vector<std::vector<std::string>> as_table(const LoadedModel& model, const AttentionReport& report,
                                               const std::vector<int32_t>& ids) {
  std::vector<std::vector<std::string>> rows = {{"head", "class", "weight", "at", "distance", "prior", "tokens there"}};
  const auto& heads = model.engine->heads();
  const ModelConfig& config = model.engine->model_config();
  for (const HeadAttention& head : report.heads) {
    const HeadReport& info = heads[static_cast<size_t>(head.layer * config.num_heads + head.head)];
    for (const HeadAttention::Peak& peak : head.peaks) {
      rows.push_back({fmt::format("{}/{}", head.layer, head.head), std::string(head_class(config, info)),
                      format_percent(peak.weight), std::to_string(peak.key), std::to_string(report.position - peak.key),
                      format_percent(peak.prior), around(*model.tokenizer, ids, peak.key)});
    }
  }
  return rows;
}

}  // namespace

void print_look(const ModelSettings& settings, const LookOptions& options) {
  const std::string text = options.text.starts_with('@') ? read_text_file(options.text.substr(1)) : options.text;
  if (text.empty()) throw UsageError("--look: the text is empty");
  const LoadedModel model = load_model(settings);
  std::vector<int32_t> ids = model.tokenizer->encode(text, true);
  if (options.position >= static_cast<int64_t>(ids.size())) {
    throw UsageError("--position: {} is outside the {} tokens", options.position, ids.size());
  }
  if (options.position >= 0) ids.resize(static_cast<size_t>(options.position + 1));
  const AttentionReport report = look(model, options, ids);
  if (!options.csv.empty()) write_text_file(options.csv, as_csv(report));
  if (!options.json) {
    std::cout << client::align_table(as_table(model, report, ids));
    return;
  }
  std::string out;
  append_attention_begin(out, "look", settings.model, report);
  for (size_t i = 0; i < report.heads.size(); ++i) {
    if (i > 0) out += ',';
    append_attention_head(out, report.heads[i]);
  }
  append_attention_tokens(out, *model.tokenizer, report, ids, kContext);
  std::cout << out << "}\n";
}

}  // namespace bam
