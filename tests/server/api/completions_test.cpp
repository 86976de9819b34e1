// The life of a generation without HTTP: a real engine and model, and a connection that the test plays.
#include "server/api/completions.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "tests/server/api/fake_call.h"
#include "tests/support/temp_dir.h"

namespace bam {
namespace {

using testing::FakeCall;

ServerConfig server_config() {
  ServerConfig config;
  config.served_model_names = {"test"};
  return config;
}

class Completions : public ::testing::Test {
 protected:
  Completions()
      : checkpoint_(testing::write_checkpoint(testing::mixed_reach_spec(), dir_ / "checkpoint")),
        tokenizer_(Tokenizer::load(checkpoint_)),
        test_model_(checkpoint_),
        engine_(test_model_.load(), testing::small_config(), 0),
        model_(engine_, *tokenizer_) {
    context_.model.store(&model_);
  }

  // On "a worker": up to the point where the connection's thread has to go on.
  std::shared_ptr<FakeCall> call(const std::string& body, ApiKind kind = ApiKind::kCompletion) {
    auto call = std::make_shared<FakeCall>();
    call->request_id = "r" + std::to_string(next_id_++);
    call->body = body;
    call->caller = caller_;
    (kind == ApiKind::kChat ? handle_chat_completions : handle_completions)(context_, call);
    return call;
  }
  // Plays the connection's thread and the workers until `ready`.
  template <typename F>
  void run_until(FakeCall& call, F ready) {
    while (!ready()) {
      while (workers_.queue.run_one()) {
      }
      if (call.loop.run_one()) continue;
      if (workers_.queue.size() == 0) call.loop.wait();
    }
  }
  void run_to_answer(FakeCall& call) {
    run_until(call, [&] { return call.answer.has_value() || (call.stream && call.stream->closed); });
  }
  void wait_idle() {
    while (engine_.picture()->running + engine_.picture()->waiting > 0) std::this_thread::yield();
  }
  Json reply(FakeCall& call) {
    run_to_answer(call);
    EXPECT_EQ(call.answer->status, 200) << call.answer->body;
    return Json::parse(call.answer->body);
  }
  uint64_t finished(FinishReason reason) { return engine_.stats().finished[static_cast<size_t>(reason)].load(); }

  testing::TempDir dir_;
  std::filesystem::path checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  testing::TestModel test_model_;
  Engine engine_;
  ServingModel model_;
  testing::ManualWorkers workers_;
  ServerContext context_{server_config(), workers_};
  Caller caller_;
  int next_id_ = 1;
};

constexpr const char* kPrompt = R"("prompt": [5, 6, 7, 8], "ignore_eos": true, "temperature": 0)";

std::string body(const std::string& more) { return std::string("{") + kPrompt + ", " + more + "}"; }

TEST_F(Completions, NothingReachesTheEngineBeforeTheJobIsOpen) {
  const auto made = call(body(R"("max_tokens": 3)"));
  EXPECT_EQ(engine_.stats().prompt_tokens.load(), 0u);
  EXPECT_EQ(engine_.picture()->requests.size(), 0u);
  EXPECT_EQ(context_.jobs.size(), 1u) << "but it can be cancelled by then";
  EXPECT_EQ(reply(*made)["usage"]["completion_tokens"], 3);
  EXPECT_EQ(context_.jobs.size(), 0u);
}

TEST_F(Completions, CancelBeforeOpen) {
  for (const bool stream : {false, true}) {
    const auto made = call(body(R"("max_tokens": 400, "n": 2, "stream": )" + std::string(stream ? "true" : "false")));
    ASSERT_EQ(made->loop.size(), 1u) << "open() waits for the connection's thread";
    context_.jobs.find("", made->request_id)->cancel();
    made->loop.rotate();
    run_to_answer(*made);
    const Json last = stream ? made->stream->events().back() : Json::parse(made->answer->body);
    EXPECT_EQ(last["choices"][0]["finish_reason"], "abort");
    EXPECT_EQ(engine_.stats().prompt_tokens.load(), 0u) << "the engine never heard of it";
    EXPECT_EQ(context_.jobs.size(), 0u);
  }
}

TEST_F(Completions, StopStringAndDisconnectInOneStep) {
  const std::string text = reply(*call(body(R"("max_tokens": 12)")))["choices"][0]["text"];
  ASSERT_GE(text.size(), 4u);
  const auto made = call(body(R"("max_tokens": 400, "stream": true, "stop": )" + Json(text.substr(0, 4)).dump()));
  ASSERT_TRUE(made->loop.run_one());  // open: submitted
  made->loop.wait();                  // the engine has spoken
  made->disconnect();
  made->loop.run_all();
  EXPECT_TRUE(made->stream->closed);
  EXPECT_TRUE(made->close_callbacks.empty());
  EXPECT_EQ(made->log.status, 499);
  wait_idle();
  EXPECT_EQ(context_.jobs.size(), 0u);
}

TEST_F(Completions, AStopStringEndsWithStopInTheEngine) {
  const std::string text = reply(*call(body(R"("max_tokens": 12)")))["choices"][0]["text"];
  const uint64_t stops = finished(FinishReason::kStop), aborts = finished(FinishReason::kCancelled);
  const Json json = reply(*call(body(R"("max_tokens": 20000, "stop": )" + Json(text.substr(text.size() / 2)).dump())));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  // The reply does not wait for the engine.
  while (finished(FinishReason::kStop) + finished(FinishReason::kCancelled) == stops + aborts)
    std::this_thread::yield();
  EXPECT_EQ(finished(FinishReason::kStop), stops + 1);
  EXPECT_EQ(finished(FinishReason::kCancelled), aborts);
}

TEST_F(Completions, SeveralChoicesWithEcho) {
  const auto made = call(
      R"({"prompt": "the prompt", "max_tokens": 3, "temperature": 0, "ignore_eos": true, "n": 3, "echo": true,
          "logprobs": 1, "stream": true, "return_token_ids": true})");
  run_to_answer(*made);
  ASSERT_TRUE(made->stream->done());
  std::map<int, std::string> texts;
  std::map<int, size_t> tokens, ids;
  for (const Json& event : made->stream->events()) {
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    texts[index] += choice["text"].get<std::string>();
    if (choice["logprobs"].is_object()) tokens[index] += choice["logprobs"]["tokens"].size();
    if (choice.contains("prompt_token_ids")) ids[index] += choice["prompt_token_ids"].size();
  }
  ASSERT_EQ(texts.size(), 3u);
  const size_t prompt = tokenizer_->encode("the prompt", true).size();
  for (const auto& [index, text] : texts) {
    EXPECT_TRUE(text.starts_with("the prompt")) << text;
    EXPECT_EQ(tokens[index], prompt + 3);
    EXPECT_EQ(ids[index], prompt);
  }
}

// A long echo is made by workers, waits for a slow reader, and what was generated comes after it.
TEST_F(Completions, ALongEchoIsMadeInPiecesAndWaitsForItsReader) {
  std::string prompt;
  for (int i = 0; i < 2000; ++i) prompt += "word ";
  const auto made = call(Json{
      {"prompt", prompt}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 2}, {"ignore_eos", true}, {"stream", true}}
                             .dump());
  run_until(*made, [&] { return made->stream && made->stream->num_sends > 0; });
  made->stream->set_full(true);
  made->loop.run_all();
  workers_.queue.run_all();
  made->loop.run_all();
  const size_t sends = made->stream->num_sends;
  EXPECT_EQ(workers_.queue.size(), 0u) << "nothing is made for a reader that is behind";
  EXPECT_FALSE(made->stream->done());
  made->stream->set_full(false);
  run_to_answer(*made);
  EXPECT_GT(made->stream->num_sends, sends);
  EXPECT_LT(made->stream->longest_send, 256u * 1024);
  std::string text;
  for (const Json& event : made->stream->events()) text += event["choices"][0]["text"].get<std::string>();
  EXPECT_TRUE(text.starts_with(prompt));
  EXPECT_TRUE(made->stream->done());
}

// Of a reply that is not streamed, too; the client sees one JSON text.
TEST_F(Completions, ALongReplyIsSentAsItIsMade) {
  std::string prompt;
  for (int i = 0; i < 2000; ++i) prompt += "word ";
  const auto made =
      call(Json{{"prompt", prompt}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 2}, {"ignore_eos", true}}.dump());
  run_to_answer(*made);
  ASSERT_TRUE(made->stream);
  EXPECT_FALSE(made->answer.has_value());
  EXPECT_EQ(made->stream->head.content_type, "application/json");
  EXPECT_GT(made->stream->num_sends, 2u);
  const Json json = Json::parse(made->stream->text);
  const size_t tokens = json["usage"]["prompt_tokens"].get<size_t>() + 1;
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), tokens);
  EXPECT_EQ(made->log.status, 200);
}

TEST_F(Completions, AReplyThatNobodyReadsIsBrokenOff) {
  std::string prompt;
  for (int i = 0; i < 2000; ++i) prompt += "word ";
  const auto made =
      call(Json{{"prompt", prompt}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 2}, {"ignore_eos", true}}.dump());
  run_until(*made, [&] { return made->stream != nullptr; });
  made->stream->set_full(true);
  const auto stalled = made->stream->callbacks.on_stalled;
  stalled();
  EXPECT_TRUE(made->stream->aborted);
  EXPECT_FALSE(Json::accept(made->stream->text)) << "it is not the whole reply";
}

TEST_F(Completions, AnErrorAfterTheFirstByteIsAnEvent) {
  const auto made = call(body(R"("max_tokens": 100000, "stream": true, "timeout": 0.2)"));
  run_to_answer(*made);
  ASSERT_TRUE(made->stream) << made->answer->body;
  EXPECT_TRUE(made->stream->done());
  EXPECT_EQ(made->stream->events().back()["error"]["type"], "timeout_error");
  EXPECT_FALSE(made->answer.has_value()) << "the status line was out";
}

TEST_F(Completions, WhatComesTogetherWithAFailureIsSaidBeforeIt) {
  for (const char* timeout : {"0.2", "2", "20", "200"}) {  // more where the machine had no time for one token
    const uint64_t before = engine_.stats().generated_tokens.load(), ended = finished(FinishReason::kTimeout);
    const auto made = call(
        body(R"("max_tokens": 100000, "stream": true, "return_token_ids": true, "timeout": )" + std::string(timeout)));
    ASSERT_TRUE(made->loop.run_one());
    while (finished(FinishReason::kTimeout) == ended) std::this_thread::yield();
    wait_idle();  // all of it is there before the connection's thread looks
    const uint64_t generated = engine_.stats().generated_tokens.load() - before;
    run_to_answer(*made);
    ASSERT_TRUE(made->stream);
    uint64_t said = 0;
    for (const Json& event : made->stream->events()) {
      if (event.contains("choices")) said += event["choices"][0].value("token_ids", Json::array()).size();
    }
    EXPECT_EQ(said, generated);
    EXPECT_EQ(made->stream->events().back()["error"]["type"], "timeout_error");
    if (generated > 0) return;
  }
  FAIL() << "never a token";
}

TEST_F(Completions, DrainRefusesTheNewAndFinishesTheOld) {
  const auto old = call(body(R"("max_tokens": 5, "stream": true)"));
  ASSERT_TRUE(old->loop.run_one());
  const auto late = call(body(R"("max_tokens": 5, "stream": true)"));
  std::thread draining([this] { EXPECT_TRUE(engine_.drain(std::chrono::minutes(5))); });
  run_to_answer(*old);
  draining.join();
  EXPECT_TRUE(old->stream->done());
  run_to_answer(*late);
  EXPECT_EQ(late->stream, nullptr) << "nothing was sent before the engine took it";
  EXPECT_EQ(late->answer->status, 503);
}

TEST_F(Completions, TheProductOfLogprobsIsCapped) {
  std::string prompt = "[5";
  for (int i = 0; i < 12000; ++i) prompt += ",6";
  prompt += "]";
  const auto made = call(R"({"prompt": )" + prompt + R"(, "max_tokens": 1, "n": 16, "echo": true, "logprobs": 20,
                          "prompt_logprobs": 20})");
  ASSERT_TRUE(made->answer.has_value());
  EXPECT_EQ(made->answer->status, 400);
  const Json error = Json::parse(made->answer->body)["error"];
  EXPECT_EQ(error["param"], "logprobs");
  // 16 choices × (12,002 tokens with the one to generate + 12,001 of prompt_logprobs) × 21
  EXPECT_NE(error["message"].get<std::string>().find("8065008"), std::string::npos) << error;
}

TEST_F(Completions, OnlyTheAdminGoesBelowTheLowestPriority) {
  const auto refused = call(body(R"("max_tokens": 1, "priority": -101)"));
  ASSERT_TRUE(refused->answer.has_value());
  EXPECT_EQ(refused->answer->status, 400);
  EXPECT_EQ(Json::parse(refused->answer->body)["error"]["param"], "priority");
  caller_.admin = true;
  EXPECT_EQ(reply(*call(body(R"("max_tokens": 1, "priority": -700)")))["usage"]["completion_tokens"], 1);
}

// Between parsing and the engine, only the ids are held; afterwards not even they.
TEST_F(Completions, ALongPromptIsHeldOnce) {
  std::string prompt = "[5";
  for (int i = 0; i < 8000; ++i) prompt += ",6";
  const auto made = call(R"({"prompt": )" + prompt + R"(], "max_tokens": 1})");
  EXPECT_TRUE(made->body.empty() && made->body.capacity() < 64);
  const auto job = std::static_pointer_cast<GenerationJob>(context_.jobs.find("", made->request_id));
  EXPECT_EQ(job->held_prompt_bytes(), 8001 * sizeof(int32_t));
  ASSERT_TRUE(made->loop.run_one());
  EXPECT_EQ(job->held_prompt_bytes(), 0u);
  EXPECT_EQ(reply(*made)["usage"]["prompt_tokens"], 8001);
}

TEST_F(Completions, TextIsKeptForAnEchoOnly) {
  std::string prompt;
  for (int i = 0; i < 2000; ++i) prompt += "the ";
  const auto plain = call(Json{{"prompt", prompt}, {"max_tokens", 1}}.dump());
  const auto job = std::static_pointer_cast<GenerationJob>(context_.jobs.find("", plain->request_id));
  EXPECT_LE(job->held_prompt_bytes(), 2 * tokenizer_->encode(prompt, true).size() * sizeof(int32_t));
  reply(*plain);
}

TEST(LiveJobs, EachTenantHasItsOwnNames) {
  struct Job : LiveJob {
    void cancel() override {}
    const std::string& id() const override { return name; }
    std::string name = "cmpl-victim";
  };
  LiveJobs jobs;
  const auto first = std::make_shared<Job>(), second = std::make_shared<Job>();
  EXPECT_TRUE(jobs.add("a1", "cmpl-victim", "victim", first));
  EXPECT_FALSE(jobs.add("a1", "chatcmpl-victim", "victim", second)) << "taken";
  EXPECT_TRUE(jobs.add("b2", "cmpl-victim", "victim", second)) << "but not for others";
  EXPECT_EQ(jobs.find("a1", "victim"), first);
  EXPECT_EQ(jobs.find("b2", "cmpl-victim"), second);
  EXPECT_EQ(jobs.find("c3", "victim"), nullptr);
  EXPECT_TRUE(jobs.find_any("victim"));
  // A name is a name: nothing is cut off to make it fit.
  EXPECT_EQ(jobs.find("a1", "victim-7"), nullptr);
  jobs.remove("a1", "cmpl-victim", "victim");
  EXPECT_EQ(jobs.find("a1", "victim"), nullptr);
  EXPECT_EQ(jobs.size(), 1u);
}

}  // namespace
}  // namespace bam
