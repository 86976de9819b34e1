#include "server/store/object_store.h"

#include <algorithm>

namespace bam {

std::unique_ptr<ObjectStore> open_object_store(const std::string& place, uint64_t limit_bytes) {
  if (place.starts_with("redis:")) return open_redis_store(place.substr(6));
  if (place.starts_with("s3:")) return open_s3_store(place.substr(3));
  return open_folder_store(place.starts_with("file:") ? place.substr(5) : place, limit_bytes);
}

int64_t milliseconds_left(ObjectStore::Deadline deadline) {
  using namespace std::chrono;
  return std::max<int64_t>(1, duration_cast<milliseconds>(deadline - steady_clock::now()).count());
}

}  // namespace bam
