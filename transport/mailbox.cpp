#include "transport/mailbox.h"

#include <utility>

namespace bam {

namespace {
constexpr size_t kMaxSpare = 16;
}  // namespace

std::vector<std::byte> Mailbox::spare() {
  if (spare_.empty()) return {};
  std::vector<std::byte> memory = std::move(spare_.back());
  spare_.pop_back();
  return memory;
}

void Mailbox::put(int from, Channel channel, std::span<const std::byte> message) {
  std::vector<std::byte> copy;
  {
    const std::lock_guard lock(mutex_);
    copy = spare();
  }
  copy.assign(message.begin(), message.end());
  put_swap(from, channel, copy);
}

void Mailbox::put_swap(int from, Channel channel, std::vector<std::byte>& message) {
  Box& to = box(from, channel);
  {
    const std::lock_guard lock(mutex_);
    to.messages.push_back(std::exchange(message, spare()));
  }
  to.arrived.notify_one();
}

bool Mailbox::take(int from, Channel channel, std::vector<std::byte>& message, std::chrono::milliseconds timeout) {
  Box& of = box(from, channel);
  std::unique_lock lock(mutex_);
  of.arrived.wait_for(lock, timeout, [&] { return !of.messages.empty() || loss_; });
  if (of.messages.empty()) {
    if (loss_) throw PeerLost(loss_->rank, loss_->why);
    return false;
  }
  std::swap(message, of.messages.front());
  if (spare_.size() < kMaxSpare) spare_.push_back(std::move(of.messages.front()));
  of.messages.pop_front();
  return true;
}

bool Mailbox::lose(int rank, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (loss_) return false;
    loss_ = Loss{rank, why};
  }
  for (Box& b : boxes_) b.arrived.notify_all();
  return true;
}

void Mailbox::throw_if_lost() const {
  const std::lock_guard lock(mutex_);
  if (loss_) throw PeerLost(loss_->rank, loss_->why);
}

}  // namespace bam
