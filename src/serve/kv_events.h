// What the prefix caches do, published over ZeroMQ for routers that know which worker has which prefix (llm-d, Dynamo and others), in the
// wire format of vLLM: docs/kv_events.md. One publisher a server; a batch names its replica by data-parallel rank. Engine threads hand
// batches in and never wait; a thread of its own encodes, sends, keeps the last ones and replays them to who missed some.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/cache_event.h"

namespace ingot::serve {

// As vLLM's --kv-events-config has it.
struct KvEventsConfig {
  bool enabled = false;
  // Of the PUB socket. With `*` or `::` in it, or ipc://: bound; else connected, to a subscriber that is bound.
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;       // of the ROUTER socket; empty: no replay
  int64_t buffer_steps = 10'000;     // batches that are kept for replay
  int64_t hwm = 100'000;             // messages that may wait for one subscriber; more are lost to it, which its replay heals
  int64_t max_queue_size = 100'000;  // events that may wait for the publisher's thread
  std::string topic;                 // empty: kv@<host name>@<model>
};

// Parses the flag's JSON; an empty text: not enabled. Errors name the field, what it was and what would be right.
Result<KvEventsConfig> parse_kv_events_config(std::string_view json);

// The third frame: msgpack of [timestamp, events, rank]. Neighbours of one kind and tier become one event: pages that follow one another
// are told as a run. `timestamp`: seconds since 1970.
std::string encode_kv_events(double timestamp, std::span<const sched::CacheEvent> events, int64_t page_size, int rank);

class KvEventPublisher {
 public:
  // Binds or connects both sockets. `model`: the served name. Errors: the endpoint and the system's reason.
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsConfig& config, std::string_view model, int64_t page_size);
  ~KvEventPublisher();  // sends what was pushed before
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // Any thread; never waits. Takes the events, which become one message; false, and nothing is taken, when too many wait already. An empty
  // batch asks only. One batch may be longer than the limit: a snapshot has all pages.
  bool push(int rank, std::vector<sched::CacheEvent>& events);

  const std::string& endpoint() const;         // as bound, with its port
  const std::string& replay_endpoint() const;  // may be empty
  const std::string& topic() const;

 private:
  struct Impl;
  explicit KvEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::serve
