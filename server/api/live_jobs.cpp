#include "server/api/live_jobs.h"

namespace bam {

bool LiveJobs::add(const std::string& tenant, const std::string& id, const std::string& request_id,
                   const std::shared_ptr<LiveJob>& job) {
  const std::string name = engine_name(tenant, id), alias = engine_name(tenant, request_id);
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(name) || id_of_request_.contains(alias)) return false;
  by_id_.emplace(name, job);
  id_of_request_.emplace(alias, name);
  return true;
}

void LiveJobs::remove(const std::string& tenant, const std::string& id, const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  by_id_.erase(engine_name(tenant, id));
  id_of_request_.erase(engine_name(tenant, request_id));
}

std::shared_ptr<LiveJob> LiveJobs::find(const std::string& tenant, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return find_named(engine_name(tenant, name));
}

std::shared_ptr<LiveJob> LiveJobs::find_any(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (auto job = find_named(name)) return job;
  for (const auto& [id, job] : by_id_) {
    if (shown_name(id) == name) return job.lock();
  }
  for (const auto& [alias, id] : id_of_request_) {
    if (shown_name(alias) == name) return find_named(id);
  }
  return nullptr;
}

std::shared_ptr<LiveJob> LiveJobs::find_named(const std::string& name) const {
  const auto alias = id_of_request_.find(name);
  const auto it = by_id_.find(alias == id_of_request_.end() ? name : alias->second);
  return it == by_id_.end() ? nullptr : it->second.lock();
}

std::vector<std::shared_ptr<LiveJob>> LiveJobs::all() const {
  std::vector<std::shared_ptr<LiveJob>> jobs;
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
