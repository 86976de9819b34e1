#pragma once

#include <chrono>
#include <memory>

#include "transport/transport.h"
#include "transport/wire.h"

namespace bam {

// Messages over a wire: a thread per peer takes them in, one more says that this rank is alive and, when somebody is lost,
// tells the others who it was.
std::unique_ptr<Transport> make_wire_transport(std::unique_ptr<Wire> wire, std::chrono::milliseconds deadline);

}  // namespace bam
