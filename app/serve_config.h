// Where the settings of `bam serve` come from: flag > environment > --config file > default.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "kernels/attention_options.h"
#include "server/api/server_config.h"
#include "server/events/kv_publisher.h"
#include "server/store/kv_store.h"

namespace bam {

// Layers on several ranks; see docs/cluster.md.
struct StageSettings {
  int64_t count = 1;
  int64_t rank = 1;                // of a worker; with mpi the job knows
  std::string layers;              // "4,4,4"; empty: by their cost
  std::string transport = "gloo";  // gloo, mpi, gloo+nccl, mpi+nccl
  std::string rendezvous;          // where ranks find each other; empty: this machine alone
  std::string address;             // by which others reach this rank
  double deadline_s = 5;
};

// How to load a checkpoint and run it; shared by serve, generate and inspect.
struct ModelSettings {
  std::string model = "demo";
  std::string device = "auto";          // auto, cpu, cuda
  std::string cuda_gemm = "own";        // own, cublas, cublas-tf32
  int threads = 0;                      // 0: all cores this process may use
  std::string dtype = "auto";           // auto: as in the checkpoint
  std::string math = "exact";           // exact, fast
  std::string attention_math = "auto";  // auto: int8 over int8 pages, f32 over others
  bool certified_attention = true;
  float attention_epsilon = AttentionOptions{}.epsilon;
  EngineConfig engine;
  StageSettings stages;
};

struct ServeConfig {
  ModelSettings model;
  ServerConfig server;
  KvEventsConfig kv_events;
  KvStoreConfig kv_store;
  std::string log_level = "info";
  std::string log_format = "text";
  // Every setting as text with where it came from, in the order of the table; secrets are masked.
  struct Resolved {
    std::string name, value, origin;
  };
  std::vector<Resolved> resolved;

  std::string resolved_json() const;
  std::string resolved_line() const;  // what differs from the defaults
};

// One setting: --name, BAM_NAME and the key "name" of the configuration file.
struct ServeOption {
  std::string name;     // as a flag without the dashes: "kv-dtype"
  std::string metavar;  // "f32|f16|int8|int4"
  std::string help;
  std::string fallback;  // the default as text: what `show` says of a fresh ServeConfig
  bool list = false;     // may be given several times
  bool secret = false;
  bool model = false;  // also a flag of generate and inspect
  bool stage = false;  // also a flag of worker
  // Reads one value, or the several of a list. Throws UsageError that begins with `origin`.
  using Apply = std::function<void(ServeConfig&, const std::vector<std::string>& values, const std::string& origin)>;
  using Show = std::function<std::string(const ServeConfig&)>;
  Apply apply;
  Show show;  // the setting as text that `apply` takes back

  std::string environment() const;  // "BAM_KV_DTYPE"
};

const std::vector<ServeOption>& serve_options();

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();
// One line for each BAM_… variable of `environment` (as in environ) that looks like a mistyped setting. Others may well
// belong to somebody else: Kubernetes makes BAM_SERVICE_HOST for a service called bam.
std::vector<std::string> misspelt_variables(const char* const* environment);

// The flags that were given: name -> its values.
using GivenFlags = std::map<std::string, std::vector<std::string>>;

// `config_file`: text of the file, if any, and its name for messages. An empty environment variable counts as not set:
// compose files and unit files cannot leave one out.
ServeConfig resolve_serve_config(const GivenFlags& flags, const Environment& environment,
                                 const std::optional<std::string>& config_file, const std::string& config_name);

}  // namespace bam
