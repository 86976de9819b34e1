// Processes that find each other: the groups of `bam serve --stages` and `bam worker`.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace bam {

struct GroupOptions {
  // gloo or mpi, and with "+nccl" rows go from GPU to GPU: plugins, loaded now.
  std::string transport = "gloo";
  int rank = 0;  // mpi: the job knows
  int size = 1;
  std::string rendezvous;                    // gloo: see open_store()
  std::string address;                       // gloo: by which others reach this rank; empty: the machine's name
  std::chrono::milliseconds deadline{5000};  // silence after which a rank is lost
};

// Throws UsageError for options that make no sense, Error if the plugin or the rendezvous cannot be had.
std::unique_ptr<GroupSource> make_group_source(const GroupOptions& options);

}  // namespace bam
