#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/config.h"
#include "engine/kv_events.h"
#include "engine/request.h"
#include "engine/snapshot_error.h"
#include "engine/stats.h"

namespace bam {

class BamModel;
class GroupSource;
class PrefixPages;
class PrefixStore;
struct HeadReport;
struct ModelConfig;

enum class SubmitStatus : uint8_t {
  kAccepted,
  kInvalid,    // can never be served: too long, or more pages than the whole cache
  kQueueFull,  // try again in retry_after_s
  kDraining,
  kDuplicateId,
  kNoMemory,  // the machine has none for this request; others go on
};

struct SubmitResult {
  SubmitStatus status = SubmitStatus::kAccepted;
  std::string message;       // with the numbers
  double retry_after_s = 0;  // kQueueFull: predicted from the queued work
};

// Continuous batching over one model. A thread of its own owns the scheduler and the KV cache; submit, cancel and the
// like put a message into its inbox, which is the only lock. All public methods may be called from any thread.
class Engine {
 public:
  // tokenizer_fingerprint goes into snapshot headers; `time` and `group` outlive the engine. With a group the model is its
  // first stage, this is rank 0, and the other ranks (run_stage_worker) are waited for. Throws Error when the KV memory
  // holds less than one page per group, and with one line that says why there is no group.
  Engine(std::unique_ptr<BamModel> model, EngineConfig config, uint64_t tokenizer_fingerprint,
         TimeSource& time = steady_time(), GroupSource* group = nullptr);
  ~Engine();  // aborts what still runs

  SubmitResult submit(Request request, std::shared_ptr<EventSink> sink);
  // True if such a request was live when the message was sent; its pages are free within one step. (Without memory for
  // the message it is false, too.)
  bool cancel(const std::string& id);
  void cancel_all();
  // One choice's text is complete (its text met a stop string, say): it ends with kStop and gets no further token once
  // the message is handled; the other choices go on. Events that were on their way still arrive. True as for cancel().
  bool stop(const std::string& id, int32_t choice);

  // Back-pressure. A paused request gets no rows from the next step on, so no events but a FinishEvent (cancel, timeout,
  // shutdown) after at most one step. It keeps its pages and its place; if others need the pages they are taken and
  // what was in them is computed again, to the same bits, after resume(). It takes no slot and is not starving, its
  // deadline runs on, and the engine sleeps when nothing else is left. Calls count in the order in which they were
  // made; the last one wins, and repeating one does nothing. A sink may pause its own request from on_events(): then
  // not even one more step is computed for it. drain() waits for paused requests like for others: whoever paused one
  // sees to it that it is resumed or cancelled. True as for cancel().
  bool pause(const std::string& id);
  bool resume(const std::string& id);

  // New submissions get kDraining. Returns when all requests are done or the time is over (false).
  bool drain(std::chrono::milliseconds timeout);

  const EngineConfig& config() const;  // with auto values resolved
  const ModelConfig& model_config() const;
  const std::vector<HeadReport>& heads() const;
  int64_t capacity_tokens() const;  // tokens that fit when no page is freed early
  const EngineStats& stats() const;
  std::shared_ptr<const EnginePicture> picture() const;
  // Called once, on the engine's thread, when the device is lost for this process, or ranks for good; requests have been
  // ended by then and new ones are refused. Set it before the first request.
  void on_device_lost(std::function<void(const std::string& what)> callback);
  // What happens to cached blocks, in order, on the engine's thread after each step; from the next step on. With stages,
  // those of the first one.
  void on_kv_events(std::function<void(std::vector<KvEvent>)> callback);
  // False when work exists, paused requests apart, but no step or message was finished for too long;
  // or the device is lost.
  bool healthy() const;
  // False while a lost rank is waited for. Requests are accepted and go on when it is back.
  bool ready() const;
  // Predicted seconds until a new prompt of this length would produce its first token.
  double predict_ttft_s(int64_t prompt_tokens) const;

  // KV snapshots in config().kv_dir, for prompts whose pages are in the prefix cache; the returned text says what was
  // saved or restored. The calling thread does the file's work and waits; the engine copies pages between its steps.
  SnapshotResult save_snapshot(const std::string& name, const std::vector<int32_t>& tokens,
                               const std::string& cache_salt);
  SnapshotResult restore_snapshot(const std::string& name);

  // A store that is asked before long prompts are computed; null: none. It outlives its use. Throws SnapshotError when the
  // engine has stopped.
  void use_prefix_store(PrefixStore* store);
  // The store has found what it could for this request. True as for cancel().
  bool release(const std::string& id);
  PrefixPages& prefix_pages();
  std::shared_ptr<PrefixStoreStats> prefix_store_stats();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bam
