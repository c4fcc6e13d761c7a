// The engine loop: one thread that owns one replica's scheduler and runner. plan, run, commit; tells each request's sink.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "exec/page_store.h"
#include "exec/runner.h"
#include "sched/request.h"
#include "sched/scheduler.h"
#include "serve/engine_events.h"

namespace ingot::serve {

// Why submit() refused. `message` is for the client.
struct Refusal {
  enum class Kind : uint8_t { too_long, queue_full, stopping, engine_failed };
  Kind kind;
  std::string message;
};

class Engine {
 public:
  struct Options {
    sched::SchedulerOptions scheduler;
    int64_t max_queued_requests = 1024;             // may wait beside those that run
    std::chrono::milliseconds queue_timeout{0};     // a request waits so long at the most for its first rows; 0: for ever
    std::chrono::milliseconds request_timeout{0};   // and is ended when it takes longer in all; 0: never
    std::chrono::milliseconds stall_limit{20'000};  // the engine thread is called unhealthy when a phase takes longer
    std::chrono::milliseconds cancel_grace{5'000};  // drain() waits so long for the cancelled ones, which takes two steps
    int replica = 0;                                // its number, for the observers and the log
    std::vector<EngineObserver*> observers;         // outlive the engine
    double forced_acceptance = 0;                   // told to the observers with each request; 0: none
    // Gets what the prefix cache does, batch by batch, on the engine thread; must be quick and must not throw. False: there was no room,
    // and the batch is lost. Then it is asked again and again, by an empty batch, whether there is room for a snapshot. Needs
    // scheduler.cache_events.
    std::function<bool(int replica, std::vector<sched::CacheEvent>& events)> cache_events;
    exec::PageStore* store = nullptr;  // the disk tier, shared by all replicas; outlives the engine. Needs scheduler.host_pages
  };
  // Starts the thread. The runner's model and cache must fit the scheduler's options.
  Engine(const Options& options, std::unique_ptr<exec::Runner> runner);
  ~Engine();  // cancels what runs and joins
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. The sink is then called on the engine thread until its last event; never after that.
  tl::expected<sched::RequestId, Refusal> submit(sched::Request request);
  // Any thread. The request's pages are free within two steps; its sink gets a last event with `cancelled`, unless it had ended.
  void cancel(sched::RequestId id);
  // Any thread; waits for the step that runs. Empties the prefix cache, device and host tier. Refused when a request runs or waits; an
  // engine thread that hangs is given up after `timeout`.
  Result<> flush_cache(std::chrono::milliseconds timeout);
  // Any thread; never waits for a step.
  ReplicaState state() const;
  // False after a device error, and while the engine thread hangs: says in which phase, and for how long. Never waits for a step.
  bool healthy(std::string* reason = nullptr) const;
  // Refuses new requests, lets the running ones finish up to `timeout`, then cancels the rest. False when the engine thread is stuck:
  // those who still run were not told.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::serve
