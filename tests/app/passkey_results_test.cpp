#include "app/client/passkey_results.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "app/client/passkey_run.h"
#include "app/units.h"
#include "base/error.h"

namespace bam::client {
namespace {

using nlohmann::json;

class PasskeyFile : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) / ("bam-passkey-" + std::to_string(getpid()) + "-" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
    path_ = (dir_ / "results.jsonl").string();
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  static json header(const std::string& model = "m", int seed = 0) {
    return {{"type", "header"},
            {"schema", kPasskeySchema},
            {"label", "run"},
            {"config", {{"model", model}, {"seed", seed}}}};
  }
  static PasskeyRecord record(int64_t length, double depth, double score, int repeat = 0) {
    PasskeyRecord r;
    r.length = length, r.depth = depth, r.repeat = repeat, r.score = score;
    r.expected = {"12345"}, r.output = score >= 1 ? "12345" : "nothing \xF0\x9F\x8D\x8F";
    r.prompt_tokens = length, r.cached_tokens = length / 2, r.completion_tokens = 6;
    r.ttft_ms = 0.1 * static_cast<double>(length), r.e2e_ms = r.ttft_ms + 50, r.tpot_ms = 10;
    return r;
  }

  std::filesystem::path dir_;
  std::string path_;
};

TEST_F(PasskeyFile, SecondRunContinues) {
  {
    PasskeyLog log(path_, header());
    log.append(record(512, 0.25, 1));
    PasskeyRecord failed = record(512, 0.5, 0);
    failed.error = "timeout: too slow";
    log.append(failed);
  }
  PasskeyLog log(path_, header());
  EXPECT_EQ(log.num_resumed(), 1u);
  EXPECT_TRUE(log.has_answer(512, 0.25, 0));
  EXPECT_FALSE(log.has_answer(512, 0.5, 0));  // errors are tried again
  EXPECT_FALSE(log.has_answer(512, 0.25, 1));
  EXPECT_FALSE(log.has_answer(1024, 0.25, 0));
  log.append(record(512, 0.5, 1));
  const PasskeyRun run = load_passkey_run(path_);
  ASSERT_EQ(run.records.size(), 2u);  // the new answer replaced the error
  EXPECT_TRUE(run.records[1].ok());
  EXPECT_EQ(run.label, "run");
}

TEST_F(PasskeyFile, KilledWhileWriting) {
  {
    PasskeyLog log(path_, header());
    log.append(record(512, 0, 1));
    log.append(record(512, 1, 1));
  }
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, size - 20);
  {
    PasskeyLog log(path_, header());
    EXPECT_EQ(log.num_resumed(), 1u);
    log.append(record(512, 1, 0));
  }
  const PasskeyRun run = load_passkey_run(path_);
  ASSERT_EQ(run.records.size(), 2u);
  EXPECT_FALSE(run.records[1].hit());
}

TEST_F(PasskeyFile, AnotherConfigurationIsRefusedByName) {
  PasskeyLog(path_, header()).append(record(512, 0, 1));
  try {
    PasskeyLog log(path_, header("m", 1));
    FAIL() << "mixed two configurations";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("seed"), std::string::npos) << error.what();
  }
  EXPECT_THROW(PasskeyLog(path_, header("other")), UsageError);
  // The refused runs left the file alone.
  EXPECT_EQ(load_passkey_run(path_).records.size(), 1u);
}

TEST_F(PasskeyFile, NotAResultFile) {
  EXPECT_THROW(load_passkey_run((dir_ / "missing.jsonl").string()), UsageError);
  for (const char* text : {"", "no newline", "{}\n", "[1]\n", "{\"type\":\"header\",\"schema\":\"other/1\"}\n"}) {
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_THROW(load_passkey_run(path_), UsageError) << text;
  }
  std::ofstream(path_, std::ios::trunc) << header().dump() << "\n{\"type\":\"result\",\"length\":\"x\"}\n";
  EXPECT_THROW(load_passkey_run(path_), UsageError);
}

TEST_F(PasskeyFile, RecordsSurviveTheFile) {
  const PasskeyRecord before = record(4096, 1.0 / 3, 0, 2);
  PasskeyLog(path_, header()).append(before);
  const PasskeyRecord after = load_passkey_run(path_).records.at(0);
  EXPECT_EQ(after.length, before.length);
  EXPECT_DOUBLE_EQ(after.depth, before.depth);
  EXPECT_EQ(after.repeat, 2);
  EXPECT_EQ(after.output, before.output);
  EXPECT_EQ(after.expected, before.expected);
  EXPECT_EQ(after.cached_tokens, before.cached_tokens);
  EXPECT_NEAR(after.ttft_ms, before.ttft_ms, 1e-3);
}

TEST(PasskeyStats, ByLength) {
  std::vector<PasskeyRecord> records;
  for (int i = 0; i < 4; ++i) {
    PasskeyRecord r;
    r.length = 1000, r.depth = i / 3.0, r.score = i == 0 ? 0 : 1;
    r.prompt_tokens = 1000, r.cached_tokens = i < 2 ? 0 : 800;
    r.ttft_ms = i < 2 ? 500 : 100, r.tpot_ms = 20;
    r.server_rss_bytes = 1e6 * (i + 1);
    records.push_back(r);
  }
  PasskeyRecord failed;
  failed.length = 1000, failed.depth = 0.5, failed.error = "x";
  records.push_back(failed);
  const std::vector<LengthStats> stats = stats_by_length(records);
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats[0].answered, 4);
  EXPECT_EQ(stats[0].errors, 1);
  EXPECT_DOUBLE_EQ(stats[0].accuracy(), 0.6);  // errors are misses
  EXPECT_DOUBLE_EQ(stats[0].cold_ttft_ms, 500);
  EXPECT_DOUBLE_EQ(stats[0].cached_fraction, 0.4);
  EXPECT_DOUBLE_EQ(stats[0].prefill_tps, 2000);  // 1000/0.5 s and 200/0.1 s
  EXPECT_DOUBLE_EQ(stats[0].decode_tps, 50);
  for (PasskeyRecord& r : records) r.tpot_ms = 0.0013;  // all tokens in one packet
  EXPECT_TRUE(std::isnan(stats_by_length(records)[0].decode_tps)) << "that is no rate";
  EXPECT_DOUBLE_EQ(stats[0].peak_rss_bytes, 4e6);
  EXPECT_DOUBLE_EQ(overall_accuracy(records), 0.6);
  EXPECT_TRUE(std::isnan(overall_accuracy({})));
}

TEST(PasskeyDepths, Parse) {
  EXPECT_EQ(parse_depths("3"), (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(parse_depths("1"), (std::vector<double>{0.5}));
  EXPECT_EQ(parse_depths("0,25%,1.0"), (std::vector<double>{0, 0.25, 1}));
  EXPECT_EQ(parse_depths("20").size(), 20u);
  for (const char* bad : {"0", "-1,2", "1.5", "150%", "a,b", ""}) EXPECT_THROW(parse_depths(bad), UsageError) << bad;
}

TEST(Metrics, ResidentMemory) {
  EXPECT_EQ(parse_resident_bytes("# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 1.5e+09\n"),
            1.5e9);
  EXPECT_EQ(parse_resident_bytes("process_resident_memory_bytes{a=\"b\"} 42\n"), 42);
  EXPECT_FALSE(parse_resident_bytes("x_process_resident_memory_bytes 42\n").has_value());
  EXPECT_FALSE(parse_resident_bytes("").has_value());
}

}  // namespace
}  // namespace bam::client
