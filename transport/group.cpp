#include "transport/group.h"

#include <algorithm>
#include <random>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/plugin.h"
#include "transport/key_value_store.h"
#include "transport/wire.h"
#include "transport/wire_transport.h"

namespace bam {

namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kPoll{20}, kUnreachablePause{500};
constexpr std::string_view kNcclSuffix = "+nccl";
constexpr milliseconds kJoinTimeout{10000};  // once everybody has said that they are there

MakeWireFunction find_plugin(const std::string& transport) {
  const Plugin plugin("libbam_" + transport + ".so", transport + " plugin", "`make cluster` builds it",
                      BAM_TRANSPORT_ABI);
  return plugin.symbol<MakeWireFunction>(kMakeWireSymbol);
}

std::unique_ptr<Wire> make_wire(MakeWireFunction make, const WireOptions& options) {
  char reason[512] = "";
  std::unique_ptr<Wire> wire(make(&options, reason, sizeof reason));
  if (!wire) throw Error("{}", reason);
  return wire;
}

// The keys of one group within a store that groups share.
class PrefixedStore : public KeyValueStore {
 public:
  PrefixedStore(KeyValueStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  void put(const std::string& key, const std::string& value) override { store_.put(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) override { return store_.get(prefix_ + key); }
  void remove_all(const std::string& prefix) override { store_.remove_all(prefix_ + prefix); }

 private:
  KeyValueStore& store_;
  std::string prefix_;
};

// Every rank but 0 leaves a ticket, used once; rank 0 waits until there is a new one of everybody and then calls the group
// by its tickets. So nobody answers a call that was meant for another process, or for an earlier life of its own.
class RendezvousGroup : public GroupSource {
 public:
  explicit RendezvousGroup(const GroupOptions& options)
      : options_(options), make_(find_plugin(options.transport)), store_(open_store(options.rendezvous)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  std::unique_ptr<Transport> form(milliseconds timeout, uint64_t& epoch) override {
    const auto end = SteadyClock::now() + timeout;
    while (true) {
      try {
        const bool called = options_.rank == 0 ? call(end, epoch) : answer(end, epoch);
        if (!called) return nullptr;
      } catch (const StoreUnreachable& e) {
        log::warn("{}", e.what());
        if (!pause(end, kUnreachablePause)) return nullptr;
        continue;
      }
      try {
        return connect(epoch);
      } catch (const Error& e) {
        log::warn("the group of {} ranks did not come together: {}", size(), e.what());
      }
    }
  }

 private:
  static std::string ticket_key(int rank) { return fmt::format("ticket-{}", rank); }
  static bool pause(SteadyClock::time_point end, milliseconds time = kPoll) {
    if (SteadyClock::now() >= end) return false;
    std::this_thread::sleep_for(time);
    return true;
  }

  bool call(SteadyClock::time_point end, uint64_t& epoch) {
    std::vector<std::string> tickets;
    do {
      tickets.clear();
      for (int rank = 1; rank < size(); ++rank) {
        const auto ticket = store_->get(ticket_key(rank));
        if (ticket && !used_.contains(*ticket)) tickets.push_back(*ticket);
      }
      if (static_cast<int>(tickets.size()) < size() - 1) continue;
      // Rising over restarts of rank 0, too.
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      epoch_ = std::max(epoch_ + 1, static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(now).count()));
      used_.insert(tickets.begin(), tickets.end());
      std::string text = std::to_string(epoch_);
      for (const std::string& ticket : tickets) text += " " + ticket;
      store_->put("group", text);
      epoch = epoch_;
      return true;
    } while (pause(end));
    return false;
  }

  bool answer(SteadyClock::time_point end, uint64_t& epoch) {
    std::random_device random;
    const std::string ticket = fmt::format("{:08x}{:08x}", random(), random());
    store_->put(ticket_key(rank()), ticket);
    do {
      if (store_->get(ticket_key(rank())) != ticket) throw Error("another worker has taken rank {}", rank());
      std::istringstream text(store_->get("group").value_or(""));
      uint64_t number = 0;
      text >> number;
      std::string called;
      for (int r = 1; r <= rank(); ++r) called.clear(), text >> called;
      if (called != ticket) continue;
      epoch = number;
      return true;
    } while (pause(end));
    return false;
  }

  std::unique_ptr<Transport> connect(uint64_t epoch) {
    PrefixedStore store(*store_, fmt::format("epoch-{}-", epoch));
    WireOptions wire;
    wire.rank = rank();
    wire.size = size();
    wire.store = &store;
    wire.address = options_.address;
    wire.patience = 3 * options_.deadline;
    wire.join_timeout = kJoinTimeout;
    auto transport = make_wire_transport(make_wire(make_, wire), options_.deadline);
    if (rank() == 0) {
      if (connected_ != 0) store_->remove_all(fmt::format("epoch-{}-", connected_));
      connected_ = epoch;
    }
    return transport;
  }

  GroupOptions options_;
  MakeWireFunction make_;
  std::unique_ptr<KeyValueStore> store_;
  std::set<std::string> used_;  // tickets
  uint64_t epoch_ = 0, connected_ = 0;
};

// The ranks of one MPI job: they are there from the start, and there is no second group.
class MpiGroup : public GroupSource {
 public:
  explicit MpiGroup(const GroupOptions& options) : deadline_(options.deadline) {
    WireOptions wire;
    wire.size = options.size;
    wire.patience = 3 * options.deadline;
    wire_ = make_wire(find_plugin("mpi"), wire);
    rank_ = wire_->rank();
    size_ = wire_->size();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transport> form(milliseconds, uint64_t& epoch) override {
    if (!wire_) {
      log::error("an MPI job that lost a rank cannot go on: its launcher must start it again");
      return nullptr;
    }
    epoch = 1;
    return make_wire_transport(std::move(wire_), deadline_);
  }

 private:
  milliseconds deadline_;
  std::unique_ptr<Wire> wire_;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<GroupSource> make_group_source(const GroupOptions& options) {
  if (options.transport.ends_with(kNcclSuffix)) {
    GroupOptions messages = options;
    messages.transport.resize(messages.transport.size() - kNcclSuffix.size());
    auto wires = load_row_wires("nccl");
    return with_row_wires(make_group_source(messages), std::move(wires));
  }
  if (options.transport == "mpi") return std::make_unique<MpiGroup>(options);
  if (options.transport != "gloo")
    throw UsageError("--transport: '{}' is not one of gloo, mpi, gloo+nccl, mpi+nccl", options.transport);
  if (options.size < 2 || options.rank < 0 || options.rank >= options.size) {
    throw UsageError("rank {} of {} stages does not exist", options.rank, options.size);
  }
  if (options.deadline < milliseconds(100)) throw UsageError("--stage-deadline must be at least 0.1 s");
  return std::make_unique<RendezvousGroup>(options);
}

}  // namespace bam
