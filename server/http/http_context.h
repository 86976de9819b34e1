#pragma once

#include "server/api/server_context.h"
#include "server/http/auth.h"
#include "server/http/connections.h"
#include "server/http/worker_pool.h"

namespace bam {

// What handlers share, and what only the HTTP side needs. Lives longer than the event loops.
struct HttpContext : ServerContext {
  explicit HttpContext(ServerConfig server_config)
      : ServerContext(std::move(server_config), pool),
        keys(config.api_keys, config.admin_key),
        connections(config, metrics) {}

  const KeyRing keys;
  ConnectionTable connections;
  WorkerPool pool;  // last: its threads end before anything above goes away
};

}  // namespace bam
