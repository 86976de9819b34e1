#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/api/call.h"

namespace bam {

// Makes the next part of a text: appends about `kPieceBytes` of it, and returns false with the last part.
using TextSource = std::function<bool(std::string& out)>;
inline constexpr size_t kPieceBytes = 64 * 1024;

// Sends a long text piece by piece: made on a worker, sent on the connection's thread, the next one only when the client
// has taken enough of those before. All methods belong to the connection's thread.
class PiecePump : public std::enable_shared_from_this<PiecePump> {
 public:
  PiecePump(Workers& workers, CallPtr call, std::shared_ptr<ReplyStream> stream)
      : workers_(workers), call_(std::move(call)), stream_(std::move(stream)) {}

  bool idle() const { return state_ == State::kIdle; }
  // While idle. `done` runs after the last piece was handed to the stream.
  void start(TextSource source, std::function<void()> done);
  // The stream has room again.
  void drained();
  // Sends nothing more. A piece that is being made is thrown away.
  void stop();

 private:
  enum class State : uint8_t { kIdle, kMaking, kWaiting, kStopped };
  void make_next();
  void made(std::string piece, bool more);
  void failed();

  Workers& workers_;
  const CallPtr call_;
  const std::shared_ptr<ReplyStream> stream_;
  State state_ = State::kIdle;
  std::shared_ptr<TextSource> source_;  // shared with the worker that is at it
  std::function<void()> done_;
};

}  // namespace bam
