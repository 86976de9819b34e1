#include "app/client/bench_result.h"

#include <cmath>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

#include "app/client/workload.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

const TimePoint kEpoch = TimePoint(std::chrono::hours(1));

// Started at `start`, first token after ttft, then `tokens` - 1 more, `gap` apart.
CallResult call_with(int start, int ttft, int gap, int tokens) {
  CallResult call;
  call.scheduled = kEpoch + milliseconds(start) - milliseconds(5);
  call.start = kEpoch + milliseconds(start);
  for (int i = 0; i < tokens; ++i) call.chunk_times.push_back(call.start + milliseconds(ttft + gap * i));
  call.last_choice = call.chunk_times.back();
  call.end = call.last_choice + milliseconds(1);
  call.streamed = true;
  call.status = 200;
  call.prompt_tokens = 100;
  call.completion_tokens = tokens;
  call.cached_tokens = 25;
  return call;
}

TEST(CallResult, DefinitionsOfVllm) {
  const CallResult call = call_with(0, 200, 50, 5);
  EXPECT_DOUBLE_EQ(call.ttft_ms(), 200);
  EXPECT_DOUBLE_EQ(call.e2e_ms(), 400);
  EXPECT_DOUBLE_EQ(call.tpot_ms(), 50);  // (400 - 200) / 4
  CallResult merged = call;
  merged.completion_tokens = 9;  // several tokens in one event: the count decides, not the events
  EXPECT_DOUBLE_EQ(merged.tpot_ms(), 25);
  EXPECT_TRUE(std::isnan(call_with(0, 200, 50, 1).tpot_ms()));
}

BenchData sample_data() {
  BenchData data;
  data.config = {{"mode", "open"}, {"prompts", "ids"}};
  data.label = "a";
  data.duration_s = 2;
  data.slo = parse_slo({"ttft:250", "tpot:60"});
  for (int i = 0; i < 4; ++i) {
    data.requests.push_back(make_record(call_with(i * 400, 100 * (i + 1), 50, 5), kEpoch, 100, 5));
  }
  CallResult failed = call_with(1700, 10, 10, 1);
  failed.failure = Failure::kHttp;
  failed.status = 429;
  failed.error = "HTTP 429: queue full";
  data.requests.push_back(make_record(failed, kEpoch, 100, 5));
  data.token_bins = {0, 3, 4, 13};
  return data;
}

TEST(BenchResult, Figures) {
  const json r = bench_to_json(sample_data(), true);
  EXPECT_EQ(r["completed"], 4);
  EXPECT_EQ(r["failed"], 1);
  EXPECT_EQ(r["input_tokens"], 400);
  EXPECT_EQ(r["output_tokens"], 20);
  EXPECT_EQ(r["cached_tokens"], 100);
  EXPECT_DOUBLE_EQ(r["request_throughput"], 2);
  EXPECT_DOUBLE_EQ(r["output_throughput"], 10);
  EXPECT_DOUBLE_EQ(r["total_token_throughput"], 210);
  EXPECT_DOUBLE_EQ(r["ttft_ms"]["mean"], 250);
  EXPECT_DOUBLE_EQ(r["ttft_ms"]["p50"], 250);
  EXPECT_DOUBLE_EQ(r["ttft_ms"]["p90"], 370);
  EXPECT_DOUBLE_EQ(r["ttft_ms"]["max"], 400);
  EXPECT_DOUBLE_EQ(r["tpot_ms"]["p99"], 50);
  EXPECT_EQ(r["itl_ms"]["count"], 16);
  EXPECT_DOUBLE_EQ(r["e2e_ms"]["mean"], 450);
  // Five ms between plan and socket count against the server only "from schedule".
  EXPECT_DOUBLE_EQ(r["send_lag_ms"]["p50"], 5);
  EXPECT_DOUBLE_EQ(r["ttft_from_schedule_ms"]["mean"], 255);
  EXPECT_EQ(r["goodput"]["good_requests"], 2);  // TTFT 100 and 200
  EXPECT_DOUBLE_EQ(r["goodput"]["requests_per_s"], 1);
  EXPECT_EQ(r["errors"]["by_kind"]["http_429"], 1);
  EXPECT_EQ(r["errors"]["examples"][0]["message"], "HTTP 429: queue full");
  EXPECT_EQ(r["requests"].size(), 5u);
  EXPECT_FALSE(r.contains("probe"));
}

TEST(BenchResult, Timeline) {
  const json t = bench_to_json(sample_data(), false)["timeline"];
  EXPECT_DOUBLE_EQ(t["bin_s"], 0.1);
  ASSERT_EQ(t["running"].size(), 20u);
  double events = 0, started = 0, busy = 0;
  for (const json& v : t["events_per_s"]) events += v.get<double>() * 0.1;
  for (const json& v : t["started"]) started += v.get<double>();
  for (const json& v : t["running"]) busy += v.get<double>() * 0.1;
  EXPECT_NEAR(events, 20, 1e-6);
  EXPECT_EQ(started, 5);
  // Sum of the time in flight: 300 + 400 + 500 + 600 ms and 11 ms of the failed one.
  EXPECT_NEAR(busy, 1.811, 1e-3);
}

TEST(BenchResult, TokenChecks) {
  BenchData data = sample_data();
  CallResult odd = call_with(0, 100, 50, 5);
  odd.prompt_tokens = 101;    // the server put a BOS in front
  odd.completion_tokens = 7;  // two tokens came without text of their own
  data.requests.push_back(make_record(odd, kEpoch, 100, 5));
  CallResult silent = call_with(0, 100, 50, 5);
  silent.completion_tokens = -1;
  silent.prompt_tokens = -1;
  data.requests.push_back(make_record(silent, kEpoch, 100, 5));
  const json checks = bench_to_json(data, false)["tokens"];
  EXPECT_EQ(checks["prompt_count_differs"], 1);
  EXPECT_EQ(checks["output_count_differs"], 1);
  EXPECT_EQ(checks["events_differ_from_output_tokens"], 1);
  EXPECT_EQ(checks["requests_without_usage"], 1);
}

TEST(BenchResult, ProbesAreCountedFromTheirSchedule) {
  BenchData data = sample_data();
  data.probe_interval_ms = 100;
  for (const double idle : {10.0, 10.0, 12.0}) data.probes.push_back({-1, idle, idle, idle, true, ""});
  data.probes.push_back({100, 20, 20, 500, true, ""});
  data.probes.push_back({200, 20, 20, 100, true, ""});
  data.probes.push_back({300, -1, -1, -1, false, "timeout"});
  const json p = bench_to_json(data, false)["probe"];
  EXPECT_DOUBLE_EQ(p["idle_ttft_ms"]["p50"], 10);
  EXPECT_DOUBLE_EQ(p["ttft_ms"]["p50"], 20);
  EXPECT_DOUBLE_EQ(p["ttft_from_schedule_ms"]["max"], 500);
  EXPECT_DOUBLE_EQ(p["slowdown_p50"], 30);
  EXPECT_EQ(p["errors"], 1);
  EXPECT_EQ(p["series"].size(), 2u);
}

TEST(BenchResult, CompareTable) {
  BenchData faster = sample_data();
  faster.label = "b";
  faster.duration_s = 1;
  const auto rows = bench_table({bench_to_json(sample_data(), false), bench_to_json(faster, false)});
  EXPECT_EQ(rows[0], (std::vector<std::string>{"", "a", "b", "change"}));
  bool seen = false;
  for (const auto& row : rows) {
    if (row[0] != "requests/s") continue;
    seen = true;
    EXPECT_EQ(row, (std::vector<std::string>{"requests/s", "2.00", "4.00", "+100.0 %"}));
  }
  EXPECT_TRUE(seen);
}

TEST(BenchResult, GoodputTargets) {
  EXPECT_THROW(parse_slo({"ttft"}), UsageError);
  EXPECT_THROW(parse_slo({"latency:3"}), UsageError);
  EXPECT_THROW(parse_slo({"ttft:-3"}), UsageError);
  EXPECT_FALSE(parse_slo({}).any());
  RequestRecord one_token;
  one_token.ttft_ms = 10, one_token.e2e_ms = 10;
  EXPECT_TRUE(parse_slo({"tpot:1"}).met_by(one_token));
  EXPECT_FALSE(parse_slo({"e2el:5"}).met_by(one_token));
}

TEST(BenchResult, OnlyItsOwnFiles) {
  const auto path = std::filesystem::path(testing::TempDir()) / ("bam-bench-" + std::to_string(getpid()) + ".json");
  write_text_file(path.string(), bench_to_json(sample_data(), false).dump());
  EXPECT_EQ(load_bench_result(path.string())["label"], "a");
  write_text_file(path.string(), "{\"schema\":\"bam.bench/1\"}");
  EXPECT_THROW(load_bench_result(path.string()), UsageError);
  write_text_file(path.string(), "not json");
  EXPECT_THROW(load_bench_result(path.string()), UsageError);
  std::filesystem::remove(path);
  EXPECT_THROW(load_bench_result(path.string()), UsageError);
}

TEST(Workload, ExactLengthsSharedPrefixesAndSeeds) {
  WorkloadConfig config;
  config.input = LengthDistribution::parse("uniform:90:110", "x");
  config.output = LengthDistribution::parse("7", "x");
  config.prefix_share = 0.5;
  config.num_prefixes = 2;
  config.seed = 4;
  TokenIds pool;
  for (int i = 0; i < 500; ++i) pool.push_back(1000 + i);
  const Workload load(config, pool);
  const auto common = [](const TokenIds& a, const TokenIds& b) {
    size_t n = 0;
    while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
    return n;
  };
  for (size_t i = 0; i < 20; ++i) {
    const WorkItem item = load.item(i);
    ASSERT_GE(item.ids.size(), 90u);
    ASSERT_LE(item.ids.size(), 110u);
    EXPECT_EQ(item.output_tokens, 7);
    EXPECT_EQ(item.ids, load.item(i).ids);
    EXPECT_GE(common(item.ids, load.item(i + 2).ids), 45u);  // same group
    EXPECT_LT(common(item.ids, load.item(i + 2).ids), 60u);
    EXPECT_LT(common(item.ids, load.item(i + 1).ids), 3u);  // other group
    for (const int32_t id : item.ids) ASSERT_TRUE(id >= 1000 && id < 1500);
  }
  config.seed = 5;
  EXPECT_NE(Workload(config, pool).item(0).ids, load.item(0).ids);
  config.endpoint = Endpoint::kChat;
  EXPECT_EQ(Workload(config, {}).item(0).messages[0]["role"], "user");
}

TEST(Workload, DatasetShapes) {
  const auto path = std::filesystem::path(testing::TempDir()) / ("bam-data-" + std::to_string(getpid()) + ".json");
  write_text_file(path.string(),
                  R"([{"conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello there"}]},
                      {"conversations":[{"from":"gpt","value":"no question"}]}])");
  std::vector<DatasetEntry> entries = load_dataset(path.string());
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].prompt, "Hi");
  EXPECT_EQ(entries[0].completion, "Hello there");
  EXPECT_EQ(entries[0].messages.size(), 1u);
  write_text_file(path.string(),
                  "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Q\"}]}\n\n"
                  "{\"prompt\":\"P\",\"max_tokens\":9}\n");
  entries = load_dataset(path.string());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].messages.size(), 2u);
  EXPECT_EQ(entries[1].output_tokens, 9);
  WorkloadConfig config;
  config.output = LengthDistribution::parse("33", "x");
  const Workload load(config, entries, {});
  std::multiset<int64_t> lengths;
  for (size_t i = 0; i < 4; ++i) lengths.insert(load.item(i).output_tokens);
  EXPECT_EQ(lengths, (std::multiset<int64_t>{9, 9, 33, 33}));
  write_text_file(path.string(), "{\"prompt\":\"P\"}\n{broken\n");
  EXPECT_THROW(load_dataset(path.string()), UsageError);
  write_text_file(path.string(), "[]");
  EXPECT_THROW(load_dataset(path.string()), UsageError);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace bam::client
