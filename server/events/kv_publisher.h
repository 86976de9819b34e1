// KV events in vLLM's format over ZeroMQ, so that llm-d, Dynamo and other routers know which prompts are cached here.
//
//   PUB     [topic, number of the batch (8 bytes, big-endian), MessagePack]
//   ROUTER  a subscriber that missed some sends the first number it wants and gets [number, MessagePack] …, [-1, ""]
//
// MessagePack: [seconds, [event, …]] with events ["BlockStored", [hash], parent or nil, [token, …], block size, nil, "CPU"],
// ["BlockRemoved", [hash], "CPU"] and ["AllBlocksCleared"].
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/kv_events.h"

namespace bam {

struct KvEventsConfig {
  std::string endpoint;  // "tcp://*:5557"; one with a * is bound, another one connected to; empty: off
  std::string replay;    // "tcp://*:5558", bound; empty: no replay
  std::string topic;
};

class KvPublisher {
 public:
  // Throws Error if an endpoint cannot be had.
  KvPublisher(const KvEventsConfig& config, int block_size);
  ~KvPublisher();
  // From any thread; never waits.
  void publish(std::vector<KvEvent> events);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The MessagePack of one batch.
std::vector<uint8_t> encode_kv_events(double seconds, const std::vector<KvEvent>& events, int block_size);

}  // namespace bam
