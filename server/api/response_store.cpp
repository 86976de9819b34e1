#include "server/api/response_store.h"

#include <utility>

#include "server/api/live_jobs.h"

namespace bam {

void ResponseStore::put(const std::string& tenant, const std::string& id, StoredResponse response) {
  const std::string name = LiveJobs::engine_name(tenant, id);
  // A tree takes a few times the bytes of its text.
  const size_t bytes =
      response.body.size() + 4 * (response.input.dump().size() + response.messages.dump().size()) + 256;
  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (const auto known = by_name_.find(name); known != by_name_.end()) remove(known->second);
  if (bytes > kMaxBytes) return;
  entries_.push_front({name, std::move(shared), bytes});
  by_name_[name] = entries_.begin();
  bytes_ += bytes;
  while (entries_.size() > kMaxResponses || bytes_ > kMaxBytes) remove(std::prev(entries_.end()));
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto known = by_name_.find(LiveJobs::engine_name(tenant, id));
  if (known == by_name_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  return known->second->response;
}

bool ResponseStore::erase(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto known = by_name_.find(LiveJobs::engine_name(tenant, id));
  if (known == by_name_.end()) return false;
  remove(known->second);
  return true;
}

void ResponseStore::remove(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_name_.erase(entry->name);
  entries_.erase(entry);
}

}  // namespace bam
