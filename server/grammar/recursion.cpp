#include "server/grammar/recursion.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "base/check.h"

namespace bam::constraints {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;

class RecursionResolver {
 public:
  RecursionResolver(const AutomatonBuilder& in, AutomatonBuilder& out) : in_(in), out_(out) {
    find_beginnings();
    find_cycles();
  }

  void run(RuleId root) {
    const RuleId text = out_.add_rule();
    BAM_CHECK(text == 0);
    if (nullable_[root]) out_.epsilon(out_.start(text), out_.end(text));
    out_.call(out_.start(text), wanted(root), out_.end(text));
    while (!pending_.empty()) {
      const RuleId rule = pending_.front();
      pending_.pop_front();
      write(rule);
    }
  }

 private:
  struct Call {
    RuleId caller;
    State to;
  };

  // The states that each rule reaches before it has read anything, and with them the rules that may read nothing: a call
  // is passed once its rule is known to be nullable.
  void find_beginnings() {
    const auto num_rules = in_.rules().size();
    beginnings_.resize(num_rules);
    nullable_.assign(num_rules, false);
    std::vector<bool> seen(in_.nodes().size(), false);
    std::vector<Call> todo;
    std::vector<std::vector<Call>> waiting(num_rules);  // by called rule
    for (RuleId rule = 0; rule < num_rules; ++rule) todo.push_back({rule, in_.start(rule)});
    while (!todo.empty()) {
      const auto [rule, s] = todo.back();
      todo.pop_back();
      if (seen[s]) continue;
      seen[s] = true;
      beginnings_[rule].push_back(s);
      for (State to : in_.nodes()[s].epsilons) todo.push_back({rule, to});
      for (const auto& call : in_.nodes()[s].calls) {
        if (nullable_[call.rule])
          todo.push_back({rule, call.to});
        else
          waiting[call.rule].push_back({rule, call.to});
      }
      if (s != in_.end(rule)) continue;
      nullable_[rule] = true;
      todo.insert(todo.end(), waiting[rule].begin(), waiting[rule].end());
      waiting[rule].clear();
    }
  }

  // Rules that begin with each other, by Tarjan's algorithm with a stack of its own.
  void find_cycles() {
    const auto num_rules = static_cast<RuleId>(in_.rules().size());
    std::vector<std::vector<RuleId>> first(num_rules);
    first_calls_.resize(num_rules);
    for (RuleId rule = 0; rule < num_rules; ++rule) {
      for (State s : beginnings_[rule]) {
        for (const auto& call : in_.nodes()[s].calls) {
          first[rule].push_back(call.rule);
          first_calls_[call.rule].push_back({rule, call.to});
        }
      }
    }
    cycle_of_.assign(num_rules, kNone);
    std::vector<uint32_t> order(num_rules, kNone), low(num_rules, 0), next(num_rules, 0);
    std::vector<RuleId> open, path;
    uint32_t count = 0;
    for (RuleId root = 0; root < num_rules; ++root) {
      if (order[root] == kNone) path.push_back(root);
      while (!path.empty()) {
        const RuleId rule = path.back();
        if (order[rule] == kNone) {
          order[rule] = low[rule] = count++;
          open.push_back(rule);
        }
        if (next[rule] < first[rule].size()) {
          const RuleId callee = first[rule][next[rule]];
          if (order[callee] == kNone) {
            path.push_back(callee);
            continue;
          }
          if (cycle_of_[callee] == kNone) low[rule] = std::min(low[rule], low[callee]);
          ++next[rule];
          continue;
        }
        path.pop_back();
        if (low[rule] != order[rule]) continue;
        const auto id = static_cast<uint32_t>(cycles_.size());
        cycles_.emplace_back();
        for (RuleId member = kNone; member != rule;) {
          member = open.back();
          open.pop_back();
          cycle_of_[member] = id;
          cycles_[id].push_back(member);
        }
      }
    }
  }

  // The rule of `out_` for the texts of an input rule that are not empty.
  RuleId wanted(RuleId rule) {
    const auto [it, added] = ids_.try_emplace(rule, 0);
    if (added) {
      it->second = out_.add_rule();
      pending_.push_back(rule);
    }
    return it->second;
  }

  State copy_of(State s) {
    const auto [it, added] = copies_.try_emplace(s, 0);
    if (added) {
      it->second = out_.add_state();
      todo_.push_back(s);
    }
    return it->second;
  }

  // One rule, which has the whole cycle it is on inside.
  void write(RuleId rule) {
    copies_.clear();
    const RuleId id = wanted(rule);
    const uint32_t cycle = cycle_of_[rule];
    std::unordered_map<State, RuleId> ends;
    for (RuleId member : cycles_[cycle]) {
      ends.emplace(in_.end(member), member);
      for (State s : beginnings_[member]) {
        for (const auto& edge : in_.nodes()[s].bytes) out_.bytes(out_.start(id), edge.lo, edge.hi, copy_of(edge.to));
        for (const auto& call : in_.nodes()[s].calls) {
          if (cycle_of_[call.rule] != cycle) out_.call(out_.start(id), wanted(call.rule), copy_of(call.to));
        }
      }
    }
    while (!todo_.empty()) {
      const State s = todo_.back();
      todo_.pop_back();
      write_copy(s);
      const auto ended = ends.find(s);
      if (ended == ends.end()) continue;
      if (ended->second == rule) out_.epsilon(copy_of(s), out_.end(id));
      for (const Call& call : first_calls_[ended->second]) {
        if (cycle_of_[call.caller] == cycle) out_.epsilon(copy_of(s), copy_of(call.to));
      }
    }
  }

  void write_copy(State s) {
    const State copy = copy_of(s);
    const auto& node = in_.nodes()[s];
    for (const auto& edge : node.bytes) out_.bytes(copy, edge.lo, edge.hi, copy_of(edge.to));
    for (State to : node.epsilons) out_.epsilon(copy, copy_of(to));
    for (const auto& call : node.calls) {
      out_.call(copy, wanted(call.rule), copy_of(call.to));
      if (nullable_[call.rule]) out_.epsilon(copy, copy_of(call.to));
    }
  }

  const AutomatonBuilder& in_;
  AutomatonBuilder& out_;
  std::vector<std::vector<State>> beginnings_;  // by rule
  std::vector<bool> nullable_;                  // by rule
  std::vector<std::vector<Call>> first_calls_;  // by called rule: the calls with which a rule may begin
  std::vector<uint32_t> cycle_of_;              // by rule
  std::vector<std::vector<RuleId>> cycles_;
  std::unordered_map<RuleId, RuleId> ids_;
  std::unordered_map<State, State> copies_;  // of the rule being written
  std::deque<RuleId> pending_;
  std::vector<State> todo_;  // copies without edges yet
};

}  // namespace

void resolve_recursion(const AutomatonBuilder& in, RuleId root, AutomatonBuilder& out) {
  RecursionResolver(in, out).run(root);
}

}  // namespace bam::constraints
