#include "engine/stage_worker.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "engine/clock.h"
#include "engine/device_rows.h"
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
constexpr milliseconds kWelcomeTimeout{60000}, kFarewell{5000}, kGoodbye{2000};

// One rank in one group.
class StageLoop {
 public:
  StageLoop(StageRunner& runner, const StageInfo& info, const RowWireMaker* row_wires, Transport& transport,
            uint64_t epoch, std::stop_token stop)
      : runner_(runner),
        info_(info),
        row_wires_(row_wires),
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
    } catch (const PeerLost& lost) {
      const bool is_gone = lost.rank() == 0 && !lost.comes_back();
      if (!was_ended(is_gone ? kGoodbye : milliseconds(0))) throw;
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

  // Rank 0 has left, but not without a word. Others may have told of it sooner than that word came.
  bool was_ended(milliseconds patience) {
    const auto until = Clock::now() + patience;
    while (true) {
      try {
        while (transport_.receive(0, Channel::kPlan, plan_message_, milliseconds(0))) {
          if (Reader(plan_message_).head().kind == Kind::kEnd) return true;
        }
      } catch (const Error&) {
      }
      if (stop_.stop_requested() || Clock::now() >= until) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
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
    if (row_wires_ != nullptr) {
      device_rows_ = std::make_unique<DeviceRows>(runner_.model().backend(), *row_wires_, transport_, epoch_);
    }
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

  // Where rows are that a message has brought or announced, and where they go to.
  const float* incoming(const Reader& rows, size_t floats) {
    if (!device_rows_) return rows.floats(floats).data();
    return device_rows_->receive(floats);
  }
  size_t payload_bytes(size_t floats) const { return device_rows_ ? 0 : floats * sizeof(float); }
  float* outgoing(Writer& writer, size_t floats) {
    return device_rows_ ? device_rows_->outgoing(floats) : reinterpret_cast<float*>(writer.payload().data());
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
    if (report_.error.empty()) {
      Writer writer(reply_, head, is_last() ? result_floats * sizeof(float) : payload_bytes(row_floats));
      const float* const in = incoming(*rows, row_floats);
      if (run(in, is_last() ? reinterpret_cast<float*>(writer.payload().data()) : outgoing(writer, row_floats))) {
        write(writer, report_);
        return send_on(row_floats);
      }
    }
    Writer writer(reply_, head);
    write(writer, report_);
    send_on(0);
  }

  // The message, and the rows that it announces.
  void send_on(size_t floats) {
    if (is_last()) return send_done();
    transport_.send_swap(transport_.rank() + 1, Channel::kActivations, reply_);
    if (device_rows_ && floats > 0) device_rows_->send(floats);
  }

  // To `out`: rows for the next stage, or results of the last one. False: it failed, and the report says why.
  bool run(const float* rows, float* out) {
    const auto start = Clock::now();
    tokens_.assign(static_cast<size_t>(plan_.num_rows()), 0);
    StageRunner::Input input{tokens_, sequences_, plan_.logit_rows, plan_.host_rows, &plan_.draws, plan_.wants_hidden};
    input.residual_in = rows;
    input.residual_on_device = device_rows_ != nullptr;
    if (!is_last()) input.residual_out = out;
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
        std::copy_n(runner_.logits(static_cast<size_t>(plan_.host_rows[i])), vocab, out + i * vocab);
      }
      std::ranges::copy(runner_.hidden(), out + plan_.host_rows.size() * vocab);
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
    const float* const residual = incoming(*in, hidden);
    const bool on_device = device_rows_ != nullptr;
    const SequenceRows row{table.data(), stride, 0, 1, position};
    std::vector<float> queries;
    if (is_last()) {
      queries = runner_.row_queries(row, 0, residual, nullptr, on_device);
    } else {
      Writer writer(reply_, {Kind::kRows, epoch_, step}, payload_bytes(hidden));
      queries = runner_.row_queries(row, 0, residual, outgoing(writer, hidden), on_device);
      write(writer, report_);
      send_on(hidden);
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
  const RowWireMaker* const row_wires_;  // null: rows come and go in messages
  Transport& transport_;
  std::unique_ptr<DeviceRows> device_rows_;
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
  const RowWireMaker* const wires = source.row_wires();
  const StageInfo info = describe_stage(model, plan, tokenizer_fingerprint, describe_row_wires(wires, model.backend()));
  log::debug("{}", describe(plan));
  while (!stop.stop_requested()) {
    uint64_t epoch = 0;
    const auto transport = join(source, config.group_timeout_s, epoch, stop);
    if (!transport) return;
    try {
      StageLoop(runner, info, wires, *transport, epoch, stop).run();
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
