// What the ranks of a pipeline say to each other, encoded and checked. Every message has a fixed head of kHeadBytes with
// its kind, the group's epoch and the step, then a payload (rows of float32 or pages, may be empty), then fields. Numbers
// are little-endian. Nothing that is read is believed before it was checked; what is wrong ends in WireError.
//
//   rank 0 -> r      plan channel         kStep, kCopy, kProbe, kReadPages, kWritePages, kStats, kEnd; kWelcome, kRefused
//   r -> r + 1       activations channel  kRows; kRowWire first, where rows go from device to device
//   r -> rank 0      done channel         kHello, kDone, kProbed, kPages, kWritten, kCounters
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "kernels/draw.h"

namespace bam::wire {

inline constexpr uint16_t kVersion = 4;
inline constexpr size_t kHeadBytes = 64;

class WireError : public Error {
 public:
  using Error::Error;
};

enum class Kind : uint16_t {
  kHello = 1,
  kWelcome,
  kRefused,
  kStep,
  kCopy,
  kProbe,
  kReadPages,
  kWritePages,
  kStats,
  kEnd,
  kRows,
  kDone,
  kProbed,
  kPages,
  kWritten,
  kCounters,
  kRowWire,
};

struct Head {
  Kind kind = Kind::kEnd;
  uint64_t epoch = 0, step = 0;
};

// Builds a message in memory that is used again and again.
class Writer {
 public:
  // The payload is written by the caller before the fields: payload() is good until then.
  Writer(std::vector<std::byte>& out, const Head& head, size_t payload_bytes = 0);
  std::span<std::byte> payload() { return {out_.data() + kHeadBytes, payload_bytes_}; }

  template <typename T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  void array(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(static_cast<uint64_t>(values.size()));
    bytes(std::as_bytes(values));
  }
  template <typename T>
  void array(const std::vector<T>& values) {
    array(std::span<const T>(values));
  }
  void text(std::string_view value) { array(std::span<const char>(value)); }

 private:
  void bytes(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  std::vector<std::byte>& out_;
  size_t payload_bytes_;
};

// Reads a message; throws WireError when it ends too early or a count is larger than `most`.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> message);
  const Head& head() const { return head_; }
  std::span<const std::byte> payload() const { return payload_; }
  // The payload as numbers; throws unless it has exactly this many.
  std::span<const float> floats(size_t count) const;

  template <typename T>
  T number() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  template <typename T>
  void array(std::vector<T>& values, uint64_t most) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto count = number<uint64_t>();
    if (count > most) throw WireError("a list of {} is longer than {}", count, most);
    const auto data = take(static_cast<size_t>(count) * sizeof(T));
    values.resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), data.data(), data.size());
  }
  std::string text(uint64_t most);
  // Nothing may be left.
  void end() const;

 private:
  std::span<const std::byte> take(size_t bytes);
  Head head_;
  std::span<const std::byte> payload_, rest_;
};

// The rows of one sequence in a step, and what changed in its block table on this stage since the last one: columns
// [first_block, num_blocks) of all groups, in StepPlan::pages.
struct PlanEntry {
  uint64_t table = 0;  // StagedBlocks::id
  int64_t start = 0, num_rows = 0;
  int64_t first_block = 0, num_blocks = 0;
};

struct StepPlan {
  std::vector<uint64_t> ended;     // tables that nobody needs any more
  std::vector<PlanEntry> entries;  // cover all rows in order
  std::vector<int32_t> pages;      // [entries][groups][num_blocks - first_block]
  // For the last stage, as in StepBatch:
  std::vector<int32_t> logit_rows, host_rows;
  DrawBatch draws;
  bool wants_hidden = false;

  int64_t num_rows() const;
};

// What a stage can take.
struct PlanLimits {
  int64_t max_rows = 0, max_logit_rows = 0;
  int64_t num_groups = 0, num_pages = 0, page_size = 0;
  int64_t vocab_size = 0, max_positions = 0;
};

void encode(const Head& head, const StepPlan& plan, std::vector<std::byte>& out);
void decode(Reader& reader, const PlanLimits& limits, StepPlan& plan);

// Page ids of one stage; kNoPage is none.
std::vector<int32_t> read_page_ids(Reader& reader, const PlanLimits& limits);

// What comes back with rows, from stage to stage and to rank 0.
struct StepReport {
  std::string error;             // not empty: a stage failed, there is no payload
  std::vector<double> stage_ms;  // of the stages so far
  std::vector<double> wait_ms;   // likewise: for their rows, when the plan was there
  // From the last stage; the payload are the logits of the host's rows, then the hidden rows that were wanted.
  std::vector<int32_t> drawn;
};
void write(Writer& writer, const StepReport& report);
void read(Reader& reader, StepReport& report);

}  // namespace bam::wire
