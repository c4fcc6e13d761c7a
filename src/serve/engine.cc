// The engine thread owns scheduler and runner. Other threads reach it by one mutex that is held for moments, never during a step: they put
// requests and cancels in, and read what the thread published after its last step.
#include "serve/engine.h"

#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "serve/heartbeat.h"

namespace ingot::serve {

using sched::BatchPlan;
using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using sched::Scheduler;
using sched::TokenEvent;

namespace {
// An idle engine looks up this often, or four times within the stall limit, so that its heart is heard.
constexpr std::chrono::milliseconds kIdleBeat{200};
}  // namespace

struct Engine::Impl {
  Impl(const Options& wanted, std::unique_ptr<exec::Runner> used)
      : options(wanted),
        runner(std::move(used)),
        scheduler(wanted.scheduler),
        heart(wanted.replica, wanted.stall_limit),
        published(snapshot()),
        thread([this] { main(); }) {}

  // -- any thread -------------------------------------------------------------------------------------------------------------------------

  tl::expected<RequestId, Refusal> submit(Request request) {
    const auto checked = Scheduler::admissible(request, options.scheduler);
    if (!checked) return tl::unexpected(Refusal{Refusal::Kind::too_long, checked.error().text()});
    request.submitted_ns = clock.now_ns();
    const auto deadline = [&](std::chrono::nanoseconds after) { return after.count() == 0 ? 0 : request.submitted_ns + after.count(); };
    request.queue_deadline_ns = deadline(options.queue_timeout);
    request.deadline_ns = deadline(options.request_timeout);
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return tl::unexpected(Refusal{Refusal::Kind::engine_failed, "the engine has failed: " + failure});
    if (stopping) return tl::unexpected(Refusal{Refusal::Kind::stopping, "the server is shutting down"});
    const int64_t waiting = waiting_now();
    if (waiting >= options.max_queued_requests) {
      return tl::unexpected(Refusal{Refusal::Kind::queue_full, fmt::format("{} requests wait already, which is the limit", waiting)});
    }
    const RequestId id = request.id = next_id++;
    inbox.push_back(std::move(request));
    ++num_in_house;
    wake.notify_one();
    return id;
  }

  // Those who wait, after those who came since the last plan have taken the places that are free in the batch.
  int64_t waiting_now() const {
    const auto arrived = static_cast<int64_t>(inbox.size()) + num_taken_in;
    const int64_t places = published.waiting > 0 ? 0 : std::max<int64_t>(options.scheduler.max_running_requests - published.running, 0);
    return published.waiting + std::max<int64_t>(arrived - places, 0);
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex);
    cancels.push_back(id);
    wake.notify_one();
  }

  Result<> flush_cache(std::chrono::milliseconds timeout) {
    std::promise<Result<>> flush;
    auto done = flush.get_future();
    {
      const std::lock_guard lock(mutex);
      if (quit) return fail("the server is shutting down");
      flushes.push_back(std::move(flush));
      wake.notify_one();
    }
    if (done.wait_for(timeout) != std::future_status::ready)
      return fail("engine {} did not come to it within {} ms", options.replica, timeout.count());
    return done.get();
  }

  ReplicaState state() const {
    const std::lock_guard lock(mutex);
    ReplicaState state = published;
    state.waiting += static_cast<int64_t>(inbox.size()) + num_taken_in;
    return state;
  }

  bool drain(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    stopping = true;
    if (emptied.wait_for(lock, timeout, [&] { return num_in_house == 0; })) return true;
    cancel_all = true;
    wake.notify_one();
    return emptied.wait_for(lock, options.cancel_grace, [&] { return num_in_house == 0; });
  }

  void shut_down() {
    {
      const std::lock_guard lock(mutex);
      stopping = cancel_all = quit = true;
      wake.notify_one();
    }
    thread.join();
    // A fetch calls back on the store's thread, into this object.
    std::unique_lock lock(mutex);
    fetched_all.wait(lock, [&] { return num_fetching == 0; });
  }

  // -- the engine thread ------------------------------------------------------------------------------------------------------------------

  void main() {
    while (true) {
      std::vector<Request> arrived;
      std::vector<RequestId> cancelled;
      std::vector<RequestId> back;
      std::vector<std::promise<Result<>>> asked_flushes;
      bool cancels_all = false;
      bool quits = false;
      heart.beat(Heartbeat::Phase::idle, num_steps);
      {
        std::unique_lock lock(mutex);
        const auto wanted = [&] {
          return scheduler.has_work() || cancel_all || quit || !inbox.empty() || !cancels.empty() || !fetched.empty() || !flushes.empty();
        };
        while (!wake.wait_for(lock, std::min(kIdleBeat, options.stall_limit / 4), wanted)) {
          heart.beat(Heartbeat::Phase::idle, num_steps);
          if (mirrors_missed) break;
        }
        asked_flushes.swap(flushes);
        arrived.swap(inbox);
        cancelled.swap(cancels);
        back.swap(fetched);
        cancels_all = std::exchange(cancel_all, false);
        quits = quit;
        num_taken_in = static_cast<int64_t>(arrived.size());  // no moment in which they are counted nowhere
      }
      heart.beat(Heartbeat::Phase::intake, num_steps, static_cast<int64_t>(arrived.size()));
      for (Request& request : arrived) take_in(std::move(request));
      for (const RequestId id : back) enter_fetched(id);
      for (const RequestId id : cancelled) cancel_now(id);
      if (cancels_all) {
        std::vector<RequestId> all;
        for (const auto& [id, record] : live) all.push_back(id);
        for (const RequestId id : all) cancel_now(id);
      }
      if (!asked_flushes.empty()) {
        const Result<> flushed = flush_now();
        publish();  // who has the answer finds it in the figures
        for (auto& flush : asked_flushes) flush.set_value(flushed);
      }
      if (scheduler.has_work()) step();
      tell_mirrors();
      publish();
      if (quits && scheduler.idle() && fetching.empty()) return;
    }
  }

  // The request's sink is wrapped: the observers hear of it, what it throws stays here, and its last event counts it out.
  void take_in(Request request) {
    const RequestId id = request.id;
    RequestRecord record;
    record.id = id;
    record.name = request.name;
    record.replica = options.replica;
    record.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    record.max_tokens = request.sampling.max_tokens;
    record.priority = request.priority;
    record.submitted_ns = request.submitted_ns;
    record.forced_acceptance = options.forced_acceptance;
    live.emplace(id, std::move(record));
    request.sink = [this, id, sink = std::move(request.sink)](TokenEvent event) {
      const bool is_last = event.finish != FinishReason::none;
      event.replica = options.replica;
      note(id, event);
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
    if (options.store == nullptr || !fetch(request)) scheduler.submit(std::move(request));
  }

  void sink_failed(RequestId id, const char* what, bool is_last) {
    log_error("request {}: its event sink threw: {}", id, what);
    if (!is_last) cancel(id);
  }

  void note(RequestId id, const TokenEvent& event) {
    RequestRecord& record = live.at(id);
    const int64_t now = clock.now_ns();
    const auto count = static_cast<int64_t>(event.token_ids.size());
    record.cached_tokens = event.cached_tokens;
    record.scheduled_ns = event.scheduled_ns;
    record.preemptions = event.num_preempted;
    record.speculation.add(count, event.num_drafted, event.num_accepted);
    if (count > 0) {
      if (record.first_token_ns == 0) {
        record.first_token_ns = now;
        for (auto* o : options.observers) o->on_first_token(options.replica, static_cast<double>(now - record.submitted_ns) * 1e-9);
      } else {
        for (auto* o : options.observers) o->on_tokens(options.replica, static_cast<double>(now - record.last_token_ns) * 1e-9, count);
      }
      record.last_token_ns = now;
      record.completion_tokens += count;
    }
    if (event.finish == FinishReason::none) return;
    record.finish = event.finish;
    record.error = event.error;
    record.finished_ns = now;
    for (auto* o : options.observers) o->on_finished(record);
  }

  // The disk tier may have what follows on the pages that the scheduler has: the request waits for it outside. False when there is nothing.
  bool fetch(Request& request) {
    if (request.sampling.prompt_logprobs >= 0) return false;  // each of its rows is computed
    const int64_t page_size = options.scheduler.page_size;
    std::vector<sched::PageKey> keys = sched::page_keys(request.prompt, page_size);
    const int64_t limit = (static_cast<int64_t>(request.prompt.size()) - 1) / page_size;  // the last token is always computed
    const int64_t have = scheduler.cached_pages(request.prompt, keys, limit);
    if (have >= limit || !options.store->contains(keys[static_cast<size_t>(have)])) return false;
    keys.resize(static_cast<size_t>(std::min(limit, options.scheduler.host_pages)));
    if (static_cast<int64_t>(keys.size()) <= have) return false;
    const auto tokens =
        std::span<const int32_t>(request.prompt)
            .subspan(static_cast<size_t>(have * page_size), (keys.size() - static_cast<size_t>(have)) * static_cast<size_t>(page_size));
    keys.erase(keys.begin(), keys.begin() + have);
    const RequestId id = request.id;
    std::vector<int32_t> wanted(tokens.begin(), tokens.end());
    fetching.emplace(id, std::move(request));
    {
      const std::lock_guard lock(mutex);
      ++num_fetching;
    }
    options.store->fetch(std::move(keys), std::move(wanted), [this, id, have](std::vector<sched::HostPage> pages) {
      const std::lock_guard lock(mutex);
      auto& list = fetched_pages[id];
      for (size_t i = 0; i < pages.size(); ++i) list.push_back({have + static_cast<int64_t>(i), std::move(pages[i])});
      fetched.push_back(id);
      wake.notify_one();
      if (--num_fetching == 0) fetched_all.notify_all();
    });
    return true;
  }

  void enter_fetched(RequestId id) {
    std::vector<sched::FetchedPage> pages;
    {
      const std::lock_guard lock(mutex);
      pages = std::move(fetched_pages.extract(id).mapped());
    }
    auto node = fetching.extract(id);
    if (node.empty()) return;  // cancelled in the meantime
    Request request = std::move(node.mapped());
    request.fetched = std::move(pages);
    scheduler.submit(std::move(request));
  }

  void end_fetching(RequestId id, FinishReason finish, const std::string& error) {
    auto node = fetching.extract(id);
    ++num_ended_outside;
    TokenEvent event;
    event.finish = finish;
    event.error = error;
    node.mapped().sink(std::move(event));
  }

  void cancel_now(RequestId id) {
    if (fetching.contains(id)) return end_fetching(id, FinishReason::cancelled, {});
    scheduler.cancel(id);
  }

  Result<> flush_now() {
    const sched::SchedulerStats counts = scheduler.stats();
    const int64_t waiting = counts.waiting + static_cast<int64_t>(fetching.size());
    if (counts.running + waiting > 0) return fail("{} requests run and {} wait on replica {}", counts.running, waiting, options.replica);
    scheduler.flush_cache();
    log_info("replica {}: prefix cache flushed", options.replica);
    return {};
  }

  // A mirror that missed something is rebuilt as soon as there is room: what happened meanwhile is in the snapshot.
  void tell_mirrors() {
    if (!options.cache_events) return;
    cache_events.clear();
    scheduler.take_cache_events(cache_events);
    if (mirrors_missed) {
      cache_events.clear();
      if (!options.cache_events(options.replica, cache_events)) return;
      scheduler.take_cache_snapshot(cache_events);
    }
    if (!cache_events.empty()) mirrors_missed = !options.cache_events(options.replica, cache_events);
  }

  void step() {
    StepRecord record;
    record.replica = options.replica;
    record.step = ++num_steps;
    record.start_ns = clock.now_ns();
    heart.beat(Heartbeat::Phase::plan, num_steps);
    const BatchPlan plan = scheduler.plan(record.start_ns);
    publish();  // who was admitted runs now
    const int64_t planned = clock.now_ns();
    if (plan.empty()) return;  // all that waited were past their deadlines
    heart.beat(Heartbeat::Phase::run, num_steps, static_cast<int64_t>(plan.items.size()), plan.num_tokens);
    auto result = run(plan);
    const int64_t ran = clock.now_ns();
    heart.beat(Heartbeat::Phase::commit, num_steps, static_cast<int64_t>(plan.items.size()), plan.num_tokens);
    for (const sched::BatchItem& item : plan.items) {
      const auto rows = static_cast<int64_t>(item.token_ids.size());
      (item.sample && item.num_generated > 0 && rows == 1 ? record.decode_rows : record.prefill_rows) += rows + item.num_draft;
    }
    record.pages_saved = static_cast<int64_t>(plan.saves.size());
    record.pages_loaded = static_cast<int64_t>(plan.loads.size());
    if (!result) return fail_all(result.error().text());
    scheduler.commit(plan, *result);
    if (options.store != nullptr) {
      for (const sched::PageSave& save : plan.saves) options.store->put(save.key, save.parent, save.token_ids, save.to);
    }
    record.plan_ns = planned - record.start_ns;
    record.run_ns = ran - planned;
    record.commit_ns = clock.now_ns() - ran;
    for (auto* o : options.observers) o->on_step(record);
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
    while (!fetching.empty()) end_fetching(fetching.begin()->first, FinishReason::error, reason);
    scheduler.fail_all(reason);
  }

  ReplicaState snapshot() const {
    const sched::SchedulerStats counts = scheduler.stats();
    ReplicaState state;
    state.replica = options.replica;
    state.running = counts.running;
    state.waiting = counts.waiting + static_cast<int64_t>(fetching.size());
    state.free_pages = counts.free_pages;
    state.cached_pages = counts.cached_pages;
    state.total_pages = options.scheduler.num_pages;
    state.steps = num_steps;
    state.prompt_tokens = counts.prompt_tokens;
    state.completion_tokens = counts.completion_tokens;
    state.cache_query_tokens = counts.cache_query_tokens;
    state.cache_hit_tokens = counts.cache_hit_tokens;
    state.host_hit_tokens = counts.host_hit_tokens;
    state.evicted_pages = counts.evicted_pages;
    state.preemptions = counts.preemptions;
    state.finished_requests = counts.finished_requests + num_ended_outside;
    state.drafts = counts.drafts;
    state.draft_tokens = counts.draft_tokens;
    state.accepted_tokens = counts.accepted_tokens;
    state.drafted_at = counts.drafted_at;
    state.accepted_at = counts.accepted_at;
    return state;
  }

  // After a plan and after a step: its figures, and those who left are no longer in the house. drain() returns only after their last sink
  // call.
  void publish() {
    const ReplicaState state = snapshot();
    for (auto* o : options.observers) o->on_state(state);
    const std::lock_guard lock(mutex);
    published = state;
    num_taken_in = 0;
    num_in_house -= std::exchange(num_left, 0);
    if (num_in_house == 0) emptied.notify_all();
  }

  // Before a last event goes out, so that a client that has it finds it in the figures. The lists of the scheduler still hold the
  // sequence at this moment; they are right after the step.
  void publish_counts() {
    const ReplicaState state = snapshot();
    const std::lock_guard lock(mutex);
    const auto [running, waiting] = std::pair(published.running, published.waiting);
    published = state;
    published.running = running;
    published.waiting = waiting;
  }

  const Options options;
  const SteadyClock clock;

  // Of the engine thread alone.
  std::unique_ptr<exec::Runner> runner;
  Scheduler scheduler;
  std::map<RequestId, RequestRecord> live;          // by arrival
  std::unordered_map<RequestId, Request> fetching;  // wait for the disk tier
  int64_t num_ended_outside = 0;                    // of those, ended there
  int64_t num_left = 0;                             // ended since the last publish()
  int64_t num_steps = 0;
  std::vector<sched::CacheEvent> cache_events;  // of tell_mirrors(), kept for its memory
  // A snapshot is due: at the start, so that who knew this address before forgets what it knew.
  bool mirrors_missed = options.cache_events != nullptr;

  Heartbeat heart;

  // Under the mutex.
  mutable std::mutex mutex;
  std::condition_variable wake;         // the engine thread waits for work
  std::condition_variable emptied;      // drain() waits for num_in_house == 0
  std::condition_variable fetched_all;  // the destructor waits for num_fetching == 0
  std::vector<Request> inbox;
  std::vector<RequestId> cancels;
  std::vector<RequestId> fetched;  // came back from the disk tier
  std::vector<std::promise<Result<>>> flushes;
  std::unordered_map<RequestId, std::vector<sched::FetchedPage>> fetched_pages;
  int64_t num_fetching = 0;  // callbacks to come
  int64_t num_taken_in = 0;  // taken from the inbox and not yet in `published`
  RequestId next_id = 1;
  int64_t num_in_house = 0;  // accepted and not yet told the end
  bool stopping = false;
  bool cancel_all = false;
  bool quit = false;
  std::string failure;
  ReplicaState published;

  std::thread thread;  // last: starts when all else is there
};

Engine::Engine(const Options& options, std::unique_ptr<exec::Runner> runner) {
  INGOT_CHECK(runner != nullptr && options.max_queued_requests > 0);
  INGOT_CHECK(options.store == nullptr || options.scheduler.host_pages > 0, "a disk tier needs a host tier to come back through");
  impl_ = std::make_unique<Impl>(options, std::move(runner));
}

Engine::~Engine() { impl_->shut_down(); }

tl::expected<RequestId, Refusal> Engine::submit(Request request) { return impl_->submit(std::move(request)); }

void Engine::cancel(RequestId id) { impl_->cancel(id); }

Result<> Engine::flush_cache(std::chrono::milliseconds timeout) { return impl_->flush_cache(timeout); }

ReplicaState Engine::state() const { return impl_->state(); }

bool Engine::healthy(std::string* reason) const {
  std::string why;
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->failure.empty()) why = "the engine has failed: " + impl_->failure;
  }
  if (why.empty()) why = impl_->heart.stall();
  if (reason != nullptr) *reason = why;
  return why.empty();
}

bool Engine::drain(std::chrono::milliseconds timeout) { return impl_->drain(timeout); }

}  // namespace ingot::serve
