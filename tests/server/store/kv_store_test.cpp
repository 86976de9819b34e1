#include "server/store/kv_store.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/engine/engine_fixture.h"

namespace bam {
namespace {

using testing::CollectingSink;
using testing::make_request;
using testing::Outcome;
using testing::random_prompt;
using testing::small_config;
using testing::TempDir;
using testing::TestModel;

constexpr double kPatient = 600;

class KvStoreTest : public ::testing::Test {
 protected:
  KvStoreTest() {
    testing::write_checkpoint(testing::mixed_reach_spec(), model_dir_.path());
    std::mt19937 rng(31);
    document_ = random_prompt(rng, 3000);
    question_ = make_request("ask", document_, 40);
    const auto tail = random_prompt(rng, 30);
    question_.prompt.insert(question_.prompt.end(), tail.begin(), tail.end());
    question_.cache_salt = "tenant";
    question_.sampling.ignore_eos = true;
    question_.sampling.num_logprobs = 2;
    Replica alone = start("");
    expected_ = alone.run(question_);
  }

  struct Replica {
    std::unique_ptr<TestModel> model;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<KvStore> store;

    Outcome run(const Request& request) {
      auto sink = std::make_shared<CollectingSink>(request.n);
      EXPECT_EQ(engine->submit(request, sink).status, SubmitStatus::kAccepted);
      return sink->wait();
    }
    const PrefixStoreStats& stats() const { return *engine->stats().store; }
    ~Replica() { store.reset(); }
    Replica() = default;
    Replica(Replica&&) = default;
  };

  KvStoreConfig store_config(const std::string& place) const {
    return {.place = place, .min_tokens = 512, .timeout_s = kPatient, .stretch_tokens = 256, .part_bytes = 20'000};
  }
  Replica start(const std::string& place, EngineConfig config = small_config(), uint64_t tokenizer = 7) {
    return start(store_config(place), std::move(config), tokenizer);
  }
  Replica start(const KvStoreConfig& store, EngineConfig config = small_config(), uint64_t tokenizer = 7) {
    Replica r;
    r.model = std::make_unique<TestModel>(model_dir_.path());
    r.engine = std::make_unique<Engine>(r.model->load(), std::move(config), tokenizer);
    if (!store.place.empty()) r.store = std::make_unique<KvStore>(store, *r.engine);
    return r;
  }
  std::string folder() const { return store_dir_.path().string(); }

  // Computes the document on a replica of its own, which writes all of it before it ends.
  void write_document() {
    Replica writer = start(folder());
    Request read = make_request("read", document_, 1);
    read.cache_salt = "tenant";
    writer.run(read);
    writer.store.reset();
    EXPECT_GT(writer.stats().written_bytes, 0u);
    EXPECT_EQ(writer.stats().errors, 0u);
  }
  void expect_same(const Outcome& outcome) const {
    EXPECT_EQ(outcome.choices[0].tokens, expected_.choices[0].tokens);
    EXPECT_TRUE(testing::same_logprobs(outcome.choices[0].logprobs, expected_.choices[0].logprobs));
  }
  std::vector<std::filesystem::path> objects() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_dir_.path())) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

  TempDir model_dir_, store_dir_;
  std::vector<int32_t> document_;
  Request question_;
  Outcome expected_;
};

TEST_F(KvStoreTest, AnotherReplicaContinuesIdentically) {
  write_document();
  Replica other = start(folder());
  const Outcome outcome = other.run(question_);
  EXPECT_EQ(outcome.choices[0].finish.cached_tokens, 11 * 256);
  expect_same(outcome);
  EXPECT_EQ(other.stats().hits, 1u);
  EXPECT_EQ(other.stats().restored_tokens, 11u * 256);
  // What is cached here already is not looked for again.
  Request again = question_;
  again.id = "again";
  EXPECT_GT(other.run(again).choices[0].finish.cached_tokens, 11 * 256);
  EXPECT_EQ(other.stats().hits + other.stats().misses, 1u);
}

TEST_F(KvStoreTest, SaltAndIdentityKeepPrefixesApart) {
  write_document();
  Request stranger = question_;
  stranger.cache_salt = "somebody else";
  Replica other = start(folder());
  EXPECT_EQ(other.run(stranger).choices[0].finish.cached_tokens, 0);
  EXPECT_EQ(other.stats().misses, 1u);
  EngineConfig eight = small_config();
  eight.kv_dtype = DType::kI8;
  EXPECT_EQ(start(folder(), eight).run(question_).choices[0].finish.cached_tokens, 0);
  EXPECT_EQ(start(folder(), small_config(), 8).run(question_).choices[0].finish.cached_tokens, 0);
}

TEST_F(KvStoreTest, PromptsThatPartEarlierUseWhatTheyShare) {
  write_document();
  Request parted = question_;
  parted.prompt.resize(2700);
  for (size_t i = 2600; i < parted.prompt.size(); ++i) parted.prompt[i] = 3 + static_cast<int32_t>(i) % 50;
  const Outcome alone = start("").run(parted);
  Replica other = start(folder());
  const Outcome outcome = other.run(parted);
  EXPECT_EQ(outcome.choices[0].finish.cached_tokens, 10 * 256);
  EXPECT_EQ(outcome.choices[0].tokens, alone.choices[0].tokens);
  EXPECT_TRUE(testing::same_logprobs(outcome.choices[0].logprobs, alone.choices[0].logprobs));
}

TEST_F(KvStoreTest, ShortPromptsAreLeftAlone) {
  Replica r = start(folder());
  Request request = question_;
  request.prompt.resize(500);
  r.run(request);
  r.store.reset();
  EXPECT_TRUE(objects().empty());
  EXPECT_EQ(r.stats().hits + r.stats().misses, 0u);
}

TEST_F(KvStoreTest, DamagedObjectsAreRefusedAndWrittenAnew) {
  write_document();
  const auto files = objects();
  ASSERT_GT(files.size(), 20u);
  const auto damage = [](const std::filesystem::path& file, size_t how) {
    const auto size = std::filesystem::file_size(file);
    if (how == 0) return std::filesystem::resize_file(file, size / 2);
    if (how == 1) return std::filesystem::resize_file(file, 0);
    if (how == 2) return std::filesystem::resize_file(file, size + 1);
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(size - 5));
    bytes.put('\x55');
  };
  for (size_t how = 0; how < 4; ++how) {
    for (const auto& file : files) damage(file, how);
    Replica r = start(folder());
    const Outcome outcome = r.run(question_);
    EXPECT_EQ(outcome.choices[0].finish.cached_tokens, 0);
    expect_same(outcome);
    EXPECT_GT(r.stats().refused_objects, 0u);
    EXPECT_EQ(r.stats().hits, 0u);
  }
  // One damaged object after the other is found, computed and written again.
  int rounds = 0;
  for (bool hit = false; !hit; ++rounds) {
    ASSERT_LT(rounds, 100);
    Replica r = start(folder());
    expect_same(r.run(question_));
    hit = r.stats().hits == 1;
  }
  EXPECT_GT(rounds, 1);
}

TEST_F(KvStoreTest, MissingObjectsAreComputedAndWrittenAnew) {
  write_document();
  const auto files = objects();
  for (size_t i = 0; i < files.size(); i += 7) {
    std::filesystem::remove(files[i]);
    {
      Replica r = start(folder());
      expect_same(r.run(question_));
    }
    Replica r = start(folder());
    const Outcome outcome = r.run(question_);
    EXPECT_EQ(outcome.choices[0].finish.cached_tokens, 11 * 256) << i;
    expect_same(outcome);
  }
}

TEST_F(KvStoreTest, AStoreThatIsGoneCostsNothingButItsAbsence) {
  auto parent = std::make_unique<TempDir>();
  Replica r = start((*parent / "store").string());
  parent.reset();
  expect_same(r.run(question_));
  r.store.reset();
  EXPECT_GE(r.stats().errors, 1u);
}

// A server that accepts connections and says nothing, as one that hangs does.
class SilentServer {
 public:
  SilentServer() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() { ::close(socket_); }
  int port() const { return port_; }

 private:
  int socket_, port_ = 0;
};

TEST_F(KvStoreTest, AStoreThatHangsHoldsNobodyUp) {
  SilentServer silent;
  KvStoreConfig config = store_config(fmt::format("redis:127.0.0.1:{}", silent.port()));
  config.timeout_s = 0.2;
  std::unique_ptr<Replica> r;
  try {
    r = std::make_unique<Replica>(start(config));
  } catch (const UsageError&) {
    GTEST_SKIP() << "built without hiredis";
  }
  for (const char* id : {"first", "second"}) {
    Request request = question_;
    request.id = id;
    request.cache_salt = id;
    expect_same(r->run(request));
  }
  EXPECT_GE(r->stats().timeouts + r->stats().errors, 1u);
  EXPECT_EQ(r->stats().hits, 0u);
}

TEST_F(KvStoreTest, RequestsThatWaitForTheStoreCanBeCancelled) {
  SilentServer silent;
  std::unique_ptr<Replica> r;
  try {
    KvStoreConfig config = store_config(fmt::format("redis:127.0.0.1:{}", silent.port()));
    config.timeout_s = 3;
    r = std::make_unique<Replica>(start(config));
  } catch (const UsageError&) {
    GTEST_SKIP() << "built without hiredis";
  }
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_EQ(r->engine->submit(question_, sink).status, SubmitStatus::kAccepted);
  EXPECT_TRUE(r->engine->cancel("ask"));
  EXPECT_EQ(sink->wait().choices[0].finish.reason, FinishReason::kCancelled);
  EXPECT_TRUE(r->engine->drain(std::chrono::minutes(5)));
}

TEST_F(KvStoreTest, AStoreNeedsThePrefixCache) {
  EngineConfig config = small_config();
  config.prefix_cache = false;
  EXPECT_THROW(start(folder(), config), UsageError);
}

TEST_F(KvStoreTest, AFullFolderStaysBelowItsLimit) {
  KvStoreConfig config = store_config(folder());
  config.limit_bytes = 1 << 20;
  Replica r = start(config);
  std::mt19937 rng(5);
  for (int i = 0; i < 4; ++i) {
    r.run(make_request(fmt::format("doc{}", i), random_prompt(rng, 3000), 1));
  }
  r.store.reset();
  uint64_t bytes = 0;
  for (const auto& file : objects()) bytes += std::filesystem::file_size(file);
  EXPECT_GT(r.stats().written_bytes, 1u << 20);
  EXPECT_LE(bytes, 1u << 20);
}

}  // namespace
}  // namespace bam
