#include "server/api/openai_reply.h"

#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace bam {
namespace {

class OpenAiReply : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(testing::fixtures_dir());
  ReplyMeta meta_{ApiKind::kChat, "chatcmpl-1", "m\"x", "bam-fp", 1700000000};
  int32_t id_ = tokenizer_->encode("the", false).back();

  Json logprobs(ApiKind kind, const std::vector<TokenRecord>& tokens, int32_t num_top) {
    std::string text;
    append_logprobs(text, *tokenizer_, kind, tokens, {.logprobs = true, .num_top = num_top});
    return Json::parse(text);
  }
  static std::string whole(const TextSource& source) {
    std::string text, piece;
    for (bool more = true; more; piece.clear()) {
      more = source(piece);
      text += piece;
    }
    return text;
  }
};

TEST_F(OpenAiReply, ChatStreamBytes) {
  const ChunkWriter writer(*tokenizer_, meta_, {}, false);
  const std::string head =
      "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\\\"x\","
      "\"system_fingerprint\":\"bam-fp\",\"choices\":";
  const std::string role =
      head +
      "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
  EXPECT_EQ(writer.role(0, nullptr), role + "}\n\n");
  const std::vector<int32_t> prompt = {4, 5};
  EXPECT_TRUE(writer.delta(0, {"x", {}}, nullptr, &prompt).ends_with("}],\"prompt_token_ids\":[4,5]}\n\n"));
  EXPECT_EQ(
      writer.delta(1, {"a\n\xc3\xa9", {}}, nullptr),
      head + "[{\"index\":1,\"delta\":{\"content\":\"a\\n\xc3\xa9\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(
      writer.finish(0, "stop", std::string("END"), nullptr),
      head + "[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":\"END\"}]}\n\n");
  EXPECT_EQ(ChunkWriter::done(), "data: [DONE]\n\n");
  EXPECT_EQ(ChunkWriter::ping(), ": ping\n\n");
}

TEST_F(OpenAiReply, UsageChunks) {
  meta_.kind = ApiKind::kCompletion;
  const ChunkWriter writer(*tokenizer_, meta_, {}, true);
  const Usage usage{
      .prompt_tokens = 7, .completion_tokens = 2, .cached_tokens = 3, .accepted_drafts = 1, .rejected_drafts = 4};
  EXPECT_NE(writer.delta(0, {"x", {}}, nullptr).find(",\"usage\":null}"), std::string::npos);
  const std::string last = writer.usage(usage);
  EXPECT_NE(last.find("\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9,"
                      "\"prompt_tokens_details\":{\"cached_tokens\":3},\"completion_tokens_details\":{"
                      "\"accepted_prediction_tokens\":1,\"rejected_prediction_tokens\":4}}}\n\n"),
            std::string::npos)
      << last;
  EXPECT_NE(writer.progress({.total = 10, .cached = 2, .processed = 4, .elapsed_ms = 1.25, .eta_ms = 3}, nullptr)
                .find("\"choices\":[],\"prompt_progress\":{\"total\":10,\"cache\":2,\"processed\":4,\"time_ms\":1.3,"
                      "\"eta_ms\":3.0}"),
            std::string::npos);
}

TEST_F(OpenAiReply, EveryLineOfAStreamIsOneJsonObject) {
  const ChunkWriter writer(*tokenizer_, meta_, {.logprobs = true, .num_top = 2, .token_ids = true}, true);
  const std::vector<int32_t> prompt = {1, 2};
  const Usage usage;
  ChoiceDelta delta{"\"\\\x01", {{id_, TokenLogprobs{-0.5f, 1, {{id_, -0.5f}, {id_ + 1, -INFINITY}}}, 0}}};
  for (const std::string& event :
       {writer.role(3, &usage), writer.delta(0, delta, &usage, &prompt), writer.usage(usage),
        writer.finish(0, "length", StopReason{}, &usage), ChunkWriter::error(ApiError::internal("a\nb\xff"))}) {
    ASSERT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
    EXPECT_EQ(event.find('\n'), event.size() - 2);
    EXPECT_NO_THROW(Json::parse(event.substr(6))) << event;
  }
}

TEST_F(OpenAiReply, LegacyLogprobs) {
  const std::string name = token_text(*tokenizer_, id_);
  std::vector<TokenRecord> tokens;
  tokens.push_back({id_, std::nullopt, 0});
  tokens.push_back({id_, TokenLogprobs{-1.5f, 2, {{id_ + 1, -0.25f}}}, 4});
  const Json json = logprobs(ApiKind::kCompletion, tokens, 1);
  EXPECT_TRUE(json["token_logprobs"][0].is_null());
  EXPECT_TRUE(json["top_logprobs"][0].is_null());
  EXPECT_FLOAT_EQ(json["token_logprobs"][1].get<float>(), -1.5f);
  EXPECT_EQ(json["text_offset"], Json::array({0, 4}));
  // The chosen token is always there, beside the best ones.
  EXPECT_EQ(json["top_logprobs"][1].size(), 2u);
  EXPECT_FLOAT_EQ(json["top_logprobs"][1][name].get<float>(), -1.5f);
}

TEST_F(OpenAiReply, LogprobsAreFiniteNumbers) {
  const std::vector<TokenRecord> tokens = {{id_, TokenLogprobs{-INFINITY, 9, {{id_, -INFINITY}}}, 0}};
  EXPECT_EQ(logprobs(ApiKind::kCompletion, tokens, 1)["token_logprobs"][0].get<double>(), -9999.0);
  EXPECT_EQ(logprobs(ApiKind::kChat, tokens, 1)["content"][0]["logprob"].get<double>(), -9999.0);
}

TEST_F(OpenAiReply, WholeReply) {
  ChoiceReply choice{.index = 0, .text = "hi", .finish_reason = "stop", .stop_reason = int32_t{7}};
  const Json chat = Json::parse(whole(reply_text(*tokenizer_, meta_, {}, {choice}, {})));
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "hi");
  EXPECT_EQ(chat["choices"][0]["stop_reason"], 7);
  EXPECT_EQ(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  meta_.kind = ApiKind::kCompletion;
  const Json text = Json::parse(whole(reply_text(*tokenizer_, meta_, {}, {choice}, {})));
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "hi");
  EXPECT_TRUE(text["choices"][0]["logprobs"].is_null());
}

// A long reply is made in pieces of bounded size that add up to the same JSON.
TEST_F(OpenAiReply, LongRepliesComeInPieces) {
  meta_.kind = ApiKind::kCompletion;
  std::vector<TokenRecord> prompt, tokens;
  std::string echo;
  std::vector<int32_t> ids;
  for (int i = 0; i < 5000; ++i) {
    prompt.push_back({id_, TokenLogprobs{-0.5f, 1, {{id_, -0.5f}, {id_ + 1, -2.0f}}}, static_cast<int64_t>(2 * i)});
    echo += "\xc3\xa9\n";
    ids.push_back(id_);
  }
  prompt.front().logprobs.reset();
  tokens.push_back({id_ + 1, TokenLogprobs{-0.25f, 1, {}}, 10000});
  ChoiceReply choice{.echo = echo, .text = "\"end\"", .echo_tokens = prompt, .tokens = tokens, .finish_reason = "stop"};
  choice.prompt_ids = &ids;
  choice.prompt_logprobs = TokenRecords(prompt);
  ChoiceReply second = choice;
  second.index = 1;
  const TextSource source =
      reply_text(*tokenizer_, meta_, {.logprobs = true, .num_top = 2, .token_ids = true}, {choice, second}, {});
  std::string text;
  size_t pieces = 0, longest = 0;
  for (bool more = true; more; ++pieces) {
    std::string piece;
    more = source(piece);
    longest = std::max(longest, piece.size());
    text += piece;
  }
  EXPECT_GT(pieces, 10u);
  EXPECT_LT(longest, 4 * kPieceBytes);
  const Json json = Json::parse(text);
  ASSERT_EQ(json["choices"].size(), 2u);
  for (const Json& entry : json["choices"]) {
    EXPECT_EQ(entry["text"], echo + "\"end\"");
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(entry["logprobs"][name].size(), 5001u) << name;
    }
    EXPECT_EQ(entry["logprobs"]["text_offset"][5000], 10000);
    EXPECT_EQ(entry["token_ids"], Json::array({id_ + 1}));
    EXPECT_EQ(entry["prompt_token_ids"].size(), 5000u);
    EXPECT_EQ(entry["prompt_logprobs"].size(), 5000u);
    EXPECT_TRUE(entry["prompt_logprobs"][0].is_null());
  }
}

// An echo becomes events of at most 256 tokens whose texts and logprobs add up.
TEST_F(OpenAiReply, EchoIsSplit) {
  meta_.kind = ApiKind::kCompletion;
  const ChunkWriter writer(*tokenizer_, meta_, {.logprobs = true, .num_top = 1}, false);
  std::vector<TokenRecord> tokens;
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    tokens.push_back({id_, TokenLogprobs{-0.5f, 1, {{id_, -0.5f}}}, i});
    text += "\xc3\xa9";
  }
  const TextSource source = writer.echo(3, text, tokens, std::nullopt);
  std::string read;
  size_t events = 0, offset = 0;
  for (bool more = true; more; ++events) {
    std::string event;
    more = source(event);
    ASSERT_EQ(event.find("\n\n"), event.size() - 2) << "one event at a time";
    const Json choice = Json::parse(event.substr(6))["choices"][0];
    EXPECT_EQ(choice["index"], 3);
    EXPECT_LE(choice["logprobs"]["tokens"].size(), 256u);
    EXPECT_EQ(choice["text"].get<std::string>().size(), 2 * choice["logprobs"]["tokens"].size());
    for (const Json& at : choice["logprobs"]["text_offset"]) EXPECT_EQ(at, offset++);
    read += choice["text"].get<std::string>();
  }
  EXPECT_EQ(events, 4u);
  EXPECT_EQ(offset, 1000u);
  EXPECT_EQ(read, text);
}

}  // namespace
}  // namespace bam
