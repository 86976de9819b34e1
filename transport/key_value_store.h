// Where ranks leave notes for each other before they are connected.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"

namespace bam {

// It may be there again later.
class StoreUnreachable : public Error {
 public:
  using Error::Error;
};

// Values are written whole or not at all. All methods may be called from any thread and throw StoreUnreachable.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  virtual void remove_all(const std::string& prefix) = 0;
};

// "file:DIR": a folder that all ranks share (it is made if it is missing); "redis:HOST[:PORT][/NAME]": keys that begin
// with NAME (bam) in a Redis server. Throws UsageError for anything else, StoreUnreachable if it is not there now.
std::unique_ptr<KeyValueStore> open_store(const std::string& rendezvous);

}  // namespace bam
