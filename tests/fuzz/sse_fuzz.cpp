// The stream's writer against our client's reader. The first byte chooses: 0 bytes from any server go through the
// parser, cut in two ways; else the bytes are tokens, written as events, cut, and read back: the same text, each event
// one whole JSON.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "app/client/sse_parser.h"
#include "base/utf8.h"
#include "server/api/openai_reply.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::string> read_events(std::string_view bytes, uint32_t cut) {
  bam::client::SseParser parser;
  std::vector<std::string> events;
  const auto keep = [&](std::string_view data) { events.emplace_back(data); };
  while (!bytes.empty()) {
    cut = cut * 1664525 + 1013904223;
    const size_t size = std::min<size_t>(bytes.size(), 1 + (cut >> 20) % 61);
    parser.feed(bytes.substr(0, size), keep);
    bytes.remove_prefix(size);
  }
  parser.finish(keep);
  return events;
}

const bam::Tokenizer& tokenizer() {
  static const auto tokenizer = bam::Tokenizer::load(BAM_SOURCE_DIR "/checkpoints/demo");
  return *tokenizer;
}

std::string text_of(const bam::Json& event, bam::ApiKind kind) {
  const auto& choice = event.at("choices").at(0);
  return (kind == bam::ApiKind::kChat ? choice.at("delta").value("content", "") : choice.at("text").get<std::string>());
}

void write_and_read(const uint8_t* data, size_t size) {
  const uint8_t flags = data[0];
  const auto kind = flags & 1 ? bam::ApiKind::kChat : bam::ApiKind::kCompletion;
  bam::DecodeOptions decode{.at_text_start = (flags & 2) != 0};
  size_t position = 2;
  if (flags & 4) {  // a stop string of bytes that the input chooses
    const size_t length = std::min<size_t>(1 + data[1] % 8, size - position);
    const std::string stop(reinterpret_cast<const char*>(data) + position, length);
    if (!stop.empty() && bam::is_valid_utf8(stop)) decode.stop.push_back(stop);  // as JSON guarantees
    position += length;
  }
  decode.include_stop_str = (flags & 8) != 0;
  bam::ReplyOptions options{
      .logprobs = (flags & 16) != 0, .num_top = flags & 16 ? 1 : 0, .token_ids = (flags & 32) != 0};
  bam::ReplyMeta meta{.kind = kind, .id = "x\"\n", .model = "m\xC3\xA9", .system_fingerprint = "f", .created = 1};
  const bam::ChunkWriter writer(tokenizer(), meta, options, false);
  bam::ChoiceDecoder decoder(tokenizer(), decode, 0);
  std::string stream, expected;
  const auto write = [&](const bam::ChoiceDelta& delta) {
    if (delta.empty()) return;
    expected += delta.text;
    stream += writer.delta(0, delta, nullptr);
    if (stream.size() % 3 == 0) stream += bam::ChunkWriter::ping();
  };
  for (; position + 1 < size && !decoder.stopped(); position += 2) {
    const int32_t token = (data[position] | data[position + 1] << 8) % tokenizer().vocab_size();
    std::optional<bam::TokenLogprobs> logprobs;
    if (options.logprobs) logprobs = bam::TokenLogprobs{};
    decoder.push(token, logprobs);
    write(decoder.take());
  }
  decoder.finish(bam::FinishReason::kLength);
  write(decoder.take());
  for (const std::string& stop : decode.stop) {
    require(decode.include_stop_str || expected.find(stop) == std::string::npos);
  }
  stream +=
      writer.finish(0, decoder.finish_reason() ? decoder.finish_reason() : "length", decoder.stop_reason(), nullptr);
  stream += bam::ChunkWriter::done();
  const auto events = read_events(stream, data[1]);
  require(events.size() >= 2 && events.back() == "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto event = bam::Json::parse(events[i], nullptr, false);
    require(!event.is_discarded());
    text += text_of(event, kind);
  }
  require(text == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  if (data[0] != 0) {
    write_and_read(data + 1, size - 1);
    return 0;
  }
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  require(read_events(bytes, data[1]) == read_events(bytes, data[1] + 1u));
  return 0;
}
