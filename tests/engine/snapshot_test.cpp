#include "engine/snapshot.h"

#include <gtest/gtest.h>

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
  Running start(EngineConfig config, uint64_t tokenizer = 7) {
    Running r;
    config.kv_dir = kv_dir_.path();
    r.model = std::make_unique<TestModel>(model_dir_.path());
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
  std::string restore_error(EngineConfig config = small_config(), uint64_t tokenizer = 7) {
    Running r = start(config, tokenizer);
    const auto result = r.engine->restore_snapshot("doc");
    if (result.ok()) return "";
    const auto s = r.engine->snapshot();
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
  const int64_t cached = r.engine->snapshot()->pages_cached;
  ASSERT_TRUE(r.engine->restore_snapshot("doc").ok());
  r.run(question_);
  EXPECT_LE(r.engine->snapshot()->pages_cached, cached + 16);
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
  EXPECT_EQ(r.engine->snapshot()->pages_free, r.engine->snapshot()->pages_total);
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
