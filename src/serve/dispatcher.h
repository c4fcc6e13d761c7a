// The dispatcher: one door in front of N replicas of the engine. A request goes where the work in front of it and its own is least: tokens
// in flight there plus the tokens of its prompt that this replica has not seen lately. So a conversation stays with its prefix until that
// costs more than it saves. Load is counted from dispatch until the last event of the answer, by the dispatcher alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/engine.h"

namespace ingot::serve {

// Page keys that a replica has seen lately, least recently used forgotten first.
class SeenPrefixes {
 public:
  explicit SeenPrefixes(int64_t capacity) : capacity_(capacity) {}
  // How many leading pages of a prompt are known here.
  int64_t match(const std::vector<sched::PageKey>& keys) const;
  void add(const std::vector<sched::PageKey>& keys);
  void clear();

 private:
  int64_t capacity_;
  std::list<sched::PageKey> order_;  // front: the most recent
  std::unordered_map<sched::PageKey, std::list<sched::PageKey>::iterator> places_;
};

class Dispatcher {
 public:
  // Where a request went. `id` is the engine's own.
  struct Ticket {
    int replica = 0;
    sched::RequestId id = 0;
  };
  struct Load {
    int64_t requests = 0;
    int64_t tokens = 0;  // in flight
  };

  // At least one engine; `page_size` and `pages` of each replica's cache.
  Dispatcher(std::vector<std::unique_ptr<Engine>> engines, int64_t page_size, int64_t pages);

  // Any thread. Refused only when every replica refuses: then the reason of the one that should have had it.
  tl::expected<Ticket, Refusal> submit(sched::Request request);
  void cancel(const Ticket& ticket) { engines_[static_cast<size_t>(ticket.replica)]->cancel(ticket.id); }

  int num_replicas() const { return static_cast<int>(engines_.size()); }
  ReplicaState state(int replica) const { return engines_[static_cast<size_t>(replica)]->state(); }
  ReplicaState total() const;  // sums
  Load load(int replica) const;
  // False when a replica is dead or hangs, with the reason. The others go on.
  bool healthy(std::string* reason = nullptr) const;
  // Empties the prefix caches of all replicas, device and host tier. Refused while requests run or wait, with the reason; when one slips in
  // meanwhile some replicas may be flushed and others not, and the reason says so.
  Result<> flush_caches(std::chrono::milliseconds timeout);
  // Drains all at once. False when an engine is stuck.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Replica {
    explicit Replica(int64_t pages) : seen(pages) {}
    Load load;
    SeenPrefixes seen;
  };
  struct Books {
    std::mutex mutex;
    std::vector<Replica> replicas;
  };

  const int64_t page_size_;
  std::shared_ptr<Books> books_;  // sinks hold it, too
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace ingot::serve
