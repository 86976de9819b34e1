// Run by mpirun: messages of many sizes go round all ranks and come back whole; then rank 0 leaves and all others hear of it.
#include <cstdio>
#include <cstdlib>

#include "transport/group.h"

using namespace bam;
using std::chrono::milliseconds;

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "mpi_ring: %s\n", what);
  std::_Exit(1);
}

}  // namespace

int main() try {
  GroupOptions options;
  options.transport = "mpi";
  options.deadline = milliseconds(20000);
  const auto source = make_group_source(options);
  uint64_t epoch = 0;
  auto transport = source->form(milliseconds(60000), epoch);
  require(transport != nullptr && epoch == 1, "no group");
  const int rank = transport->rank(), size = transport->size(), next = (rank + 1) % size,
            before = (rank + size - 1) % size;
  require(size > 1, "start it with mpirun -np 2 or more");
  std::vector<std::byte> message;
  for (const size_t bytes : {0, 1, 496, 497, 100'000, 3'000'000}) {
    std::vector<std::byte> sent(bytes);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i * 13 + (i >> 9));
    if (rank == 0) transport->send(next, Channel::kActivations, sent);
    require(transport->receive(before, Channel::kActivations, message, milliseconds(60000)), "nothing came");
    require(message == sent, "it came back changed");
    if (rank != 0) transport->send(next, Channel::kActivations, message);
  }
  if (rank == 0) {
    // Everybody has the last message before the first one leaves.
    for (int r = 1; r < size; ++r)
      require(transport->receive(r, Channel::kDone, message, milliseconds(60000)), "no word");
    transport.reset();
    require(source->form(milliseconds(100), epoch) == nullptr, "a second group of one MPI job");
    return 0;
  }
  transport->send(0, Channel::kDone, {});
  try {
    while (true) transport->receive(0, Channel::kPlan, message, milliseconds(60000));
  } catch (const PeerLost& lost) {
    require(lost.rank() == 0, lost.what());
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "mpi_ring: %s\n", e.what());
  return 1;
}
