// Who is served first. The scheduler goes by it and the forecast of the queue imitates it.
#pragma once

#include <cstdint>

namespace bam {

struct ServingRank {
  uint64_t arrival = 0;  // order of submission; choices of one request share it
  int32_t choice = 0;
  int32_t priority = 0;   // lower is earlier
  bool promoted = false;  // waited so long that it goes before every class
};

inline bool served_before(const ServingRank& a, const ServingRank& b) {
  if (a.promoted != b.promoted) return a.promoted;
  if (!a.promoted && a.priority != b.priority) return a.priority < b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.choice < b.choice;
}

inline bool same_class(const ServingRank& a, const ServingRank& b) {
  return a.promoted == b.promoted && (a.promoted || a.priority == b.priority);
}

}  // namespace bam
