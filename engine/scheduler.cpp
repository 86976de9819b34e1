#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace bam {

namespace {

constexpr double kNobodyWaitsFactor = 4;  // step time then, in targets
// A guess must promise so many times the tokens per millisecond that a step has anyway: prices are not known exactly.
constexpr double kDraftMargin = 1.1;
// Now and then likely guesses are computed although they seem too dear: what they cost is seen only when they are.
constexpr int kDraftPatience = 32;
constexpr int64_t kTriedDrafts = 2;
constexpr double kLikelyDraft = 0.5;

// A pipeline fills and drains once per prompt: in so many pieces per further stage that costs 2 %. Where the stages are
// not equal it costs what the first or the last piece takes, so these are smaller. Pieces below the least cost more than
// they save.
constexpr int64_t kPiecesPerStage = 50, kLeastPiece = 256;
constexpr int64_t kEdgePieces = 4;  // as many of a piece's size lie before and behind it, at least

void insert_sorted(std::vector<Sequence*>& queue, Sequence* sequence) {
  const auto at = std::upper_bound(queue.begin(), queue.end(), sequence,
                                   [](const Sequence* a, const Sequence* b) { return served_before(*a, *b); });
  queue.insert(at, sequence);
}

}  // namespace

double prefill_budget_ms(const SchedulerLimits& limits, const CostModel& cost, const StepLoad& decode, bool awaited) {
  const double busy = decode.rows > 0 ? cost.predict_ms(decode) : cost.step_overhead_ms();
  if (!awaited) return kNobodyWaitsFactor * limits.step_target_ms / limits.stages - busy;
  const double target = limits.step_target_ms / limits.depth;
  return std::max(target - busy, std::max(target, busy) / 4);
}

Scheduler::Scheduler(SchedulerLimits limits, StagedKv& kv, const CostModel& cost)
    : limits_(limits), kv_(kv), cost_(cost), reserved_(static_cast<size_t>(kv.num_stages())) {
  BAM_CHECK(limits.max_num_seqs > 0 && limits.max_batched_tokens >= limits.max_num_seqs &&
            limits.max_logit_rows >= limits.max_num_seqs);
}

void Scheduler::reserve(size_t sequences) {
  const auto grow = [sequences](auto& list) {
    if (list.capacity() < sequences) list.reserve(2 * sequences);
  };
  for (auto* queue : {&running_, &waiting_, &paused_, &prefills_, &plan_.admitted, &plan_.preempted}) grow(*queue);
  grow(plan_.rows);
  grow(drafts_);
}

void Scheduler::add(Sequence& sequence) {
  insert_sorted(waiting_, &sequence);
  sequence.queue = Sequence::Queue::kWaiting;
}

void Scheduler::add_running(Sequence& sequence) {
  if (static_cast<int64_t>(running_.size()) >= limits_.max_num_seqs) {
    give_back(sequence);
    add(sequence);
    return;
  }
  sequence.queue = Sequence::Queue::kRunning;
  insert_sorted(running_, &sequence);
}

void Scheduler::remove(Sequence& sequence) {
  if (sequence.queue == Sequence::Queue::kRunning) std::erase(running_, &sequence);
  if (sequence.queue == Sequence::Queue::kWaiting) std::erase(waiting_, &sequence);
  if (sequence.queue == Sequence::Queue::kPaused) std::erase(paused_, &sequence);
  sequence.queue = Sequence::Queue::kNone;
  kv_.release(sequence.blocks);
}

void Scheduler::pause(Sequence& s) {
  if (s.queue == Sequence::Queue::kRunning) std::erase(running_, &s);
  if (s.queue == Sequence::Queue::kWaiting) std::erase(waiting_, &s);
  if (s.queue == Sequence::Queue::kPaused || s.queue == Sequence::Queue::kNone) return;
  s.queue = Sequence::Queue::kPaused;
  insert_sorted(paused_, &s);
}

void Scheduler::resume(Sequence& s) {
  if (s.queue != Sequence::Queue::kPaused) return;
  std::erase(paused_, &s);
  s.idle_since.reset();  // it waited for its reader, not for us
  if (s.blocks.id == 0) return add(s);
  join_class(s);
  add_running(s);
}

void Scheduler::give_back_all() {
  for (Sequence* s : paused_) give_back(*s);
  while (!running_.empty()) {
    Sequence& s = *running_.back();
    running_.pop_back();
    give_back(s);
    add(s);
  }
}

const SchedulePlan& Scheduler::schedule(Clock::time_point now) {
  plan_.rows.clear();
  plan_.admitted.clear();
  plan_.preempted.clear();
  plan_.load = StepLoad{};
  promote_starved(now);
  schedule_decodes();
  admit_waiting();
  schedule_prefills();
  schedule_drafts();
  collect_rows(now);
  return plan_;
}

void Scheduler::promote_starved(Clock::time_point now) {
  bool changed = false;
  for (auto* queue : {&running_, &waiting_}) {
    for (Sequence* s : *queue) {
      s->granted = s->drafted = 0;
      if (!s->idle_since) s->idle_since = now;
      if (s->promoted || now - *s->idle_since < limits_.promote_after) continue;
      s->promoted = changed = true;
    }
  }
  if (!changed) return;
  const auto order = [](const Sequence* a, const Sequence* b) { return served_before(*a, *b); };
  std::sort(running_.begin(), running_.end(), order);
  std::sort(waiting_.begin(), waiting_.end(), order);
}

void Scheduler::schedule_decodes() {
  const auto count = [&](auto which) { return std::ranges::count_if(running_, which); };
  const int64_t streams = count([](const Sequence* s) { return s->num_uncomputed() == 1; });
  // Pieces of prompts keep all stages busy: then nobody needs to wait for a turn.
  const bool reads = count([](const Sequence* s) { return s->num_unscheduled() > 0 && s->num_uncomputed() > 1; }) > 0;
  const int64_t most = reads ? streams : (streams + limits_.stages - 1) / limits_.stages;
  // make_room only ever removes sequences behind the current one.
  for (size_t i = 0; i < running_.size() && plan_.load.rows < most; ++i) {
    Sequence& s = *running_[i];
    if (s.num_unscheduled() != 1 || s.num_uncomputed() != 1 || !make_room(s, 1)) continue;
    s.granted = 1;
    plan_.load.add(s.num_scheduled, 1);
  }
}

bool Scheduler::make_room(Sequence& s, int64_t rows) {
  const int64_t end = s.num_scheduled + s.granted + rows;
  while (!kv_.grow(s.blocks, s.num_scheduled, end)) {
    if (s.num_scheduled > s.num_computed) return false;
    if (take_from_paused()) continue;
    Sequence* worst = running_.back();
    if (worst == &s) return false;  // keeps its pages and waits for a better one to finish
    preempt(*worst);
  }
  return true;
}

void Scheduler::preempt(Sequence& s) {
  std::erase(running_, &s);
  give_back(s);
  s.granted = s.drafted = 0;
  ++s.num_preemptions;
  std::erase(plan_.admitted, &s);
  plan_.preempted.push_back(&s);
  add(s);
}

void Scheduler::give_back(Sequence& s) {
  kv_.release(s.blocks);
  s.num_computed = s.num_scheduled = 0;
}

bool Scheduler::take_from_paused() {
  const auto victim =
      std::find_if(paused_.rbegin(), paused_.rend(), [](const Sequence* s) { return s->blocks.num_pages() > 0; });
  if (victim == paused_.rend()) return false;
  give_back(**victim);
  ++(*victim)->num_preemptions;
  plan_.preempted.push_back(*victim);
  return true;
}

int64_t Scheduler::paused_pages(int stage) const {
  int64_t pages = 0;
  for (const Sequence* s : paused_) pages += s->blocks.num_pages(stage);
  return pages;
}

// Pages that running sequences will take soon, for their known tokens and one block more: newcomers must not be
// admitted into them only to be preempted.
std::span<const int64_t> Scheduler::reserved_pages() {
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    int64_t& pages = reserved_[static_cast<size_t>(stage)] = 0;
    for (const Sequence* s : running_) {
      const int64_t ahead = s->num_known() + kv_.page_size();
      const int64_t need = kv_.stage(stage).geometry().pages_for(std::min(ahead, s->max_len));
      pages += std::max<int64_t>(0, need - s->blocks.num_pages(stage));
    }
  }
  return reserved_;
}

// The tokens whose pages must be there before a sequence starts.
int64_t Scheduler::tokens_to_start(const Sequence& s) { return std::min(s.num_known() + 1, s.max_len); }

bool Scheduler::fits_beside_running(const Sequence& s) {
  reserved_pages();
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    const int64_t need = kv_.stage(stage).geometry().pages_for(tokens_to_start(s));
    const int64_t taken = reserved_[static_cast<size_t>(stage)];
    if (need + taken > kv_.stage(stage).num_available() + paused_pages(stage)) return false;
  }
  return true;
}

bool Scheduler::try_admit(Sequence& s) {
  // At least one token is computed, and none whose logits somebody waits for is skipped.
  PromptScores::Found found;
  int64_t logits_from = s.logits_from;
  if (s.scores && s.wants_prompt_logits()) {
    const std::span<const int32_t> prompt(s.tokens.data(), static_cast<size_t>(s.num_prompt));
    found = kv_.find_scores(s.blocks, prompt, s.scores->num_top());
    logits_from = std::max(logits_from, static_cast<int64_t>(found.size()) * kv_.page_size() - 1);
  }
  const int64_t max_cached = std::min(s.num_known() - 1, logits_from);
  const auto cached = kv_.admit(s.blocks, s.tokens, max_cached, tokens_to_start(s), reserved_pages());
  if (!cached) return false;
  s.num_computed = s.num_scheduled = *cached;
  if (s.scores) s.scores->offer(std::move(found));
  s.logits_from = logits_from < s.num_prompt - 1 ? logits_from : INT64_MAX;
  s.overtaken = 0;
  join_class(s);
  s.queue = Sequence::Queue::kRunning;
  insert_sorted(running_, &s);
  plan_.admitted.push_back(&s);
  return true;
}

void Scheduler::join_class(Sequence& s) {
  double level = -1;
  for (const Sequence* r : running_) {
    if (same_class(*r, s) && r->num_uncomputed() > 1 && (level < 0 || r->virtual_time < level)) {
      level = r->virtual_time;
    }
  }
  s.virtual_time = std::max(s.virtual_time, level);
}

// By priority alone: a promoted sequence waits its turn instead of throwing out its equals.
bool Scheduler::preempt_worse_class(const Sequence& s) {
  const auto worse = [&](const Sequence* r) { return !r->promoted && r->priority > s.priority; };
  if (std::none_of(running_.begin(), running_.end(), worse)) return false;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    int64_t pages = kv_.stage(stage).num_available() + paused_pages(stage);
    for (const Sequence* r : running_) {
      if (worse(r)) pages += r->blocks.num_pages(stage);
    }
    if (kv_.stage(stage).geometry().pages_for(s.num_known()) > pages) return false;
  }
  preempt(*running_.back());
  return true;
}

void Scheduler::admit_waiting() {
  if (!plan_.preempted.empty()) return;  // no memory to give away
  Sequence* first_blocked = nullptr;
  int blocked = 0;
  for (size_t i = 0; i < waiting_.size() && blocked <= kMaxBlocked;) {
    Sequence& s = *waiting_[i];
    bool admitted = false;
    while (!admitted) {
      const bool slot = static_cast<int64_t>(running_.size()) < limits_.max_num_seqs;
      admitted = slot && try_admit(s);
      if (!admitted && slot && fits_beside_running(s) && take_from_paused()) continue;
      if (!admitted && !preempt_worse_class(s)) {
        if (!slot) return;  // slots are given strictly in order
        break;
      }
    }
    if (admitted) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      if (first_blocked && ++first_blocked->overtaken >= kMaxOvertakes) return;
      continue;
    }
    if (!first_blocked) first_blocked = &s;
    if (first_blocked->overtaken >= kMaxOvertakes) return;
    ++blocked;
    ++i;
  }
}

void Scheduler::schedule_prefills() {
  // Somebody waits for rows that complete what is known of a text: in this plan, or on their way.
  const auto is_awaited = [](const Sequence* s) {
    return s->num_unscheduled() == 0 && s->num_scheduled > s->num_computed;
  };
  const bool awaited = plan_.load.rows > 0 || std::ranges::any_of(running_, is_awaited);
  budget_ms_ = prefill_budget_ms(limits_, cost_, plan_.load, awaited);
  rows_left_ = limits_.max_batched_tokens - plan_.load.rows;
  logits_left_ = limits_.max_logit_rows - static_cast<int64_t>(running_.size());
  prefill_started_ = false;
  prefills_.clear();
  for (Sequence* s : running_) {
    const bool waits_for_its_turn = limits_.stages > 1 && s->num_uncomputed() == 1;
    if (s->granted > 0 || s->num_unscheduled() == 0 || waits_for_its_turn) continue;
    prefills_.push_back(s);
  }
  if (limits_.stages > 1) rows_left_ = std::min(rows_left_, piece_rows());
  // Classes one after the other; within a class everybody shares.
  for (size_t begin = 0; begin < prefills_.size();) {
    size_t end = begin + 1;
    while (end < prefills_.size() && same_class(*prefills_[begin], *prefills_[end])) ++end;
    share_time({prefills_.data() + begin, end - begin});
    begin = end;
  }
}

int64_t Scheduler::piece_rows() const {
  int64_t before = 0, left = 0;
  for (const Sequence* s : prefills_) {
    before += s->num_scheduled;
    left += s->num_unscheduled();
  }
  const int64_t even = (before + left) / (kPiecesPerStage * (limits_.stages - 1));
  const int64_t rows = std::min(even, std::min(before, left) / kEdgePieces);
  return std::max(kLeastPiece, rows / kQuantumRows * kQuantumRows);
}

// The next rows of a prefill, up to the next tile border; 0 when the step's time is used up.
int64_t Scheduler::quantum(const Sequence& s) const {
  const int64_t start = s.num_scheduled + s.granted;
  const int64_t rows = std::min({kQuantumRows - start % kQuantumRows, s.num_known() - start, rows_left_});
  return std::min(rows, std::max<int64_t>(cost_.rows_within(start, budget_ms_), prefill_started_ ? 0 : 1));
}

void Scheduler::share_time(std::span<Sequence*> active) {
  double served_from = -1;
  const std::span<Sequence*> members = active;
  while (!active.empty() && rows_left_ > 0) {
    // Least time received first; equal ones in serving order.
    const auto next = std::min_element(active.begin(), active.end(), [](const Sequence* a, const Sequence* b) {
      return a->virtual_time != b->virtual_time ? a->virtual_time < b->virtual_time : served_before(*a, *b);
    });
    Sequence& s = **next;
    int64_t rows = 0;
    bool can_run = s.queue == Sequence::Queue::kRunning && s.num_unscheduled() > s.granted;
    if (can_run) {
      rows = quantum(s);
      if (rows == 0) break;
      const int64_t own_logit = s.granted == 0 ? 1 : 0;
      if (s.wants_prompt_logits()) rows = std::min(rows, logits_left_ + own_logit);
      can_run = rows > 0 && make_room(s, rows);
      if (can_run && s.wants_prompt_logits()) logits_left_ -= rows - own_logit;
    }
    if (!can_run) {  // done, without memory, or preempted by a better one just now
      std::swap(*next, active.back());
      active = active.first(active.size() - 1);
      continue;
    }
    const double cost_ms = std::max(cost_.rows_ms(s.num_scheduled + s.granted, rows), 1e-6);
    if (served_from < 0) served_from = s.virtual_time;
    s.virtual_time += cost_ms;
    s.granted += rows;
    budget_ms_ -= cost_ms;
    rows_left_ -= rows;
    prefill_started_ = true;
  }
  // Time that a sequence without memory could not use is not owed to it.
  for (Sequence* s : members) s->virtual_time = std::max(s->virtual_time, served_from);
}

bool Scheduler::grow_for_drafts(Sequence& s, int64_t rows) {
  const int64_t end = s.num_scheduled + 1 + rows;
  bool grows = false;
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    const BlockTable& table = s.blocks.stages[static_cast<size_t>(stage)];
    grows = grows || kv_.stage(stage).pages_to_grow(table, s.num_scheduled, end) > 0;
  }
  if (!grows) return true;
  reserved_pages();
  for (int stage = 0; stage < kv_.num_stages(); ++stage) {
    if (reserved_[static_cast<size_t>(stage)] > kv_.stage(stage).num_available()) return false;
  }
  return kv_.grow(s.blocks, s.num_scheduled, end);
}

double Scheduler::collect_drafts(StepLoad& load) {
  drafts_.clear();
  double tokens = 0;
  for (Sequence* s : running_) {
    if (s->granted == 0) continue;
    load.add(s->num_scheduled, s->granted);
    if (s->num_unscheduled() != s->granted) continue;
    tokens += 1;
    if (s->num_uncomputed() == 1 && s->drafter && !s->drafter->proposal().empty()) {
      drafts_.push_back({s, s->drafter->chance(), cost_.draft_row_ms(s->num_scheduled)});
    }
  }
  return tokens;
}

// One guess after the other, the most promising first.
void Scheduler::schedule_drafts() {
  if (static_cast<int64_t>(running_.size()) >= limits_.max_num_seqs) return;
  StepLoad load;
  double tokens = collect_drafts(load);  // that the step brings, as far as they are expected
  if (drafts_.empty()) return;
  double ms = cost_.predict_ms(load);
  const auto promise = [](const NextDraft& d) { return d.chance / d.ms; };
  int64_t made = 0;
  while (!drafts_.empty() && rows_left_ > 0 && logits_left_ > 0) {
    NextDraft& next = *std::ranges::max_element(drafts_, {}, promise);
    Sequence& s = *next.sequence;
    const double chance = s.drafter->chance();
    if (promise(next) * ms < kDraftMargin * tokens) {
      if (made == 0 && chance > kLikelyDraft) ++drafts_denied_;
      if (drafts_denied_ <= kDraftPatience || made >= kTriedDrafts) break;
    }
    const bool more = s.drafted < static_cast<int64_t>(s.drafter->proposal().size());
    if (!more || !grow_for_drafts(s, s.drafted + 1)) {
      std::swap(next, drafts_.back());
      drafts_.pop_back();
      continue;
    }
    ++made;
    ++s.drafted;
    --rows_left_;
    --logits_left_;
    tokens += next.chance;
    ms += next.ms;
    next.chance *= chance;
  }
  if (made > 0) drafts_denied_ = 0;
}

void Scheduler::collect_rows(Clock::time_point now) {
  plan_.load = StepLoad{};
  for (const bool decode : {true, false}) {
    for (Sequence* s : running_) {
      if (s->granted == 0 || (s->num_unscheduled() == 1) != decode) continue;
      plan_.rows.push_back({s, s->num_scheduled, s->granted + s->drafted, s->drafted});
      plan_.load.add(s->num_scheduled, s->granted);
      if (s->drafted > 0) plan_.load.add_drafts(s->num_scheduled + s->granted, s->drafted);
      s->num_scheduled += std::exchange(s->granted, 0);
      s->idle_since = now;
    }
  }
}

}  // namespace bam
