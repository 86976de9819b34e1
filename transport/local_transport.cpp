// Ranks that are threads of this process: for tests, and the plainest thing that keeps the contract of transport.h.
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "transport/mailbox.h"
#include "transport/transport.h"

namespace bam {

namespace {

using Mailboxes = std::vector<std::unique_ptr<Mailbox>>;  // [rank]

class LocalTransport : public Transport {
 public:
  LocalTransport(int rank, std::shared_ptr<Mailboxes> boxes) : rank_(rank), boxes_(std::move(boxes)) {}
  ~LocalTransport() override { leave("it left the group", false); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(boxes_->size()); }
  std::string description() const override { return "threads of one process"; }

  void send_swap(int to, Channel channel, std::vector<std::byte>& message) override {
    BAM_CHECK(to >= 0 && to < size() && to != rank_);
    own().throw_if_lost();
    Mailbox& box = *(*boxes_)[static_cast<size_t>(to)];
    box.put(rank_, channel, std::exchange(message, box.spare(rank_, channel)));
  }

  bool receive(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout) override {
    BAM_CHECK(from >= 0 && from < size() && from != rank_);
    return own().take(from, channel, message, timeout);
  }

  void check() const override { own().throw_if_lost(); }
  void abort(const std::string& why) noexcept override { leave(why, true); }

 private:
  void leave(const std::string& why, bool comes_back) noexcept {
    for (const auto& box : *boxes_) box->lose(rank_, why, comes_back);
  }
  Mailbox& own() const { return *(*boxes_)[static_cast<size_t>(rank_)]; }

  int rank_;
  std::shared_ptr<Mailboxes> boxes_;
};

// Where the threads of a process meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size), groups_(static_cast<size_t>(size)) {}
  int size() const { return size_; }

  // Null: the others did not come in time.
  std::unique_ptr<Transport> join(int rank, std::chrono::milliseconds timeout, uint64_t& epoch) {
    std::unique_lock lock(mutex_);
    const auto mine = [&]() -> std::unique_ptr<Transport>& { return groups_[static_cast<size_t>(rank)]; };
    ++waiting_;
    if (waiting_ == size_) {
      groups_ = make_local_group(size_);
      waiting_ = 0;
      ++epoch_;
      complete_.notify_all();
    } else if (!complete_.wait_for(lock, timeout, [&] { return mine() != nullptr; })) {
      --waiting_;
      return nullptr;
    }
    epoch = epoch_;
    return std::move(mine());
  }

 private:
  int size_;
  std::mutex mutex_;
  std::condition_variable complete_;
  int waiting_ = 0;
  uint64_t epoch_ = 0;
  std::vector<std::unique_ptr<Transport>> groups_;  // [rank] formed and not fetched yet
};

class LocalSource : public GroupSource {
 public:
  LocalSource(int rank, std::shared_ptr<Meeting> meeting) : rank_(rank), meeting_(std::move(meeting)) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  std::unique_ptr<Transport> form(std::chrono::milliseconds timeout, uint64_t& epoch) override {
    return meeting_->join(rank_, timeout, epoch);
  }

 private:
  int rank_;
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local_group(int size) {
  auto boxes = std::make_shared<Mailboxes>();
  for (int rank = 0; rank < size; ++rank) boxes->push_back(std::make_unique<Mailbox>(size));
  std::vector<std::unique_ptr<Transport>> group;
  for (int rank = 0; rank < size; ++rank) group.push_back(std::make_unique<LocalTransport>(rank, boxes));
  return group;
}

std::vector<std::unique_ptr<GroupSource>> make_local_sources(int size) {
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<GroupSource>> sources;
  for (int rank = 0; rank < size; ++rank) sources.push_back(std::make_unique<LocalSource>(rank, meeting));
  return sources;
}

}  // namespace bam
