#include "transport/mailbox.h"

#include <utility>

namespace bam {

namespace {
constexpr size_t kMaxSpare = 8;
}  // namespace

void Mailbox::put(int from, Channel channel, std::vector<std::byte>&& message) {
  Box& to = box(from, channel);
  {
    const std::lock_guard lock(mutex_);
    to.messages.push_back(std::move(message));
  }
  to.arrived.notify_one();
}

std::vector<std::byte> Mailbox::spare(int from, Channel channel) {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<std::byte>>& spare = box(from, channel).spare;
  if (spare.empty()) return {};
  std::vector<std::byte> memory = std::move(spare.back());
  spare.pop_back();
  return memory;
}

bool Mailbox::take(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout) {
  Box& of = box(from, channel);
  std::unique_lock lock(mutex_);
  of.arrived.wait_for(lock, timeout, [&] { return !of.messages.empty() || loss_; });
  if (of.messages.empty()) {
    if (loss_) throw PeerLost(loss_->rank, loss_->why, loss_->comes_back);
    return false;
  }
  std::swap(message, of.messages.front());
  if (of.spare.size() < kMaxSpare) of.spare.push_back(std::move(of.messages.front()));
  of.messages.pop_front();
  return true;
}

bool Mailbox::lose(int rank, const std::string& why, bool comes_back) {
  {
    const std::lock_guard lock(mutex_);
    if (loss_) return false;
    loss_ = Loss{rank, why, comes_back};
  }
  for (Box& b : boxes_) b.arrived.notify_all();
  return true;
}

void Mailbox::throw_if_lost() const {
  const std::lock_guard lock(mutex_);
  if (loss_) throw PeerLost(loss_->rank, loss_->why, loss_->comes_back);
}

}  // namespace bam
