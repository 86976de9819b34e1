#include "engine/pipeline_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace bam {

namespace {

using std::chrono::milliseconds;
using wire::Kind;
using wire::Reader;
using wire::WireError;
using wire::Writer;

constexpr milliseconds kFormSlice{1000};  // how often the thread that forms a group looks whether it should stop
constexpr milliseconds kHelloTimeout{30000};
constexpr milliseconds kWatchInterval{200}, kStatsInterval{1000};

}  // namespace

template <typename F>
auto PipelineRunner::checked(int rank, F work) {
  if (!transport_) throw PeerLost(-1, "there is no group");
  try {
    return work();
  } catch (const WireError& e) {
    throw PeerLost(rank, e.what());
  }
}

PipelineRunner::PipelineRunner(BamModel& model, const KvPlan& plan, uint64_t tokenizer_fingerprint, GroupSource& source)
    : source_(source),
      group_timeout_(plan.config.group_timeout_s),
      runner_(model, plan),
      own_(describe_stage(model, plan, tokenizer_fingerprint, describe_row_wires(source.row_wires(), model.backend()))),
      stage_(runner_, own_.kv().geometry) {
  BAM_CHECK(source.rank() == 0 && source.size() > 1 && model.first_stage() && !model.last_stage());
  adopt(form());
}

PipelineRunner::~PipelineRunner() {
  stopping_ = true;
  if (forming_.valid()) forming_.wait();
  stage_.detach();
  if (!transport_) return;
  try {
    Writer end(message_, head(Kind::kEnd));
    for (int rank = 1; rank < source_.size(); ++rank) transport_->send(rank, Channel::kPlan, message_);
  } catch (const std::exception&) {  // who is gone needs no goodbye
  }
}

std::vector<StagedKv::Stage> PipelineRunner::sizes() const {
  std::vector<StagedKv::Stage> sizes;
  for (const StageInfo& stage : stages_) sizes.push_back(stage.kv());
  return sizes;
}

// --- the group ---

PipelineRunner::Group PipelineRunner::form() {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(group_timeout_);
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (stopping_) throw Error("the engine stops");
    if (left <= milliseconds(0)) {
      throw Error("the {} ranks of the pipeline did not come together within {:g} s", source_.size(),
                  group_timeout_.count());
    }
    const auto slice = std::min(left, kFormSlice);
    const auto asked = Clock::now();
    uint64_t epoch = 0;
    std::unique_ptr<Transport> transport = source_.form(slice, epoch);
    if (!transport) {
      if (Clock::now() - asked < slice / 2) throw Error("there will be no further group of ranks");
      continue;
    }
    if (std::optional<Group> group = introduce(std::move(transport), epoch)) return std::move(*group);
  }
}

// Nullopt: a rank was lost meanwhile. Throws Error with one line if the ranks do not fit together.
std::optional<PipelineRunner::Group> PipelineRunner::introduce(std::unique_ptr<Transport> transport, uint64_t epoch) {
  Group group{std::move(transport), nullptr, epoch, {own_}};
  std::vector<std::byte> message;
  std::string wrong;
  try {
    for (int rank = 1; rank < source_.size(); ++rank) {
      if (!group.transport->receive(rank, Channel::kDone, message, kHelloTimeout)) {
        throw PeerLost(rank, "it says nothing of itself");
      }
      Reader hello(message);
      if (hello.head().kind != Kind::kHello || hello.head().epoch != epoch) throw WireError("no greeting");
      group.stages.push_back(read_stage_info(hello));
    }
    wrong = misfit(group.stages);
    if (wrong.empty() && !stages_.empty()) {
      for (size_t rank = 0; rank < stages_.size() && wrong.empty(); ++rank) {
        // Requests were accepted by what the ranks had at start.
        if (group.stages[rank].num_pages >= stages_[rank].num_pages) continue;
        wrong = fmt::format("rank {} came back with {} pages, it had {}", rank, group.stages[rank].num_pages,
                            stages_[rank].num_pages);
      }
    }
    Writer answer(message, {wrong.empty() ? Kind::kWelcome : Kind::kRefused, epoch, 0});
    if (!wrong.empty()) answer.text(wrong);
    for (int rank = 1; rank < source_.size(); ++rank) group.transport->send(rank, Channel::kPlan, message);
    if (wrong.empty() && source_.row_wires() != nullptr) {
      group.rows =
          std::make_unique<DeviceRows>(runner_.model().backend(), *source_.row_wires(), *group.transport, epoch);
    }
  } catch (const PeerLost& e) {
    log::warn("{}", e.what());
    return std::nullopt;
  } catch (const WireError& e) {
    wrong = fmt::format("a rank is of another build: {}", e.what());
  }
  if (!wrong.empty()) throw Error("{}", wrong);
  return group;
}

void PipelineRunner::adopt(Group group) {
  transport_ = std::move(group.transport);
  rows_ = std::move(group.rows);
  stage_.attach(*transport_, rows_.get());
  epoch_ = group.epoch;
  step_ = 0;
  sent_.clear();
  pending_.clear();
  arrived_.clear();
  stages_ = std::move(group.stages);
  counters_.resize(stages_.size());
  pictures_.resize(stages_.size());
  for (size_t rank = 0; rank < stages_.size(); ++rank) {
    pictures_[rank].first_layer = stages_[rank].range.first_layer;
    pictures_[rank].num_layers = stages_[rank].range.num_layers;
    pictures_[rank].device = stages_[rank].device;
    if (counters_[rank].empty()) counters_[rank].resize(stages_[rank].heads.size());
  }
  log::info("{} stages over {}{}, group {}", stages_.size(), transport_->description(),
            rows_ ? ", rows by " + source_.row_wires()->description() : "", epoch_);
}

void PipelineRunner::form_again() {
  if (transport_) transport_->abort("rank 0 forms a new group");
  stage_.detach();
  rows_.reset();
  transport_.reset();
  own_copies_.clear();
  pending_.clear();
  arrived_.clear();
  forming_ = std::async(std::launch::async, [this] { return form(); });
}

GroupState PipelineRunner::group(std::string& failure) {
  if (!forming_.valid()) return GroupState::kReady;
  if (forming_.wait_for(milliseconds(0)) != std::future_status::ready) return GroupState::kForming;
  try {
    adopt(forming_.get());
    return GroupState::kReady;
  } catch (const std::exception& e) {
    failure = e.what();
    return GroupState::kFailed;
  }
}

void PipelineRunner::watch() {
  const auto now = Clock::now();
  if (!transport_ || now - watched_ < kWatchInterval) return;
  watched_ = now;
  for (int rank = 1; rank < source_.size(); ++rank) {
    // What belongs to a step is kept for finish().
    checked(rank, [&] { return receive(rank, Kind::kEnd, message_, milliseconds(0)); });
  }
  if (now - asked_ < kStatsInterval) return;
  asked_ = now;
  Writer ask(message_, head(Kind::kStats));
  for (int rank = 1; rank < source_.size(); ++rank) transport_->send(rank, Channel::kPlan, message_);
}

// --- steps ---

void PipelineRunner::copy_pages(StagedKv& kv) {
  for (int stage = 0; stage < kv.num_stages(); ++stage) {
    if (kv.stage(stage).pending_copies().empty()) continue;
    const std::vector<PageCopy> copies = std::exchange(kv.stage(stage).pending_copies(), {});
    if (stage == 0) {
      own_copies_.insert(own_copies_.end(), copies.begin(), copies.end());
      continue;
    }
    Writer writer(message_, head(Kind::kCopy));
    writer.array(copies);
    transport_->send_swap(stage, Channel::kPlan, message_);
  }
}

StageRunner& PipelineRunner::settled() {
  stage_.settle();
  stage_.check();
  runner_.copy_pages(std::exchange(own_copies_, {}));
  return runner_;
}

void PipelineRunner::make_plan(const StepBatch& batch, std::span<const StagedBlocks* const> tables, int stage,
                               wire::StepPlan& plan) const {
  plan.entries.clear();
  plan.pages.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const StepBatch::Entry& entry = batch.entries[i];
    const BlockTable& table = tables[i]->stages[static_cast<size_t>(stage)];
    const auto sent = sent_.find(tables[i]->id);
    const int64_t page_size = own_.page_size;
    // A fork may have split the block that the first row is written to, so that one is always told.
    const int64_t first = sent == sent_.end() ? 0 : std::min(sent->second, entry.start / page_size);
    plan.entries.push_back({tables[i]->id, entry.start, entry.num_rows, first, table.num_blocks});
    const auto groups = static_cast<int64_t>(stages_[static_cast<size_t>(stage)].reach.size());
    for (int64_t g = 0; g < groups; ++g) {
      const auto from = table.entries.begin() + g * table.stride;
      plan.pages.insert(plan.pages.end(), from + first, from + table.num_blocks);
    }
  }
}

void PipelineRunner::issue(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv) {
  if (!transport_) throw PeerLost(-1, "there is no group");
  stage_.check();
  ++step_;
  try {
    send_plans(batch, tables, kv);
  } catch (const std::bad_alloc&) {  // some ranks have the plan, others do not
    throw PeerLost(0, "it is out of memory");
  }
}

void PipelineRunner::send_plans(const StepBatch& batch, std::span<const StagedBlocks* const> tables, StagedKv& kv) {
  plan_.ended.swap(kv.ended());
  kv.ended().clear();
  for (const uint64_t id : plan_.ended) sent_.erase(id);
  std::unique_ptr<StageThread::Step> own = stage_.blank();
  make_plan(batch, tables, 0, own->plan);
  own->plan.ended = plan_.ended;
  own->head = head(Kind::kRows);
  own->tokens = batch.tokens;
  own->copies = std::exchange(own_copies_, {});
  own->others_under_way = !pending_.empty();
  stage_.issue(std::move(own));
  for (int rank = 1; rank < source_.size(); ++rank) {
    make_plan(batch, tables, rank, plan_);
    if (rank == last_rank()) {
      plan_.logit_rows = batch.logit_rows;
      plan_.host_rows = batch.host_rows;
      plan_.draws = batch.draws;
      plan_.wants_hidden = batch.wants_hidden;
    } else {
      plan_.logit_rows.clear();
      plan_.host_rows.clear();
      plan_.draws.clear();
      plan_.wants_hidden = false;
    }
    encode(head(Kind::kStep), plan_, message_);
    transport_->send_swap(rank, Channel::kPlan, message_);
  }
  for (size_t i = 0; i < tables.size(); ++i) sent_[tables[i]->id] = tables[i]->stages.front().num_blocks;
  pending_.push_back({batch.logit_rows.size(), batch.host_rows, batch.wants_hidden});
}

bool PipelineRunner::receive(int rank, Kind kind, std::vector<std::byte>& message, milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  do {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    if (!transport_->receive(rank, Channel::kDone, message, std::max(left, milliseconds(0)))) return false;
    const Reader reader(message);
    if (reader.head().epoch != epoch_) throw WireError("rank {} answers for another group", rank);
    if (reader.head().kind == kind) return true;
    if (reader.head().kind == Kind::kCounters) {
      take_counters(rank, message);
    } else if (reader.head().kind == Kind::kDone && rank == last_rank()) {
      arrived_.push_back(std::move(message));
      message = {};
    } else {
      throw WireError("rank {} says what nobody asked for", rank);
    }
  } while (true);
}

void PipelineRunner::await(int rank, Kind kind, std::vector<std::byte>& message) {
  while (!checked(rank, [&] { return receive(rank, kind, message, milliseconds(1000)); })) {
  }
}

void PipelineRunner::take_counters(int rank, const std::vector<std::byte>& message) {
  Reader reader(message);
  std::vector<AttentionCounters> heard;
  std::vector<AttentionCounters>& known = counters_[static_cast<size_t>(rank)];
  reader.array(heard, known.size());
  reader.end();
  if (heard.size() == known.size()) known = std::move(heard);
}

const StepResult* PipelineRunner::finish(milliseconds timeout) {
  BAM_CHECK(!pending_.empty());
  stage_.check();
  return checked(last_rank(), [&]() -> const StepResult* {
    if (!arrived_.empty()) {
      result_message_ = std::move(arrived_.front());
      arrived_.pop_front();
    } else if (!receive(last_rank(), Kind::kDone, result_message_, timeout)) {
      return nullptr;
    }
    const Pending pending = std::move(pending_.front());
    pending_.pop_front();
    read_result(pending);
    return &result_;
  });
}

void PipelineRunner::read_result(const Pending& pending) {
  Reader reader(result_message_);
  if (reader.head().step != step_ - pending_.size()) throw WireError("the result of another step");
  read(reader, report_);
  const auto vocab = static_cast<size_t>(runner_.model().config().vocab_size);
  result_.error = report_.error;
  result_.logits.assign(pending.num_logit_rows, nullptr);
  result_.drawn = report_.drawn;
  result_.slowest_ms = 0;
  if (!result_.error.empty()) return;
  const auto hidden = static_cast<size_t>(runner_.model().config().hidden_size);
  const size_t logits = pending.host_rows.size() * vocab;
  const std::span<const float> rows =
      reader.floats(logits + (pending.wants_hidden ? pending.num_logit_rows * hidden : 0));
  result_.hidden = rows.data() + logits;
  for (size_t i = 0; i < pending.host_rows.size(); ++i) {
    result_.logits[static_cast<size_t>(pending.host_rows[i])] = rows.data() + i * vocab;
  }
  if (report_.stage_ms.size() != stages_.size() || report_.wait_ms.size() != stages_.size()) {
    throw WireError("the times of other stages");
  }
  for (size_t rank = 0; rank < stages_.size(); ++rank) {
    pictures_[rank].add_step(report_.stage_ms[rank]);
    pictures_[rank].wait_ms += report_.wait_ms[rank];
    result_.slowest_ms = std::max({result_.slowest_ms, report_.stage_ms[rank], 1e-6});
  }
}

// --- beside the steps ---

std::vector<float> PipelineRunner::row_queries(const StagedBlocks& blocks, int32_t token, int64_t position) {
  settled();
  if (!transport_) throw PeerLost(-1, "there is no group");
  const auto hidden = static_cast<size_t>(runner_.model().config().hidden_size);
  const BlockTable& own = blocks.stages.front();
  Writer writer(rows_message_, head(Kind::kRows), rows_ ? 0 : hidden * sizeof(float));
  float* const out = rows_ ? rows_->outgoing(hidden) : reinterpret_cast<float*>(writer.payload().data());
  std::vector<float> queries =
      runner_.row_queries({own.entries.data(), own.stride, 0, 1, position}, token, nullptr, out, rows_ != nullptr);
  report_ = {};
  write(writer, report_);
  for (int rank = 1; rank <= last_rank(); ++rank) {
    Writer plan(message_, head(Kind::kProbe));
    plan.number(position);
    plan.array(blocks.stages[static_cast<size_t>(rank)].entries);
    transport_->send_swap(rank, Channel::kPlan, message_);
    if (rank != 1) continue;
    transport_->send_swap(1, Channel::kActivations, rows_message_);
    if (rows_) rows_->send(hidden);
  }
  for (int rank = 1; rank <= last_rank(); ++rank) {
    await(rank, Kind::kProbed, message_);
    checked(rank, [&] {
      Reader reader(message_);
      const StageRange& range = stages_[static_cast<size_t>(rank)].range;
      const auto size = static_cast<uint64_t>(range.num_layers * runner_.model().config().q_size());
      std::vector<float> part;
      reader.array(part, size);
      reader.end();
      if (part.size() != size) throw WireError("queries of other layers");
      queries.insert(queries.end(), part.begin(), part.end());
    });
  }
  return queries;
}

void PipelineRunner::read_pages(int stage, std::span<const int32_t> pages, std::span<std::byte> out) {
  if (stage == 0) return settled().model().backend().read_pages(runner_.kv(), pages, out);
  if (!transport_) throw PeerLost(-1, "there is no group");
  Writer writer(message_, head(Kind::kReadPages));
  writer.array(pages);
  transport_->send_swap(stage, Channel::kPlan, message_);
  await(stage, Kind::kPages, message_);
  const Reader reader(message_);
  if (reader.payload().size() != out.size()) throw PeerLost(stage, "it sends other pages than it was asked for");
  std::ranges::copy(reader.payload(), out.begin());
}

void PipelineRunner::write_pages(int stage, std::span<const int32_t> pages, std::span<const std::byte> in) {
  if (stage == 0) return settled().model().backend().write_pages(runner_.kv(), pages, in);
  if (!transport_) throw PeerLost(-1, "there is no group");
  Writer writer(message_, head(Kind::kWritePages), in.size());
  std::ranges::copy(in, writer.payload().begin());
  writer.array(pages);
  transport_->send_swap(stage, Channel::kPlan, message_);
  await(stage, Kind::kWritten, message_);
}

std::vector<AttentionCounters> PipelineRunner::counters() {
  counters_.front() = stage_.counters();
  std::vector<AttentionCounters> all;
  for (const auto& stage : counters_) all.insert(all.end(), stage.begin(), stage.end());
  return all;
}

std::vector<StagePicture> PipelineRunner::picture() const { return pictures_; }

}  // namespace bam
