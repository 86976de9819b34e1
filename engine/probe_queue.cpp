#include "engine/probe_queue.h"

#include <exception>
#include <future>
#include <utility>

#include "models/model_config.h"
#include "transport/transport.h"

namespace bam {

std::optional<Error> ProbeQueue::check(const ModelConfig& model, std::span<const int32_t> tokens, int layer, int head,
                                       int64_t position) {
  if (tokens.empty() || static_cast<int64_t>(tokens.size()) > kMaxTokens) {
    return Error("attention rows are available for 1 to {} tokens, not for {}", kMaxTokens, tokens.size());
  }
  if (layer < 0 || layer >= model.num_layers || head < 0 || head >= model.num_heads) {
    return Error("there is no head {} in layer {}: the model has {} layers of {} heads", head, layer, model.num_layers,
                 model.num_heads);
  }
  if (position < 0 || position >= static_cast<int64_t>(tokens.size())) {
    return Error("position {} is outside the {} tokens", position, tokens.size());
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) return Error("token id {} is outside the vocabulary", token);
  }
  return std::nullopt;
}

void ProbeQueue::add(std::unique_ptr<AttentionProbe> probe, std::stop_token stop, Done done) {
  probes_.push_back({std::move(probe), std::move(stop), std::move(done)});
}

Result<std::vector<float>> ProbeQueue::ask(const std::function<void(Done)>& add) {
  auto promise = std::make_shared<std::promise<Result<std::vector<float>>>>();
  auto answer = promise->get_future();
  try {
    add([promise](Result<std::vector<float>> row) { promise->set_value(std::move(row)); });
    promise.reset();  // the engine's is the only one left: if it goes, we hear of it
    return answer.get();
  } catch (const std::exception& e) {
    return Error("{}", e.what());
  }
}

void ProbeQueue::drop_stopped() {
  std::erase_if(probes_, [](Probe& p) {
    if (p.stop.stop_requested()) p.done(Error("cancelled"));
    return p.stop.stop_requested();
  });
}

void ProbeQueue::advance(int64_t rows, const Compute& compute) {
  Probe& p = probes_.front();
  Result<std::vector<float>> result = Error("");
  std::exception_ptr lost;
  try {
    std::optional<std::vector<float>> complete = compute(*p.probe, rows);
    if (!complete) return;
    result = std::move(*complete);
  } catch (const PeerLost&) {
    throw;
  } catch (const DeviceLost& e) {
    lost = std::current_exception();
    result = Error("{}", e.what());
  } catch (const std::exception& e) {
    result = Error("{}", e.what());
  }
  const Done done = std::move(p.done);
  probes_.pop_front();
  done(std::move(result));
  if (lost) std::rethrow_exception(lost);
}

void ProbeQueue::restart() {
  for (Probe& p : probes_) p.probe->restart();
}

void ProbeQueue::cancel_all() {
  for (Probe& p : std::exchange(probes_, {})) p.done(Error("cancelled"));
}

}  // namespace bam
