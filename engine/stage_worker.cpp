#include "engine/stage_worker.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "engine/clock.h"
#include "engine/stage_info.h"
#include "engine/stage_runner.h"
#include "engine/stage_tables.h"
#include "engine/step_wire.h"

namespace bam {

namespace {

using std::chrono::milliseconds;
using wire::Head;
using wire::Kind;
using wire::Reader;
using wire::WireError;
using wire::Writer;

constexpr milliseconds kLook{200};        // how often a thread that waits looks whether it should stop
constexpr milliseconds kJoinSlice{2000};  // likewise, where the group is formed
constexpr milliseconds kWelcomeTimeout{60000}, kFarewell{5000};

// One rank in one group.
class StageLoop {
 public:
  StageLoop(StageRunner& runner, const StageInfo& info, Transport& transport, uint64_t epoch, std::stop_token stop)
      : runner_(runner),
        info_(info),
        transport_(transport),
        epoch_(epoch),
        stop_(std::move(stop)),
        tables_(info.kv().geometry) {
    const BamModel& model = runner.model();
    limits_ = {model.options().max_rows,
               model.last_stage() ? model.options().max_logit_rows : 0,
               model.num_groups(),
               info.num_pages,
               info.page_size,
               model.config().vocab_size,
               kMaxPositions};
  }

  // Returns when rank 0 says that it is over, or at stop. Throws Error if rank 0 does not want this rank.
  void run() {
    introduce();
    try {
      while (receive(0, Channel::kPlan, plan_message_)) {
        Reader reader(plan_message_);
        check_epoch(reader);
        if (reader.head().kind == Kind::kEnd) return leave_last();
        handle(reader);
      }
    } catch (const PeerLost&) {
      if (!was_ended()) throw;
    }
  }

 private:
  // False: this rank is to stop.
  bool receive(int from, Channel channel, std::vector<std::byte>& message) {
    while (!stop_.stop_requested()) {
      if (transport_.receive(from, channel, message, kLook)) return true;
    }
    return false;
  }

  // Who leaves first takes the group along, before others have heard that it is over: that is for rank 0 to do.
  void leave_last() {
    const auto until = Clock::now() + kFarewell;
    try {
      while (!stop_.stop_requested() && Clock::now() < until) {
        transport_.receive(0, Channel::kPlan, plan_message_, kLook);
      }
    } catch (const PeerLost&) {
    }
  }

  // Rank 0 has left, but not without a word.
  bool was_ended() {
    try {
      while (transport_.receive(0, Channel::kPlan, plan_message_, milliseconds(0))) {
        if (Reader(plan_message_).head().kind == Kind::kEnd) return true;
      }
    } catch (const Error&) {
    }
    return false;
  }

  void check_epoch(const Reader& reader) const {
    if (reader.head().epoch != epoch_) throw WireError("a message is of another group");
  }

  void introduce() {
    Writer hello(reply_, {Kind::kHello, epoch_, 0});
    write(hello, info_);
    send_done();
    const auto until = Clock::now() + kWelcomeTimeout;
    while (!transport_.receive(0, Channel::kPlan, plan_message_, kLook)) {
      if (stop_.stop_requested()) return;
      if (Clock::now() > until) throw WireError("rank 0 does not answer");
    }
    Reader answer(plan_message_);
    if (answer.head().kind == Kind::kRefused) throw UsageError("{}", answer.text(4096));
    if (answer.head().kind != Kind::kWelcome) throw WireError("rank 0 does not welcome this rank");
    log::info("stage {}: layers {} to {}, {}", transport_.rank(), info_.range.first_layer,
              info_.range.first_layer + info_.range.num_layers - 1, transport_.description());
  }

  void handle(Reader& reader) {
    switch (reader.head().kind) {
      case Kind::kStep: return step(reader);
      case Kind::kCopy: return copy(reader);
      case Kind::kProbe: return probe(reader);
      case Kind::kReadPages: return read_pages(reader);
      case Kind::kWritePages: return write_pages(reader);
      case Kind::kStats: {
        Writer writer(reply_, {Kind::kCounters, epoch_, 0});
        writer.array(runner_.model().counters());
        return send_done();
      }
      default: throw WireError("a plan of an unknown kind");
    }
  }

  void send_done() { transport_.send_swap(0, Channel::kDone, reply_); }
  bool is_last() const { return transport_.rank() + 1 == transport_.size(); }

  // The rows that belong to a plan, from the stage before.
  std::optional<Reader> take_rows(uint64_t step) {
    if (!receive(transport_.rank() - 1, Channel::kActivations, rows_message_)) return std::nullopt;
    Reader rows(rows_message_);
    check_epoch(rows);
    if (rows.head().kind != Kind::kRows || rows.head().step != step) throw WireError("rows of another step");
    return rows;
  }

  void step(Reader& reader) {
    decode(reader, limits_, plan_);
    tables_.apply(plan_, sequences_);
    const auto planned = Clock::now();
    std::optional<Reader> rows = take_rows(reader.head().step);
    if (!rows) return;
    read(*rows, report_);
    report_.wait_ms.push_back(ms_since(planned));
    const int64_t count = plan_.num_rows(), hidden = runner_.model().config().hidden_size;
    const auto row_floats = static_cast<size_t>(count * hidden);
    const Kind kind = is_last() ? Kind::kDone : Kind::kRows;
    const Head head{kind, epoch_, reader.head().step};
    const auto vocab = static_cast<size_t>(runner_.model().config().vocab_size);
    const size_t hidden_floats = plan_.wants_hidden ? plan_.logit_rows.size() * static_cast<size_t>(hidden) : 0;
    const size_t result_floats = plan_.host_rows.size() * vocab + hidden_floats;
    const size_t out_bytes = sizeof(float) * (is_last() ? result_floats : row_floats);
    if (report_.error.empty()) {
      Writer writer(reply_, head, out_bytes);
      if (run(rows->floats(row_floats), writer.payload())) {
        write(writer, report_);
        return send_on();
      }
    }
    Writer writer(reply_, head);
    write(writer, report_);
    send_on();
  }

  void send_on() {
    if (is_last()) return send_done();
    transport_.send_swap(transport_.rank() + 1, Channel::kActivations, reply_);
  }

  // False: it failed, and the report says why.
  bool run(std::span<const float> rows, std::span<std::byte> out) {
    const auto start = Clock::now();
    tokens_.assign(static_cast<size_t>(plan_.num_rows()), 0);
    StageRunner::Input input{tokens_, sequences_, plan_.logit_rows, plan_.host_rows, &plan_.draws, plan_.wants_hidden};
    input.residual_in = rows.data();
    auto* const floats = reinterpret_cast<float*>(out.data());
    if (!is_last()) input.residual_out = floats;
    try {
      runner_.run(input);
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& e) {
      report_.error = e.what();
      if (report_.error.empty()) report_.error = "unknown";
      return false;
    }
    if (is_last()) {
      const auto vocab = static_cast<size_t>(runner_.model().config().vocab_size);
      for (size_t i = 0; i < plan_.host_rows.size(); ++i) {
        std::copy_n(runner_.logits(static_cast<size_t>(plan_.host_rows[i])), vocab, floats + i * vocab);
      }
      std::ranges::copy(runner_.hidden(), floats + plan_.host_rows.size() * vocab);
      report_.drawn.assign(runner_.drawn().begin(), runner_.drawn().end());
    }
    report_.stage_ms.push_back(ms_since(start));
    return true;
  }

  void copy(Reader& reader) {
    std::vector<PageCopy> copies;
    reader.array(copies, static_cast<uint64_t>(limits_.num_pages) * 2);
    reader.end();
    const auto known = [&](int32_t page) { return page >= 0 && page < limits_.num_pages; };
    if (!std::ranges::all_of(copies, [&](const PageCopy& c) { return known(c.from) && known(c.to); })) {
      throw WireError("a page that is not there is copied");
    }
    runner_.copy_pages(copies);
  }

  void read_pages(Reader& reader) {
    const std::vector<int32_t> pages = wire::read_page_ids(reader, limits_);
    Writer writer(reply_, {Kind::kPages, epoch_, reader.head().step}, pages.size() * runner_.kv().layout.page_bytes());
    runner_.model().backend().read_pages(runner_.kv(), pages, writer.payload());
    send_done();
  }

  void write_pages(Reader& reader) {
    const std::vector<int32_t> pages = wire::read_page_ids(reader, limits_);
    if (reader.payload().size() != pages.size() * runner_.kv().layout.page_bytes()) throw WireError("bytes of pages");
    runner_.model().backend().write_pages(runner_.kv(), pages, reader.payload());
    Writer writer(reply_, {Kind::kWritten, epoch_, reader.head().step});
    send_done();
  }

  void probe(Reader& reader) {
    const auto position = reader.number<int64_t>();
    std::vector<int32_t> table;
    const auto groups = static_cast<uint64_t>(limits_.num_groups);
    reader.array(table, groups * static_cast<uint64_t>(2 * (kMaxPositions / limits_.page_size + 1)));
    reader.end();
    const auto stride = static_cast<int64_t>(table.size() / groups);
    const auto known = [&](int32_t page) { return page >= kNoPage && page < limits_.num_pages; };
    if (position < 0 || table.size() % groups != 0 || position / limits_.page_size >= stride ||
        !std::ranges::all_of(table, known) || !holds_row(table, stride, position)) {
      throw WireError("a probe of what is not there");
    }
    const uint64_t step = reader.head().step;
    std::optional<Reader> in = take_rows(step);
    if (!in) return;
    read(*in, report_);
    const auto hidden = static_cast<size_t>(runner_.model().config().hidden_size);
    const float* const residual = in->floats(hidden).data();
    const SequenceRows row{table.data(), stride, 0, 1, position};
    std::vector<float> queries;
    if (is_last()) {
      queries = runner_.row_queries(row, 0, residual);
    } else {
      Writer writer(reply_, {Kind::kRows, epoch_, step}, hidden * sizeof(float));
      queries = runner_.row_queries(row, 0, residual, reinterpret_cast<float*>(writer.payload().data()));
      write(writer, report_);
      transport_.send_swap(transport_.rank() + 1, Channel::kActivations, reply_);
    }
    Writer writer(reply_, {Kind::kProbed, epoch_, step});
    writer.array(queries);
    send_done();
  }

  // All pages that a row at `position` reads are named.
  bool holds_row(const std::vector<int32_t>& table, int64_t stride, int64_t position) const {
    const KvGeometry geometry = info_.kv().geometry;
    for (int g = 0; g < limits_.num_groups; ++g) {
      for (int64_t b = geometry.first_needed_block(g, position); b <= position / limits_.page_size; ++b) {
        if (table[static_cast<size_t>(g * stride + b)] == kNoPage) return false;
      }
    }
    return true;
  }

  StageRunner& runner_;
  const StageInfo& info_;
  Transport& transport_;
  const uint64_t epoch_;
  const std::stop_token stop_;
  wire::PlanLimits limits_;
  StageTables tables_;
  // Reused from step to step.
  std::vector<std::byte> plan_message_, rows_message_, reply_;
  wire::StepPlan plan_;
  wire::StepReport report_;
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> tokens_;
};

// Null: it is to stop.
std::unique_ptr<Transport> join(GroupSource& source, double timeout_s, uint64_t& epoch, const std::stop_token& stop) {
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  while (!stop.stop_requested()) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (left <= milliseconds(0)) throw Error("rank {}: no group within {:g} s", source.rank(), timeout_s);
    const auto slice = std::min(left, kJoinSlice);
    const auto asked = Clock::now();
    if (auto transport = source.form(slice, epoch)) return transport;
    if (Clock::now() - asked < slice / 2) throw Error("rank {}: there will be no further group", source.rank());
  }
  return nullptr;
}

}  // namespace

void run_stage_worker(BamModel& model, const EngineConfig& config, uint64_t tokenizer_fingerprint, GroupSource& source,
                      std::stop_token stop) {
  BAM_CHECK(source.rank() > 0 && !model.first_stage());
  const KvPlan plan = plan_kv(model, config);
  StageRunner runner(model, plan);
  const StageInfo info = describe_stage(model, plan, tokenizer_fingerprint);
  log::debug("{}", describe(plan));
  while (!stop.stop_requested()) {
    uint64_t epoch = 0;
    const auto transport = join(source, config.group_timeout_s, epoch, stop);
    if (!transport) return;
    try {
      StageLoop(runner, info, *transport, epoch, stop).run();
      return;
    } catch (const PeerLost& e) {
      if (e.rank() == 0 && !e.comes_back()) throw;
      log::warn("{}", e.what());
    } catch (const UsageError&) {
      throw;  // rank 0 refused
    } catch (const DeviceLost& e) {
      transport->abort(e.what());
      throw;
    } catch (const std::exception& e) {
      log::error("rank {}: {}", source.rank(), e.what());
      transport->abort(e.what());
    }
  }
}

}  // namespace bam
