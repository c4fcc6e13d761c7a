// The engine loop: one thread that owns the scheduler and the runner. plan, run, commit; tells each request's sink.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "exec/runner.h"
#include "sched/request.h"
#include "sched/scheduler.h"

namespace ingot::serve {

struct EngineStats {
  int64_t running = 0;  // sequences in the batch
  int64_t waiting = 0;
  int64_t free_pages = 0;
  int64_t total_pages = 0;
  int64_t prompt_tokens = 0;  // counters since start
  int64_t completion_tokens = 0;
  int64_t finished_requests = 0;
  int64_t steps = 0;
};

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
    int64_t max_queued_requests = 1024;
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
  // Any thread; never waits for a step.
  EngineStats stats() const;
  // False after a device error, with the reason.
  bool healthy(std::string* reason = nullptr) const;
  // Refuses new requests, lets the running ones finish up to `timeout`, then cancels the rest.
  void drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::serve
