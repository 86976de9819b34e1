#include "engine/step_wire.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bam::wire {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

namespace {

constexpr uint32_t kMagic = 0x50'4d'41'42;  // "BAMP"
constexpr uint64_t kMaxStages = 4096, kMaxText = 4096, kMaxEnded = uint64_t{1} << 24;

struct RawHead {
  uint32_t magic;
  uint16_t version, kind;
  uint64_t epoch, step, payload_bytes;
};
static_assert(sizeof(RawHead) <= kHeadBytes);

template <typename T>
bool ascending_below(const std::vector<T>& values, int64_t end) {
  int64_t last = -1;
  for (const T value : values) {
    if (value <= last || value >= end) return false;
    last = value;
  }
  return true;
}

void check(bool right, const char* what) {
  if (!right) throw WireError("a message is wrong: {}", what);
}

void check_draws(const DrawBatch& draws, int64_t num_logits, int64_t vocab) {
  const auto inside = [](const DrawSlice& slice, size_t size) {
    return slice.begin >= 0 && slice.count >= 0 && int64_t{slice.begin} + slice.count <= static_cast<int64_t>(size);
  };
  for (const DrawRow& row : draws.rows) {
    uint8_t greedy = 0;  // a bool that came in as a byte
    std::memcpy(&greedy, &row.greedy, sizeof greedy);
    check(greedy <= 1, "a draw");
    check(row.row >= 0 && row.row < num_logits && row.top_k >= 0 && row.uniform >= 0 && row.uniform < 1, "a draw");
    check(row.inverse_temperature > 0 && std::isfinite(row.inverse_temperature) && row.top_p >= 0 && row.top_p <= 1 &&
              row.min_p >= 0 && row.min_p <= 1,
          "the settings of a draw");
    check(inside(row.seen, draws.seen.size()) && inside(row.biases, draws.biases.size()) &&
              inside(row.banned, draws.banned.size()),
          "the lists of a draw");
  }
  const auto known = [vocab](int32_t token) { return token >= 0 && token < vocab; };
  check(std::ranges::all_of(draws.seen, known, &SeenToken::token) &&
            std::ranges::all_of(draws.biases, known, &TokenBias::token) && std::ranges::all_of(draws.banned, known),
        "a token of a draw");
}

}  // namespace

Writer::Writer(std::vector<std::byte>& out, const Head& head, size_t payload_bytes)
    : out_(out), payload_bytes_(payload_bytes) {
  const RawHead raw{kMagic, kVersion, static_cast<uint16_t>(head.kind), head.epoch, head.step, payload_bytes};
  out_.resize(kHeadBytes + payload_bytes);
  std::memset(out_.data(), 0, kHeadBytes);
  std::memcpy(out_.data(), &raw, sizeof raw);
}

Reader::Reader(std::span<const std::byte> message) {
  RawHead raw{};
  check(message.size() >= kHeadBytes, "it is too short");
  std::memcpy(&raw, message.data(), sizeof raw);
  check(raw.magic == kMagic, "it is not of this program");
  if (raw.version != kVersion) throw WireError("a message has version {}, ours is {}", raw.version, kVersion);
  check(raw.kind >= static_cast<uint16_t>(Kind::kHello) && raw.kind <= static_cast<uint16_t>(Kind::kRowWire),
        "its kind");
  check(raw.payload_bytes <= message.size() - kHeadBytes, "its payload");
  head_ = {static_cast<Kind>(raw.kind), raw.epoch, raw.step};
  payload_ = message.subspan(kHeadBytes, raw.payload_bytes);
  rest_ = message.subspan(kHeadBytes + payload_.size());
}

std::span<const float> Reader::floats(size_t count) const {
  if (payload_.size() != count * sizeof(float)) {
    throw WireError("a message has {} bytes of rows instead of {}", payload_.size(), count * sizeof(float));
  }
  return {reinterpret_cast<const float*>(payload_.data()), count};
}

std::span<const std::byte> Reader::take(size_t bytes) {
  check(bytes <= rest_.size(), "it ends too early");
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

std::string Reader::text(uint64_t most) {
  std::vector<char> letters;
  array(letters, most);
  return {letters.begin(), letters.end()};
}

void Reader::end() const { check(rest_.empty(), "it is too long"); }

int64_t StepPlan::num_rows() const {
  int64_t rows = 0;
  for (const PlanEntry& entry : entries) rows += entry.num_rows;
  return rows;
}

void encode(const Head& head, const StepPlan& plan, std::vector<std::byte>& out) {
  Writer writer(out, head);
  writer.array(plan.ended);
  writer.array(plan.entries);
  writer.array(plan.pages);
  writer.array(plan.logit_rows);
  writer.array(plan.host_rows);
  writer.array(plan.draws.rows);
  writer.array(plan.draws.seen);
  writer.array(plan.draws.biases);
  writer.array(plan.draws.banned);
  writer.number(static_cast<uint8_t>(plan.wants_hidden));
}

void decode(Reader& reader, const PlanLimits& limits, StepPlan& plan) {
  const auto most = [](int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(0, n)); };
  reader.array(plan.ended, kMaxEnded);
  reader.array(plan.entries, most(limits.max_rows));
  const int64_t max_blocks = limits.max_positions / limits.page_size + 1;
  int64_t rows = 0, columns = 0;
  for (const PlanEntry& entry : plan.entries) {
    check(entry.table != 0 && entry.num_rows > 0 && entry.num_rows <= limits.max_rows - rows, "its rows");
    check(entry.start >= 0 && entry.start <= limits.max_positions - entry.num_rows, "a position");
    check(entry.first_block >= 0 && entry.first_block <= entry.num_blocks && entry.num_blocks <= max_blocks,
          "its blocks");
    check(entry.start + entry.num_rows <= entry.num_blocks * limits.page_size, "rows without pages");
    rows += entry.num_rows;
    columns += entry.num_blocks - entry.first_block;
  }
  reader.array(plan.pages, most(columns * limits.num_groups));
  check(static_cast<int64_t>(plan.pages.size()) == columns * limits.num_groups, "its pages");
  check(std::ranges::all_of(plan.pages, [&](int32_t page) { return page >= -1 && page < limits.num_pages; }), "a page");
  reader.array(plan.logit_rows, most(limits.max_logit_rows));
  check(ascending_below(plan.logit_rows, rows), "rows of logits");
  const auto logits = static_cast<int64_t>(plan.logit_rows.size());
  reader.array(plan.host_rows, most(logits));
  check(ascending_below(plan.host_rows, logits), "rows for the host");
  reader.array(plan.draws.rows, most(logits));
  const uint64_t most_tokens = most(logits) * most(limits.vocab_size);
  reader.array(plan.draws.seen, most_tokens);
  reader.array(plan.draws.biases, most_tokens);
  reader.array(plan.draws.banned, most_tokens);
  const auto wants_hidden = reader.number<uint8_t>();
  check(wants_hidden <= 1, "what is wanted");
  plan.wants_hidden = wants_hidden == 1;
  check_draws(plan.draws, logits, limits.vocab_size);
  reader.end();
}

std::vector<int32_t> read_page_ids(Reader& reader, const PlanLimits& limits) {
  std::vector<int32_t> pages;
  reader.array(pages, static_cast<uint64_t>(limits.num_pages));
  check(std::ranges::all_of(pages, [&](int32_t page) { return page >= 0 && page < limits.num_pages; }), "a page");
  reader.end();
  return pages;
}

void write(Writer& writer, const StepReport& report) {
  writer.text(std::string_view(report.error).substr(0, kMaxText));
  writer.array(report.stage_ms);
  writer.array(report.wait_ms);
  writer.array(report.drawn);
}

void read(Reader& reader, StepReport& report) {
  report.error = reader.text(kMaxText);
  reader.array(report.stage_ms, kMaxStages);
  reader.array(report.wait_ms, kMaxStages);
  reader.array(report.drawn, uint64_t{1} << 20);
  reader.end();
}

}  // namespace bam::wire
