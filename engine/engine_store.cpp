// Requests that wait for a store of prefixes.
#include "engine/engine_core.h"

namespace bam {

void EngineCore::use_store(PrefixStore* store) {
  store_ = store;
  if (store_) return;
  for (const auto& [id, r] : book_.live()) {
    if (r->held_until) let_go(*r);
  }
}

// After it was inserted; throws nothing.
void EngineCore::hold(ActiveRequest& r) {
  Sequence& first = *r.choices.front();
  if (!config_.prefix_cache || first.wants_prompt_logits()) return;
  int64_t cached = 0;
  try {
    cached = kv_.page_size() * static_cast<int64_t>(kv_.cached_chains(r.request.cache_salt, first.tokens)[0].size());
  } catch (const std::exception&) {  // no memory: it is not the time for this
    return;
  }
  if (!store_->look_up(r.request, cached)) return;
  r.held_until = time_.now() + store_->patience();
  scheduler_.pause(first);
}

void EngineCore::let_go(ActiveRequest& r) {
  r.held_until.reset();
  if (r.paused) return;
  for (const auto& c : r.choices) scheduler_.resume(*c);
}

void EngineCore::release(const std::string& id) {
  ActiveRequest* r = book_.find(id);
  if (r && r->held_until) let_go(*r);
}

}  // namespace bam
