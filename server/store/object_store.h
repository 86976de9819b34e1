// A place for objects that replicas share: a folder, a Redis server, a bucket. What is in it may disappear at any time, and
// is not believed before it has been checked (kv_object.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace bam {

// The place cannot be reached, or did not answer in time.
class StoreError : public Error {
 public:
  using Error::Error;
};

// One thread at a time. All methods throw StoreError; a place behind a network does so at the deadline.
class ObjectStore {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  virtual ~ObjectStore() = default;

  virtual bool has(const std::string& key, Deadline deadline) = 0;
  // False: there is none. Of one with more than max_bytes there is one byte too many in `out`, and perhaps no more.
  virtual bool get(const std::string& key, size_t max_bytes, std::vector<std::byte>& out, Deadline deadline) = 0;
  // Readers see all of it or nothing.
  virtual void put(const std::string& key, std::span<const std::byte> object, Deadline deadline) = 0;
  virtual void remove(const std::string& key, Deadline deadline) = 0;
};

// "DIR" or "file:DIR": a folder (it is made if only itself is missing), kept below limit_bytes by removing what was used least recently.
// "redis:HOST[:PORT][/NAME]": keys that begin with NAME (bam); the password is in REDISCLI_AUTH. Redis keeps its own limit.
// "s3:BUCKET[/PREFIX]": AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL as
// for other programs. The bucket's lifecycle rules keep the limit.
// Throws UsageError for anything else; does not connect.
std::unique_ptr<ObjectStore> open_object_store(const std::string& place, uint64_t limit_bytes);

std::unique_ptr<ObjectStore> open_folder_store(const std::string& folder, uint64_t limit_bytes);
std::unique_ptr<ObjectStore> open_redis_store(const std::string& place);
std::unique_ptr<ObjectStore> open_s3_store(const std::string& place);

// Until the deadline, at least one.
int64_t milliseconds_left(ObjectStore::Deadline deadline);

}  // namespace bam
