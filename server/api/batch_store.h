#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/batch_runner.h"

namespace bam {

// Files and batches of OpenAI's batch API, in a folder, so that both survive a restart:
//
//   files/ID.json, ID.jsonl     what a client sent, or what a batch has made
//   batches/ID.json             the batch as clients see it
//   batches/ID.out, ID.err      results so far; they become files when the batch is done
//
// One batch runs at a time, in the order of their creation. All methods but start() and stop(): any thread.
class BatchStore {
 public:
  static constexpr size_t kMaxFiles = 10'000;
  static constexpr size_t kMaxBatches = 10'000;

  // Creates the folders. Throws Error when it cannot be used.
  explicit BatchStore(std::filesystem::path folder);
  ~BatchStore();

  // Goes on with what is not finished; the model is loaded.
  void start(ServerContext& context);
  // Lines that run may end; no more are begun.
  void stop_taking();
  // Returns when nothing runs any more. What was cut off is done again after the next start.
  void stop();

  ApiResult<Json> add_file(const std::string& tenant, const std::string& name, const std::string& purpose,
                           std::string_view content);
  // Newest first; of one purpose, unless it is empty.
  std::vector<Json> files(const std::string& tenant, const std::string& purpose) const;
  std::optional<Json> file(const std::string& tenant, const std::string& id) const;
  std::optional<std::string> file_content(const std::string& tenant, const std::string& id) const;
  bool delete_file(const std::string& tenant, const std::string& id);

  ApiResult<Json> add_batch(const Caller& caller, const Json& body);
  std::vector<Json> batches(const std::string& tenant) const;
  std::optional<Json> batch(const std::string& tenant, const std::string& id) const;
  std::optional<Json> cancel(const std::string& tenant, const std::string& id);

 private:
  struct Entry {
    std::string tenant;
    Json json;  // as clients see it
  };
  using Entries = std::map<std::string, Entry>;  // by id: ids are in the order of creation

  std::filesystem::path path(const char* kind, const std::string& id, const char* suffix) const {
    return folder_ / kind / (id + suffix);
  }
  void load(const char* kind, Entries& entries);
  void save(const char* kind, const std::string& id, const Entry& entry) const;
  std::string new_id(const char* prefix);
  std::optional<Json> find(const Entries& entries, const std::string& tenant, const std::string& id) const;
  std::vector<Json> list(const Entries& entries, const std::string& tenant) const;
  // Entries of a batch whose time is over, for the lines that have no result.
  size_t write_expired(const Entry& batch, const std::unordered_set<std::string>& known, std::ostream& errors) const;
  void fail(const std::string& id, const char* why);
  std::string add_result_file(const Entry& batch, const std::filesystem::path& results, const char* kind);
  void work();
  std::optional<std::string> next_batch();
  void run_batch(const std::string& id);

  const std::filesystem::path folder_;
  ServerContext* context_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Entries files_, batches_;
  uint64_t last_id_ = 0;
  std::string running_;
  BatchRunner* runner_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace bam
