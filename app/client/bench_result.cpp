#include "app/client/bench_result.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;

constexpr double kBinMs = 100;

double rounded(double v) { return std::round(v * 1e4) / 1e4; }

// 0 %, 0.5 %, …, 100 %: enough to draw a distribution without every sample.
json quantiles(std::vector<double> samples) {
  json out = json::array();
  if (samples.empty()) return out;
  std::sort(samples.begin(), samples.end());
  for (int i = 0; i <= 200; ++i) out.push_back(rounded(percentile(samples, i / 200.0)));
  return out;
}

struct Samples {
  std::vector<double> ttft, tpot, itl, e2e, ttft_schedule, e2e_schedule, lag, connect;
};

Samples collect(const BenchData& data) {
  Samples s;
  for (const RequestRecord& r : data.requests) {
    s.lag.push_back(r.start_ms - r.scheduled_ms);
    if (r.connect_ms > 0) s.connect.push_back(r.connect_ms);
    if (!r.ok()) continue;
    s.e2e.push_back(r.e2e_ms);
    s.e2e_schedule.push_back(r.e2e_ms + r.start_ms - r.scheduled_ms);
    if (r.ttft_ms >= 0) {
      s.ttft.push_back(r.ttft_ms);
      s.ttft_schedule.push_back(r.ttft_ms + r.start_ms - r.scheduled_ms);
    }
    if (r.tpot_ms >= 0) s.tpot.push_back(r.tpot_ms);
    s.itl.insert(s.itl.end(), r.itl_ms.begin(), r.itl_ms.end());
  }
  return s;
}

json errors_json(const BenchData& data) {
  std::map<std::string, int> kinds;
  json examples = json::array();
  int total = 0;
  for (const RequestRecord& r : data.requests) {
    if (r.ok()) continue;
    ++total;
    std::string kind(failure_name(r.failure));
    if (r.failure == Failure::kHttp) kind += fmt::format("_{}", r.status);
    const bool known = std::any_of(examples.begin(), examples.end(),
                                   [&](const json& e) { return e["kind"] == kind && e["message"] == r.error; });
    if (!known && examples.size() < 8) examples.push_back({{"kind", kind}, {"message", r.error}});
    ++kinds[kind];
  }
  return {{"total", total}, {"by_kind", kinds}, {"examples", examples}};
}

json token_checks(const BenchData& data) {
  int64_t input_off = 0, output_off = 0, events_off = 0, no_usage = 0, events = 0;
  for (const RequestRecord& r : data.requests) {
    if (!r.ok()) continue;
    events += r.events;
    no_usage += r.usage_missing;
    if (r.usage_missing) continue;
    input_off += r.expected_input >= 0 && r.input_tokens != r.expected_input;
    output_off += data.ignore_eos && r.output_tokens != r.requested_output;
    events_off += r.events != r.output_tokens;
  }
  return {{"requests_without_usage", no_usage},
          {"prompt_count_differs", input_off},
          {"output_count_differs", output_off},
          {"events_differ_from_output_tokens", events_off},
          {"events", events}};
}

json timeline_json(const BenchData& data) {
  double bin_s = 0.1;
  for (const double candidate : {0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0}) {
    bin_s = candidate;
    if (data.duration_s / candidate <= 60) break;
  }
  const auto count = static_cast<size_t>(std::ceil(data.duration_s / bin_s - 1e-9));
  std::vector<double> tokens(count), running(count);
  std::vector<int64_t> started(count), finished(count);
  const auto bin_of = [&](double ms) {
    return std::min(static_cast<size_t>(std::max(ms, 0.0) / 1000 / bin_s), count - 1);
  };
  if (count > 0) {
    for (size_t i = 0; i < data.token_bins.size(); ++i) {
      tokens[bin_of(static_cast<double>(i) * kBinMs)] += static_cast<double>(data.token_bins[i]) / bin_s;
    }
    for (const RequestRecord& r : data.requests) {
      const double end = r.start_ms + std::max(r.e2e_ms, 0.0);
      ++started[bin_of(r.start_ms)];
      if (r.ok()) ++finished[bin_of(end)];
      // Mean number in flight: the share of each bin that the request covers.
      for (size_t b = bin_of(r.start_ms); b <= bin_of(end); ++b) {
        const double from = std::max(r.start_ms, static_cast<double>(b) * bin_s * 1000);
        const double to = std::min(end, static_cast<double>(b + 1) * bin_s * 1000);
        running[b] += std::max(0.0, to - from) / (bin_s * 1000);
      }
    }
  }
  for (double& v : tokens) v = rounded(v);
  for (double& v : running) v = rounded(v);
  return {
      {"bin_s", bin_s}, {"events_per_s", tokens}, {"running", running}, {"started", started}, {"finished", finished}};
}

json probe_json(const BenchData& data) {
  std::vector<double> idle, loaded, loaded_schedule;
  json series = json::array();
  int errors = 0;
  std::string example;
  for (const ProbeSample& p : data.probes) {
    if (!p.ok) {
      ++errors;
      if (example.empty()) example = p.error;
      continue;
    }
    if (p.ttft_ms < 0) continue;
    (p.at_ms < 0 ? idle : loaded).push_back(p.ttft_ms);
    if (p.at_ms < 0) continue;
    loaded_schedule.push_back(p.from_schedule_ms);
    series.push_back({rounded(p.at_ms), rounded(p.from_schedule_ms)});
  }
  const Summary quiet = summarize(idle), busy = summarize(loaded_schedule);
  return {{"interval_ms", data.probe_interval_ms},
          {"idle_ttft_ms", summary_to_json(quiet)},
          {"ttft_ms", summary_to_json(summarize(loaded))},
          {"ttft_from_schedule_ms", summary_to_json(busy)},
          {"slowdown_p50", quiet.p50 > 0 && busy.count > 0 ? json(rounded(busy.p50 / quiet.p50)) : json()},
          {"slowdown_p99", quiet.p50 > 0 && busy.count > 0 ? json(rounded(busy.p99 / quiet.p50)) : json()},
          {"errors", errors},
          {"error_example", example},
          {"series", series}};
}

json request_json(const RequestRecord& r) {
  json line = {{"scheduled_ms", rounded(r.scheduled_ms)},
               {"start_ms", rounded(r.start_ms)},
               {"input_tokens", r.input_tokens},
               {"output_tokens", r.output_tokens},
               {"status", r.status}};
  if (!r.ok()) {
    line["error"] = r.error;
    line["failure"] = failure_name(r.failure);
    return line;
  }
  line["ttft_ms"] = rounded(r.ttft_ms);
  line["tpot_ms"] = rounded(r.tpot_ms);
  line["e2e_ms"] = rounded(r.e2e_ms);
  line["cached_tokens"] = r.cached_tokens;
  json gaps = json::array();
  for (const float gap : r.itl_ms) gaps.push_back(rounded(gap));
  line["itl_ms"] = std::move(gaps);
  return line;
}

}  // namespace

RequestRecord make_record(const CallResult& call, TimePoint load_start, int64_t expected_input,
                          int64_t requested_output) {
  RequestRecord r;
  r.scheduled_ms = ms_between(load_start, call.scheduled);
  r.start_ms = ms_between(load_start, call.start);
  r.connect_ms = call.connect_ms;
  r.expected_input = expected_input;
  r.requested_output = requested_output;
  r.status = call.status;
  r.failure = call.failure;
  r.error = call.error;
  r.e2e_ms = call.ok() ? call.e2e_ms() : ms_between(call.start, call.end);
  if (!call.ok()) return r;
  r.usage_missing = call.completion_tokens < 0;
  r.events = static_cast<int64_t>(call.chunk_times.size());
  r.input_tokens = call.prompt_tokens >= 0 ? call.prompt_tokens : expected_input;
  r.output_tokens = call.output_tokens();
  r.cached_tokens = call.cached_tokens;
  if (!call.has_first_token()) return r;
  r.ttft_ms = call.ttft_ms();
  if (r.output_tokens > 1) r.tpot_ms = call.tpot_ms();
  for (size_t i = 1; i < call.chunk_times.size(); ++i) {
    r.itl_ms.push_back(static_cast<float>(ms_between(call.chunk_times[i - 1], call.chunk_times[i])));
  }
  return r;
}

bool Slo::met_by(const RequestRecord& r) const {
  if (!r.ok()) return false;
  if (ttft_ms >= 0 && !(r.ttft_ms >= 0 && r.ttft_ms <= ttft_ms)) return false;
  // A single token has no time per output token: nothing to violate.
  if (tpot_ms >= 0 && r.tpot_ms > tpot_ms) return false;
  return e2e_ms < 0 || r.e2e_ms <= e2e_ms;
}

Slo parse_slo(const std::vector<std::string>& items) {
  Slo slo;
  for (const std::string& item : items) {
    const std::vector<std::string> parts = split(item, ':');
    if (parts.size() != 2) throw UsageError("--goodput: '{}' is not NAME:MILLISECONDS", item);
    const double ms = parse_number(parts[1], "--goodput");
    if (ms < 0) throw UsageError("--goodput: {} is negative", item);
    if (parts[0] == "ttft") {
      slo.ttft_ms = ms;
    } else if (parts[0] == "tpot") {
      slo.tpot_ms = ms;
    } else if (parts[0] == "e2el" || parts[0] == "e2e") {
      slo.e2e_ms = ms;
    } else {
      throw UsageError("--goodput: '{}' is none of ttft, tpot, e2el", parts[0]);
    }
  }
  return slo;
}

json summary_to_json(const Summary& s) {
  return {{"count", s.count},      {"mean", rounded(s.mean)}, {"stddev", rounded(s.stddev)}, {"min", rounded(s.min)},
          {"p50", rounded(s.p50)}, {"p90", rounded(s.p90)},   {"p99", rounded(s.p99)},       {"max", rounded(s.max)}};
}

json bench_to_json(const BenchData& data, bool with_requests) {
  const Samples s = collect(data);
  int64_t completed = 0, good = 0, input = 0, output = 0, cached = 0;
  bool cached_known = false;
  for (const RequestRecord& r : data.requests) {
    if (!r.ok()) continue;
    ++completed;
    good += data.slo.any() && data.slo.met_by(r);
    input += std::max<int64_t>(r.input_tokens, 0);
    output += r.output_tokens;
    cached_known |= r.cached_tokens >= 0;
    cached += std::max<int64_t>(r.cached_tokens, 0);
  }
  const double seconds = std::max(data.duration_s, 1e-9);
  const auto per_second = [&](int64_t n) { return rounded(static_cast<double>(n) / seconds); };
  json out = {{"schema", kBenchSchema},
              {"created", data.created},
              {"label", data.label},
              {"target", data.target},
              {"config", data.config},
              {"duration_s", rounded(data.duration_s)},
              {"completed", completed},
              {"failed", static_cast<int64_t>(data.requests.size()) - completed},
              {"input_tokens", input},
              {"output_tokens", output},
              {"cached_tokens", cached_known ? json(cached) : json()},
              {"request_throughput", per_second(completed)},
              {"output_throughput", per_second(output)},
              {"total_token_throughput", per_second(input + output)}};
  if (data.slo.any()) {
    json targets = json::object();
    if (data.slo.ttft_ms >= 0) targets["ttft_ms"] = data.slo.ttft_ms;
    if (data.slo.tpot_ms >= 0) targets["tpot_ms"] = data.slo.tpot_ms;
    if (data.slo.e2e_ms >= 0) targets["e2e_ms"] = data.slo.e2e_ms;
    out["goodput"] = {{"slo", targets}, {"good_requests", good}, {"requests_per_s", per_second(good)}};
  }
  const std::pair<const char*, const std::vector<double>*> metrics[] = {{"ttft_ms", &s.ttft},
                                                                        {"tpot_ms", &s.tpot},
                                                                        {"itl_ms", &s.itl},
                                                                        {"e2e_ms", &s.e2e},
                                                                        {"ttft_from_schedule_ms", &s.ttft_schedule},
                                                                        {"e2e_from_schedule_ms", &s.e2e_schedule},
                                                                        {"send_lag_ms", &s.lag},
                                                                        {"connect_ms", &s.connect}};
  json distributions = json::object();
  for (const auto& [name, samples] : metrics) {
    out[name] = summary_to_json(summarize(*samples));
    if (samples == &s.ttft || samples == &s.tpot || samples == &s.itl || samples == &s.e2e) {
      distributions[name] = quantiles(*samples);
    }
  }
  out["distributions"] = std::move(distributions);
  out["timeline"] = timeline_json(data);
  out["tokens"] = token_checks(data);
  out["errors"] = errors_json(data);
  out["client"] = {{"max_stall_ms", rounded(data.max_stall_ms)},
                   {"busy_fraction", rounded(data.busy_fraction)},
                   {"max_in_flight", data.max_in_flight},
                   {"connections_opened", s.connect.size()}};
  if (data.probe_interval_ms > 0) out["probe"] = probe_json(data);
  if (with_requests) {
    out["requests"] = json::array();
    for (const RequestRecord& r : data.requests) out["requests"].push_back(request_json(r));
  }
  return out;
}

json load_bench_result(const std::string& path) {
  json result = json::parse(read_text_file(path), nullptr, false);
  if (!result.is_object() || result.value("schema", "") != kBenchSchema) {
    throw UsageError("{} is not a bench result file ({})", path, kBenchSchema);
  }
  for (const char* key : {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "errors", "timeline", "distributions"}) {
    if (!result.contains(key) || !result[key].is_object()) throw UsageError("{}: '{}' is missing", path, key);
  }
  if (!result.contains("label") || !result["label"].is_string() || result["label"].get<std::string>().empty()) {
    result["label"] = std::filesystem::path(path).stem().string();
  }
  return result;
}

}  // namespace bam::client
