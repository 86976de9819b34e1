#include "server/api/live_jobs.h"

namespace bam {

bool LiveJobs::add(const std::string& id, const std::string& request_id, const std::shared_ptr<GenerationJob>& job) {
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(id) || id_of_request_.contains(request_id)) return false;
  by_id_.emplace(id, job);
  id_of_request_.emplace(request_id, id);
  return true;
}

void LiveJobs::remove(const std::string& id, const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  by_id_.erase(id);
  id_of_request_.erase(request_id);
}

std::shared_ptr<GenerationJob> LiveJobs::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto alias = id_of_request_.find(name);
  const auto it = by_id_.find(alias == id_of_request_.end() ? name : alias->second);
  return it == by_id_.end() ? nullptr : it->second.lock();
}

std::vector<std::shared_ptr<GenerationJob>> LiveJobs::all() const {
  std::vector<std::shared_ptr<GenerationJob>> jobs;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, job] : by_id_) {
    if (auto strong = job.lock()) jobs.push_back(std::move(strong));
  }
  return jobs;
}

size_t LiveJobs::size() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size();
}

}  // namespace bam
