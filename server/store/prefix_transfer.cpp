#include "server/store/prefix_transfer.h"

#include <algorithm>
#include <memory>

#include "base/log.h"

namespace bam {

namespace {

constexpr int64_t kTailProbes = 8;  // ends that are tried, from the longest prefix on
constexpr size_t kMaxHoles = 4096;
constexpr int64_t kTailsSaved = 2;  // prompts that go on differently near the end find one of them

}  // namespace

bool PrefixDoor::use(const std::function<void(PrefixPages&)>& work) {
  const std::shared_lock lock(mutex_);
  if (!pages_) return false;
  work(*pages_);
  return true;
}

void PrefixDoor::shut() {
  const std::unique_lock lock(mutex_);
  pages_ = nullptr;
}

void StoreHoles::add(const ObjectName& name) {
  const std::lock_guard lock(mutex_);
  if (names_.size() >= kMaxHoles) names_.clear();
  names_.insert(name);
}

bool StoreHoles::take(const ObjectName& name) {
  const std::lock_guard lock(mutex_);
  return names_.erase(name) > 0;
}

// Lets go of its nodes, if there is still somebody to give them back to.
class PrefixTransfer::PinnedChain {
 public:
  explicit PinnedChain(PrefixDoor& door) : door_(door) {}
  PinnedChain(const PinnedChain&) = delete;
  ~PinnedChain() {
    if (!chain_ || door_.use([&](PrefixPages&) { chain_.reset(); })) return;
    chain_->abandon();
  }
  PrefixPages::Chain& begin(PrefixPages& pages) {
    chain_ = std::make_unique<PrefixPages::Chain>(pages);
    return *chain_;
  }
  PrefixPages::Chain& get() { return *chain_; }

 private:
  PrefixDoor& door_;
  std::unique_ptr<PrefixPages::Chain> chain_;
};

PrefixTransfer::PrefixTransfer(PrefixDoor& door, PrefixPages& pages, Cut cut, StoreHoles& holes,
                               PrefixStoreStats& stats)
    : door_(door),
      geometry_(pages.geometry()),
      layout_(pages.layout()),
      identity_(pages.format().identity),
      cut_(cut),
      stretch_blocks_(std::max<int64_t>(1, cut.stretch_tokens / geometry_.page_size())),
      pages_per_part_(std::max<size_t>(1, cut.part_bytes / layout_.page_bytes())),
      holes_(holes),
      stats_(stats) {}

void PrefixTransfer::engine(const std::function<void(PrefixPages&)>& work) {
  if (!door_.use(work)) throw SnapshotError(SnapshotFault::kBusy, "the engine has stopped");
}

// The last token of a prompt is always computed.
int64_t PrefixTransfer::stretches_of(std::span<const int32_t> tokens) const {
  return (static_cast<int64_t>(tokens.size()) - 1) / (stretch_blocks_ * geometry_.page_size());
}

std::vector<PrefixTransfer::Part> PrefixTransfer::parts(const PrefixNames& names, ObjectKind kind,
                                                        int64_t index) const {
  std::vector<Place> pages;
  const int64_t end = (index + 1) * stretch_blocks_;
  for (int64_t block = kind == ObjectKind::kStretch ? end - stretch_blocks_ : 0; block < end; ++block) {
    for (int group = 0; group < geometry_.num_groups(); ++group) {
      const bool in_stretch = geometry_.unbounded(group);
      if (in_stretch != (kind == ObjectKind::kStretch)) continue;
      if (!in_stretch && block < geometry_.first_needed_block(group, end * geometry_.page_size())) continue;
      pages.push_back({block, group});
    }
  }
  // A stretch without pages is an object all the same: it says that the prefix is there.
  std::vector<Part> result;
  for (size_t first = 0; first < pages.size() || (first == 0 && kind == ObjectKind::kStretch);
       first += pages_per_part_) {
    const size_t last = std::min(first + pages_per_part_, pages.size());
    result.push_back(
        {names.name(kind, index, static_cast<int64_t>(result.size())),
         {pages.begin() + static_cast<std::ptrdiff_t>(first), pages.begin() + static_cast<std::ptrdiff_t>(last)}});
  }
  return result;
}

int64_t PrefixTransfer::stored_stretches(ObjectStore& store, const PrefixNames& names, int64_t count,
                                         const std::function<ObjectStore::Deadline()>& deadline) const {
  const auto stored = [&](int64_t index) {
    return store.has(to_hex(names.name(ObjectKind::kStretch, index, 0)), deadline());
  };
  if (count == 0 || !stored(0)) return 0;
  int64_t present = 0, missing = count;
  while (missing - present > 1) {
    // The whole prompt first: it is the commonest answer.
    const int64_t middle = present == 0 && missing == count ? count - 1 : present + (missing - present) / 2;
    (stored(middle) ? present : missing) = middle;
  }
  return present + 1;
}

bool PrefixTransfer::tail_stored(ObjectStore& store, const PrefixNames& names, int64_t end,
                                 ObjectStore::Deadline deadline) const {
  const std::vector<Part> tail = parts(names, ObjectKind::kTail, end - 1);
  return tail.empty() || store.has(to_hex(tail.front().name), deadline);
}

bool PrefixTransfer::take_hole(const std::vector<Part>& parts) {
  bool taken = false;
  for (const Part& part : parts) taken |= holes_.take(part.name);
  return taken;
}

bool PrefixTransfer::fetch(ObjectStore& store, const Part& part, PinnedChain& chain, ObjectStore::Deadline deadline) {
  if (std::chrono::steady_clock::now() >= deadline) throw StoreError("it did not answer in time");
  const size_t payload = part.pages.size() * layout_.page_bytes();
  const std::string key = to_hex(part.name);
  if (!store.get(key, kObjectHeaderBytes + payload, buffer_, deadline)) {
    holes_.add(part.name);
    return false;
  }
  stats_.read_bytes.fetch_add(buffer_.size(), std::memory_order_relaxed);
  const auto pages = open_object(part.name, payload, buffer_);
  if (!pages) {
    stats_.refused_objects.fetch_add(1, std::memory_order_relaxed);
    log::warn("--kv-store: object {} is refused: {}", key, pages.error().what());
    holes_.add(part.name);
    store.remove(key, deadline);
    return false;
  }
  if (!part.pages.empty()) engine([&](PrefixPages& cache) { cache.write(chain.get(), part.pages, *pages); });
  return true;
}

int64_t PrefixTransfer::restore(ObjectStore& store, std::span<const int32_t> tokens, const std::string& salt,
                                ObjectStore::Deadline deadline) {
  int64_t cached = 0;
  engine([&](PrefixPages& pages) { cached = pages.num_cached(salt, tokens); });
  const int64_t stretch_tokens = stretch_blocks_ * geometry_.page_size();
  const PrefixNames names({identity_, geometry_, layout_}, stretch_tokens, cut_.part_bytes, salt,
                          tokens.first(static_cast<size_t>(stretches_of(tokens) * stretch_tokens)));
  int64_t end = stored_stretches(store, names, names.num_stretches(), [&] { return deadline; });
  for (int64_t probes = kTailProbes; end > 0 && !tail_stored(store, names, end, deadline); --end) {
    if (--probes == 0) return 0;
  }
  if (end * stretch_tokens <= cached) return 0;

  std::vector<Part> wanted = parts(names, ObjectKind::kTail, end - 1);
  // The newest blocks first: as with computed pages, these are then evicted first.
  for (int64_t index = end; index-- > cached / stretch_tokens;) {
    std::vector<Part> stretch = parts(names, ObjectKind::kStretch, index);
    std::ranges::move(stretch, std::back_inserter(wanted));
  }
  std::vector<Place> places;
  for (const Part& part : wanted) places.insert(places.end(), part.pages.begin(), part.pages.end());
  PinnedChain chain(door_);
  engine([&](PrefixPages& pages) {
    pages.insert(salt, tokens.first(static_cast<size_t>(end * stretch_tokens)), places, chain.begin(pages));
  });
  for (const Part& part : wanted) {
    if (!fetch(store, part, chain, deadline)) return 0;
  }
  return end * stretch_tokens - cached;
}

void PrefixTransfer::write(ObjectStore& store, const Part& part, PinnedChain& chain, ObjectStore::Deadline deadline) {
  buffer_.resize(kObjectHeaderBytes + part.pages.size() * layout_.page_bytes());
  const auto payload = std::span(buffer_).subspan(kObjectHeaderBytes);
  if (!part.pages.empty()) engine([&](PrefixPages& pages) { pages.read(chain.get(), part.pages, payload); });
  seal_object(part.name, buffer_);
  store.put(to_hex(part.name), buffer_, deadline);
  stats_.written_bytes.fetch_add(buffer_.size(), std::memory_order_relaxed);
}

void PrefixTransfer::save(ObjectStore& store, std::span<const int32_t> tokens, const std::string& salt,
                          std::chrono::milliseconds patience) {
  const auto soon = [patience] { return std::chrono::steady_clock::now() + patience; };
  const int64_t stretch_tokens = stretch_blocks_ * geometry_.page_size();
  tokens = tokens.first(static_cast<size_t>(stretches_of(tokens) * stretch_tokens));
  PinnedChain chain(door_);
  std::vector<Place> present;  // in this order
  const auto before = [](const Place& a, const Place& b) {
    return a.block != b.block ? a.block < b.block : a.group < b.group;
  };
  engine([&](PrefixPages& pages) { present = pages.find(salt, tokens, chain.begin(pages)); });
  const int64_t count = chain.get().num_blocks() / stretch_blocks_;
  const PrefixNames names({identity_, geometry_, layout_}, stretch_tokens, cut_.part_bytes, salt,
                          tokens.first(static_cast<size_t>(count * stretch_tokens)));
  // The first part comes last: where it is, the others are.
  const auto write_all = [&](const std::vector<Part>& all) {
    for (size_t i = all.size(); i-- > 0;) write(store, all[i], chain, soon());
  };
  const int64_t stored = stored_stretches(store, names, count, soon);
  for (int64_t index = 0; index < count; ++index) {
    const std::vector<Part> stretch = parts(names, ObjectKind::kStretch, index);
    if (take_hole(stretch) || index >= stored) write_all(stretch);
  }
  for (int64_t end = count; end > std::max<int64_t>(0, count - kTailsSaved); --end) {
    const std::vector<Part> tail = parts(names, ObjectKind::kTail, end - 1);
    if (!take_hole(tail) && tail_stored(store, names, end, soon())) continue;
    const bool whole = std::ranges::all_of(tail, [&](const Part& part) {
      return std::ranges::all_of(part.pages,
                                 [&](const Place& p) { return std::ranges::binary_search(present, p, before); });
    });
    if (whole) write_all(tail);
  }
}

}  // namespace bam
