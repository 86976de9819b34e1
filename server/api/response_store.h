#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/json.h"
#include "server/api/api_error.h"

namespace bam {

inline constexpr const char* kResponseIdPrefix = "resp_";

ApiError no_response(const std::string& id);

// A reply of /v1/responses that a client may ask for again, or go on from.
struct StoredResponse {
  std::string body;
  Json input;     // its items, for /input_items
  Json messages;  // the conversation up to and with the reply, in the form of chat
};

// The last ones, in memory: they are gone after a restart, and the least recently used ones go first. Any thread.
class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 1000;
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  void put(const std::string& tenant, const std::string& id, StoredResponse response);
  std::shared_ptr<const StoredResponse> find(const std::string& tenant, const std::string& id);
  bool erase(const std::string& tenant, const std::string& id);

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes;
  };
  void remove(std::list<Entry>::iterator entry);

  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_name_;
  size_t bytes_ = 0;
};

}  // namespace bam
