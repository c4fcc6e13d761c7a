// The engine thread owns scheduler and runner. Other threads reach it by one mutex that is held for moments, never during a step: they put
// requests and cancels in, and read what the thread published after its last step.
#include "serve/engine.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace ingot::serve {

using sched::BatchPlan;
using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using sched::Scheduler;
using sched::TokenEvent;

struct Engine::Impl {
  Impl(const Options& wanted, std::unique_ptr<exec::Runner> used)
      : options(wanted), runner(std::move(used)), scheduler(wanted.scheduler), published(snapshot()), thread([this] { main(); }) {}

  // -- any thread -------------------------------------------------------------------------------------------------------------------------

  tl::expected<RequestId, Refusal> submit(Request request) {
    const auto checked = Scheduler::admissible(request, options.scheduler);
    if (!checked) return tl::unexpected(Refusal{Refusal::Kind::too_long, checked.error().text()});
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return tl::unexpected(Refusal{Refusal::Kind::engine_failed, "the engine has failed: " + failure});
    if (stopping) return tl::unexpected(Refusal{Refusal::Kind::stopping, "the server is shutting down"});
    const int64_t waiting = published.waiting + static_cast<int64_t>(inbox.size());
    if (waiting >= options.max_queued_requests) {
      return tl::unexpected(Refusal{Refusal::Kind::queue_full, fmt::format("{} requests wait already, which is the limit", waiting)});
    }
    const RequestId id = request.id = next_id++;
    inbox.push_back(std::move(request));
    ++num_in_house;
    wake.notify_one();
    return id;
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex);
    cancels.push_back(id);
    wake.notify_one();
  }

  void drain(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    stopping = true;
    if (emptied.wait_for(lock, timeout, [&] { return num_in_house == 0; })) return;
    cancel_all = true;
    wake.notify_one();
    emptied.wait(lock, [&] { return num_in_house == 0; });
  }

  void shut_down() {
    {
      const std::lock_guard lock(mutex);
      stopping = cancel_all = quit = true;
      wake.notify_one();
    }
    thread.join();
  }

  // -- the engine thread ------------------------------------------------------------------------------------------------------------------

  void main() {
    bool has_work = false;
    while (true) {
      std::vector<Request> arrived;
      std::vector<RequestId> cancelled;
      bool cancels_all = false;
      bool quits = false;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return has_work || cancel_all || quit || !inbox.empty() || !cancels.empty(); });
        arrived.swap(inbox);
        cancelled.swap(cancels);
        cancels_all = std::exchange(cancel_all, false);
        quits = quit;
        published.waiting += static_cast<int64_t>(arrived.size());  // no moment in which they are counted nowhere
      }
      for (Request& request : arrived) take_in(std::move(request));
      for (const RequestId id : cancelled) scheduler.cancel(id);
      if (cancels_all) {
        for (const RequestId id : std::vector<RequestId>(live.begin(), live.end())) scheduler.cancel(id);
      }
      if (!scheduler.idle()) step();
      has_work = !scheduler.idle();
      publish();
      if (quits && !has_work) return;
    }
  }

  // The request's sink is wrapped: what it throws stays here, and its last event counts it out.
  void take_in(Request request) {
    const RequestId id = request.id;
    request.sink = [this, id, sink = std::move(request.sink)](TokenEvent event) {
      const bool is_last = event.finish != FinishReason::none;
      if (is_last) {
        live.erase(id);
        ++num_left;
        publish_counts();
      }
      try {
        if (sink) sink(std::move(event));
      } catch (const std::exception& error) {
        sink_failed(id, error.what(), is_last);
      } catch (...) {
        sink_failed(id, "an exception of unknown type", is_last);
      }
    };
    live.insert(id);
    scheduler.submit(std::move(request));
  }

  void sink_failed(RequestId id, const char* what, bool is_last) {
    log_error("request {}: its event sink threw: {}", id, what);
    if (!is_last) cancel(id);
  }

  void step() {
    const BatchPlan plan = scheduler.plan();
    ++num_steps;
    auto result = run(plan);
    if (result) {
      scheduler.commit(plan, *result);
    } else {
      fail_all(result.error().text());
    }
  }

  Result<sched::BatchResult> run(const BatchPlan& plan) {
    try {
      return runner->run(plan);
    } catch (const std::exception& error) {
      return fail("the runner threw: {}", error.what());
    } catch (...) {
      return fail("the runner threw an exception of unknown type");
    }
  }

  void fail_all(const std::string& reason) {
    log_error("engine failed: {}", reason);
    std::vector<Request> arrived;
    {
      // From here on submit() refuses, so nobody can slip in behind those told now.
      const std::lock_guard lock(mutex);
      failure = reason;
      arrived.swap(inbox);
    }
    for (Request& request : arrived) take_in(std::move(request));
    scheduler.fail_all(reason);
  }

  EngineStats snapshot() const {
    const sched::SchedulerStats counts = scheduler.stats();
    EngineStats stats;
    stats.running = counts.running;
    stats.waiting = counts.waiting;
    stats.free_pages = counts.free_pages;
    stats.total_pages = options.scheduler.num_pages;
    stats.prompt_tokens = counts.prompt_tokens;
    stats.completion_tokens = counts.completion_tokens;
    stats.finished_requests = counts.finished_requests;
    stats.steps = num_steps;
    return stats;
  }

  // After a step: its figures, and those who left are no longer in the house. drain() returns only after their last sink call.
  void publish() {
    const EngineStats stats = snapshot();
    const std::lock_guard lock(mutex);
    published = stats;
    num_in_house -= std::exchange(num_left, 0);
    if (num_in_house == 0) emptied.notify_all();
  }

  // Before a last event goes out, so that a client that has it finds it in the figures. The lists of the scheduler still hold the
  // sequence at this moment; they are right after the step.
  void publish_counts() {
    const sched::SchedulerStats counts = scheduler.stats();
    const std::lock_guard lock(mutex);
    published.free_pages = counts.free_pages;
    published.prompt_tokens = counts.prompt_tokens;
    published.completion_tokens = counts.completion_tokens;
    published.finished_requests = counts.finished_requests;
    published.steps = num_steps;
  }

  const Options options;

  // Of the engine thread alone.
  std::unique_ptr<exec::Runner> runner;
  Scheduler scheduler;
  std::set<RequestId> live;  // by arrival
  int64_t num_left = 0;      // ended since the last publish()
  int64_t num_steps = 0;

  // Under the mutex.
  mutable std::mutex mutex;
  std::condition_variable wake;     // the engine thread waits for work
  std::condition_variable emptied;  // drain() waits for num_in_house == 0
  std::vector<Request> inbox;
  std::vector<RequestId> cancels;
  RequestId next_id = 1;
  int64_t num_in_house = 0;  // accepted and not yet told the end
  bool stopping = false;
  bool cancel_all = false;
  bool quit = false;
  std::string failure;
  EngineStats published;

  std::thread thread;  // last: starts when all else is there
};

Engine::Engine(const Options& options, std::unique_ptr<exec::Runner> runner) {
  INGOT_CHECK(runner != nullptr && options.max_queued_requests > 0);
  impl_ = std::make_unique<Impl>(options, std::move(runner));
}

Engine::~Engine() { impl_->shut_down(); }

tl::expected<RequestId, Refusal> Engine::submit(Request request) { return impl_->submit(std::move(request)); }

void Engine::cancel(RequestId id) { impl_->cancel(id); }

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->published;
  stats.waiting += static_cast<int64_t>(impl_->inbox.size());
  return stats;
}

bool Engine::healthy(std::string* reason) const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->failure.empty()) return true;
  if (reason != nullptr) *reason = impl_->failure;
  return false;
}

void Engine::drain(std::chrono::milliseconds timeout) { impl_->drain(timeout); }

}  // namespace ingot::serve
