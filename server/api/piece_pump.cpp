#include "server/api/piece_pump.h"

#include "base/describe.h"
#include "base/log.h"

namespace bam {

void PiecePump::start(TextSource source, std::function<void()> done) {
  if (state_ != State::kIdle) return;
  source_ = std::make_shared<TextSource>(std::move(source));
  done_ = std::move(done);
  make_next();
}

void PiecePump::make_next() {
  state_ = State::kMaking;
  const std::function<void()> task = [self = shared_from_this(), source = source_] {
    try {
      std::string piece;
      const bool more = (*source)(piece);
      self->call_->post([self, more, piece = std::move(piece)]() mutable { self->made(std::move(piece), more); });
    } catch (const std::exception& error) {
      log::error("a reply was broken off: {}", describe(error));
      self->call_->post([self] { self->failed(); });
    }
  };
  // A piece is small: with no worker to be had, it is made here.
  if (!workers_.submit(Workers::Lane::kLarge, task)) task();
}

void PiecePump::made(std::string piece, bool more) {
  if (state_ != State::kMaking) return;
  stream_->send(std::move(piece));
  if (state_ != State::kMaking) return;
  if (!more) {
    state_ = State::kIdle;
    source_ = nullptr;
    if (auto done = std::exchange(done_, nullptr)) done();
  } else if (stream_->is_full()) {
    state_ = State::kWaiting;
  } else {
    make_next();
  }
}

void PiecePump::drained() {
  if (state_ == State::kWaiting) make_next();
}

// Half a text must not look like a whole one.
void PiecePump::failed() {
  if (state_ != State::kMaking) return;
  stop();
  stream_->abort();
}

void PiecePump::stop() {
  state_ = State::kStopped;
  source_ = nullptr;
  done_ = nullptr;
}

}  // namespace bam
