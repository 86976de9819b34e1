#include "engine/snapshot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "engine/engine_core.h"

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::read_file;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;
using testing::write_file;

class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() { testing::write_checkpoint(testing::mixed_reach_spec(), model_dir_.path()); }

  struct Running {
    std::unique_ptr<TestModel> model;
    std::unique_ptr<Engine> engine;
    Outcome run(const Request& request) {
      auto sink = std::make_shared<CollectingSink>(request.n);
      EXPECT_EQ(engine->submit(request, sink).status, SubmitStatus::kAccepted);
      return sink->wait();
    }
  };
  Running start(EngineConfig config, uint64_t tokenizer = 7, const std::string& isa = "auto") {
    Running r;
    config.kv_dir = kv_dir_.path();
    r.model = std::make_unique<TestModel>(model_dir_.path(), testing::TestModelOptions{.isa = isa});
    r.engine = std::make_unique<Engine>(r.model->load(), config, tokenizer);
    return r;
  }
  std::filesystem::path file() const { return kv_dir_ / "doc.bamkv"; }

  // A document, and a question about it.
  void make_document(int64_t length) {
    std::mt19937 rng(31);
    document_ = random_prompt(rng, length);
    Request read = make_request("read", document_, 1);
    read.cache_salt = "tenant";
    question_ = read;
    question_.id = "ask";
    const auto tail = random_prompt(rng, 30);
    question_.prompt.insert(question_.prompt.end(), tail.begin(), tail.end());
    question_.sampling.max_tokens = 40;
    question_.sampling.ignore_eos = true;
    question_.sampling.num_logprobs = 2;
    Running r = start(small_config());
    r.run(read);
    const auto saved = r.engine->save_snapshot("doc", document_, "tenant");
    ASSERT_TRUE(saved.ok()) << saved.error().what();
    expected_ = r.run(question_);
  }
  // The error message, or "" when it was restored.
  std::string restore_error(EngineConfig config = small_config(), uint64_t tokenizer = 7,
                            const std::string& isa = "auto") {
    Running r = start(config, tokenizer, isa);
    const auto result = r.engine->restore_snapshot("doc");
    if (result.ok()) return "";
    const auto s = r.engine->picture();
    EXPECT_EQ(s->pages_free, s->pages_total) << "a refused snapshot takes no memory";
    return result.error().what();
  }

  TempDir model_dir_, kv_dir_;
  std::vector<int32_t> document_;
  Request question_;
  Outcome expected_;
};

TEST_F(SnapshotTest, SurvivesARestartAndContinuesIdentically) {
  make_document(3000);
  Running r = start(small_config());
  const auto restored = r.engine->restore_snapshot("doc");
  ASSERT_TRUE(restored.ok()) << restored.error().what();
  EXPECT_NE(restored->find("2944 tokens"), std::string::npos) << *restored;
  const Outcome o = r.run(question_);
  EXPECT_EQ(o.choices[0].finish.cached_tokens, 2944);
  EXPECT_EQ(o.choices[0].tokens, expected_.choices[0].tokens);
  EXPECT_TRUE(testing::same_logprobs(o.choices[0].logprobs, expected_.choices[0].logprobs));
  // Another salt does not see it.
  Request other = question_;
  other.cache_salt = "somebody else";
  EXPECT_EQ(r.run(other).choices[0].finish.cached_tokens, 0);
}

TEST_F(SnapshotTest, PagesOutOfReachAreNotStored) {
  make_document(6000);
  TestModel model(model_dir_.path());
  const auto loaded = model.load();
  const size_t dense = 93 * loaded->group_reach().size();
  const size_t page = make_kv_layout(DType::kF16, 16, 64).page_bytes();
  EXPECT_LT(std::filesystem::file_size(file()), dense * page * 3 / 4);
}

TEST_F(SnapshotTest, RestoringTwiceKeepsOneCopy) {
  make_document(1000);
  Running r = start(small_config());
  ASSERT_TRUE(r.engine->restore_snapshot("doc").ok());
  const int64_t cached = r.engine->picture()->pages_cached;
  ASSERT_TRUE(r.engine->restore_snapshot("doc").ok());
  r.run(question_);
  EXPECT_LE(r.engine->picture()->pages_cached, cached + 16);
}

TEST_F(SnapshotTest, TruncatedFilesAreRefused) {
  make_document(500);
  const std::string whole = read_file(file());
  for (const size_t size : {size_t{0}, size_t{50}, size_t{104}, size_t{200}, whole.size() / 2, whole.size() - 1}) {
    write_file(file(), std::string_view(whole).substr(0, size));
    EXPECT_NE(restore_error().find("refused"), std::string::npos) << size;
  }
  write_file(file(), whole + "x");
  EXPECT_NE(restore_error().find("bytes"), std::string::npos);
  write_file(file(), whole);
  EXPECT_EQ(restore_error(), "");
}

TEST_F(SnapshotTest, EveryAlteredByteIsNoticed) {
  make_document(200);
  const std::string whole = read_file(file());
  std::mt19937 rng(5);
  Running r = start(small_config());
  for (size_t i = 0; i < 250; ++i) {
    // All of the header and index, and samples of the pages.
    const size_t at = i < 150 ? i : rng() % whole.size();
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ (1 << (rng() % 8)));
    write_file(file(), altered);
    const auto result = r.engine->restore_snapshot("doc");
    EXPECT_FALSE(result.ok()) << "byte " << at;
  }
  EXPECT_EQ(r.engine->picture()->pages_free, r.engine->picture()->pages_total);
}

TEST_F(SnapshotTest, AnythingThatDiffersIsRefusedByName) {
  make_document(500);
  EngineConfig config = small_config();
  EXPECT_NE(restore_error(config, 8).find("tokenizer"), std::string::npos);
  config.kv_dtype = DType::kF32;
  EXPECT_NE(restore_error(config).find("KV dtype is f16, ours is f32"), std::string::npos);
  config = small_config();
  config.page_size = 128;
  EXPECT_NE(restore_error(config).find("page size is 64, ours is 128"), std::string::npos);
  config = small_config();
  config.kv_memory_bytes = 20'000;
  EXPECT_NE(restore_error(config).find("pages"), std::string::npos);
  testing::CheckpointSpec spec = testing::mixed_reach_spec();
  spec.seed = 2;
  testing::write_checkpoint(spec, model_dir_.path());
  EXPECT_NE(restore_error().find("another model"), std::string::npos);
}

TEST_F(SnapshotTest, OnlyRegularFilesAreRead) {
  make_document(200);
  Running r = start(small_config());
  ASSERT_EQ(::mkfifo((kv_dir_ / "pipe.bamkv").c_str(), 0600), 0);
  std::filesystem::create_directory(kv_dir_ / "folder.bamkv");
  for (const char* name : {"pipe", "folder"}) {
    const auto result = r.engine->restore_snapshot(name);
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.error().fault(), SnapshotFault::kRefused) << name;
    EXPECT_NE(std::string(result.error().what()).find("regular file"), std::string::npos) << result.error().what();
  }
  EXPECT_EQ(r.run(make_request("after", document_, 2)).choices[0].tokens.size(), 2u);
}

TEST_F(SnapshotTest, ADiskThatFailsIsToldApartFromABadRequest) {
  make_document(500);
  Running r = start(small_config());
  r.run(make_request("read", document_, 1));
  // No file may grow beyond a few bytes.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tiny{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const auto saved = r.engine->save_snapshot("full", document_, "");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().fault(), SnapshotFault::kFailed) << saved.error().what();
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(kv_dir_.path())) ++files;
  EXPECT_EQ(files, 1) << "only the document is there, nothing half-written";
  EXPECT_TRUE(r.engine->save_snapshot("full", document_, "").ok()) << "and it works again";
  const auto missing = r.engine->restore_snapshot("missing");
  EXPECT_EQ(missing.error().fault(), SnapshotFault::kRefused);
}

TEST_F(SnapshotTest, WhatADeadWriterLeftIsRemovedAtStart) {
  const auto dead = kv_dir_ / "a.bamkv.tmp-00000001", living = kv_dir_ / "b.bamkv.tmp-00000002";
  const auto other = kv_dir_ / "notes.tmp-1";
  for (const auto& path : {dead, living, other}) write_file(path, "half");
  const int fd = ::open(living.c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  start(small_config());
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(living)) << "somebody is writing it";
  EXPECT_TRUE(std::filesystem::exists(other));
  ::close(fd);
}

TEST_F(SnapshotTest, AFolderThatIsMissingIsRefusedAtStart) {
  TestModel model(model_dir_.path());
  EngineConfig config = small_config();
  config.kv_dir = kv_dir_ / "nowhere";
  EXPECT_THROW(Engine(model.load(), config, 7), UsageError);
}

// A stream beside a snapshot gets a token for every piece that is copied, and in between nothing is held.
TEST_F(SnapshotTest, PagesAreCopiedInPiecesBetweenSteps) {
  make_document(3000);
  TestModel owner(model_dir_.path());
  const auto model = owner.load();
  struct NoObserver final : EngineCore::Observer {
    void before_events() override {}
    void on_done(const std::string&) override {}
  } observer;
  EngineStats stats;
  const KvPlan plan = plan_kv(*model, small_config());
  const size_t page = plan.layout.page_bytes();
  for (const bool saving : {true, false}) {
    EngineCore core(*model, plan, stats, steady_time(), observer);
    auto reader = std::make_shared<CollectingSink>(), stream = std::make_shared<CollectingSink>();
    Request read = make_request("read", document_, 1), endless = make_request("stream", {5, 6, 7}, 100'000);
    read.cache_salt = "tenant";
    endless.sampling.ignore_eos = true;
    if (saving) core.add(read, reader, Clock::now());
    while (saving && !reader->peek().done()) core.step();
    core.add(endless, stream, Clock::now());
    while (stream->peek().choices[0].tokens.empty()) core.step();
    int64_t calls = 0;
    PrefixPages copied(
        {}, core.kv(), core.runner(), plan.layout,
        [&](const std::function<void()>& work) {
          ++calls;
          work();
          const int64_t used = core.kv().stage(0).pool().num_used();
          EXPECT_LE(used, 2 * plan.geometry.num_groups()) << "the stream's own pages";
          core.step();
        },
        8 * page);
    SnapshotStore store(kv_dir_.path(), copied);
    const size_t before = stream->peek().choices[0].tokens.size();
    const auto result = saving ? store.save("pieces", document_, "tenant") : store.restore("pieces");
    ASSERT_TRUE(result.ok()) << result.error().what();
    const size_t pages = (std::filesystem::file_size(kv_dir_ / "pieces.bamkv") - 104) / (page + 8);
    EXPECT_GT(pages, 50u);
    EXPECT_GE(calls, static_cast<int64_t>(pages / 8));
    EXPECT_EQ(stream->peek().choices[0].tokens.size() - before, static_cast<size_t>(calls));
    EXPECT_EQ(core.check_integrity(), "");
    core.cancel_all();
    if (!saving) {
      auto sink = std::make_shared<CollectingSink>();
      core.add(question_, sink, Clock::now());
      while (!sink->peek().done()) core.step();
      EXPECT_EQ(sink->peek().choices[0].finish.cached_tokens, 2944);
      EXPECT_EQ(sink->peek().choices[0].tokens, expected_.choices[0].tokens);
    }
    EXPECT_EQ(core.kv().stage(0).pool().num_used(), 0);
  }
}

// Levels that compute the same bits share snapshots; portable code rounds differently, and a continuation must not be a
// mixture of both.
TEST_F(SnapshotTest, TheKindOfArithmeticIsPartOfTheIdentity) {
  make_document(500);
  const std::string own = make_cpu_backend({.num_threads = 1})->numerics();
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    std::unique_ptr<Backend> other;
    try {
      other = make_cpu_backend({.num_threads = 1, .isa = isa});
    } catch (const UsageError&) {
      continue;  // this CPU lacks it
    }
    EXPECT_EQ(restore_error(small_config(), 7, isa).empty(), other->numerics() == own) << isa;
  }
}

TEST_F(SnapshotTest, NamesAndSettingsAreChecked) {
  make_document(200);
  Running r = start(small_config());
  for (const std::string& name : std::vector<std::string>{"", "../x", "a/b", "a b", "ü", std::string(129, 'a')}) {
    EXPECT_FALSE(r.engine->save_snapshot(name, document_, "").ok()) << name;
    EXPECT_FALSE(r.engine->restore_snapshot(name).ok()) << name;
  }
  EXPECT_FALSE(r.engine->restore_snapshot("missing").ok());
  const auto nothing = r.engine->save_snapshot("empty", {1, 2, 3}, "");
  ASSERT_FALSE(nothing.ok());
  EXPECT_NE(std::string(nothing.error().what()).find("prefix cache"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(kv_dir_ / "empty.bamkv"));
  // No temporary files are left behind.
  for (const auto& entry : std::filesystem::directory_iterator(kv_dir_.path())) {
    EXPECT_EQ(entry.path().filename(), "doc.bamkv");
  }
}

}  // namespace
}  // namespace bam
