#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace bam {

class GenerationJob;

// Generations in progress, by reply id and by request id. Any thread.
class LiveJobs {
 public:
  // False when one of the names is taken.
  bool add(const std::string& id, const std::string& request_id, const std::shared_ptr<GenerationJob>& job);
  void remove(const std::string& id, const std::string& request_id);
  std::shared_ptr<GenerationJob> find(const std::string& name) const;
  std::vector<std::shared_ptr<GenerationJob>> all() const;
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<GenerationJob>> by_id_;
  std::unordered_map<std::string, std::string> id_of_request_;
};

}  // namespace bam
