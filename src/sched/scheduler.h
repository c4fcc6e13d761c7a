// Continuous batching with chunked prefill over a paged pool and a prefix cache: request -> sequence -> batch plan -> commit.
// One thread owns it. A step is three verbs: plan() hands out rows and takes their pages, a Runner runs them, commit() appends
// what came out and cannot fail. When pages run out, prefixes that nobody uses are evicted; then the newest sequence is preempted: it is
// computed anew later, with the same greedy text and the same seeded draws. The oldest running sequence of the highest priority can always
// go on, and no waiting request is overtaken without end, so every request ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sched/batch_plan.h"
#include "sched/draft_policy.h"
#include "sched/page_pool.h"
#include "sched/prefix_cache.h"
#include "sched/request.h"
#include "sched/sequence.h"
#include "sched/waiting_queue.h"

namespace ingot::sched {

struct SchedulerOptions {
  int64_t num_pages = 0;
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 512;  // token budget of a step, shared by decodes and prefill chunks
  int64_t max_running_requests = 32;
  int64_t context_length = 0;  // prompt + completion of one sequence; the pool's size when that is less
  Policy policy = Policy::fcfs;
  bool prefix_cache = true;
  int64_t host_pages = 0;  // pages the host tier holds
  DraftPolicy draft = {};  // how deep decoding sequences draft
  // A waiting request that so many later arrivals overtook (by policy or by priority) goes before all others.
  int32_t max_overtaken = 64;
  PageKeyFunction page_key = sched::page_key;  // tests take a bad one
  bool cache_events = false;                   // note what the prefix cache does, for take_cache_events()

  int64_t max_length() const { return std::min(context_length, num_pages * page_size); }
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_pages = 0;
  int64_t cached_pages = 0;  // of the prefix cache, used by no sequence
  int64_t host_pages = 0;
  // Counters since start.
  int64_t prompt_tokens = 0;  // of requests that got their first token
  int64_t completion_tokens = 0;
  int64_t cache_query_tokens = 0;  // prompt tokens of admitted requests
  int64_t cache_hit_tokens = 0;    // those of them that were cached
  int64_t host_hit_tokens = 0;     // and those that had to come from the host tier
  int64_t evicted_pages = 0;
  int64_t preemptions = 0;
  int64_t finished_requests = 0;
  int64_t drafts = 0;  // steps of a sequence with drafts
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;                        // what they earned: tokens that reached the client beyond one a step
  std::array<int64_t, kMaxDraftTokens> drafted_at{};  // by position in the draft
  std::array<int64_t, kMaxDraftTokens> accepted_at{};
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Whether a request can be run at all; any thread. Errors are for the client: an empty prompt, or one that leaves no room to answer.
  static Result<> admissible(const Request& request, const SchedulerOptions& options);

  // Takes an admissible request, with its id set. Its sink is called by plan(), commit() and cancel() from now on.
  void submit(Request request);

  // Ends a request: pages are freed now, or by commit() when it has rows in the step that runs. Its sink gets `cancelled`.
  // An id that is not there (it has ended) is ignored.
  void cancel(RequestId id);

  // Ends every request with `error`; used when the runner failed.
  void fail_all(const std::string& error);

  // The next step's rows: decodes first, then chunks of prompts in order, within the token budget; before them the copies between the
  // tiers. Requests past a deadline end here. Empty only when there is no request left and nothing to save.
  BatchPlan plan(int64_t now_ns);

  // Appends the drawn tokens, ends what is finished, publishes full pages, tells the sinks. `plan` is what the last plan() returned.
  void commit(const BatchPlan& plan, const BatchResult& result);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  bool has_work() const { return !idle() || cache_.has_saves(); }
  SchedulerStats stats() const;
  const Sequence* find(RequestId id) const;
  const PrefixCache& cache() const { return cache_; }
  // For tests: later arrivals that a waiting request was overtaken by; 0 for one that runs.
  int64_t num_overtaken(RequestId id) const { return find(id)->tail == nullptr ? waiting_.num_overtaken(*find(id)) : 0; }
  // Forgets all cached pages, on the device and the host. Only when idle().
  void flush_cache();
  // What the prefix cache did since the last call; as a snapshot, all that a mirror needs to begin anew. Needs options.cache_events.
  void take_cache_events(std::vector<CacheEvent>& events) { cache_.take_events(events); }
  void take_cache_snapshot(std::vector<CacheEvent>& events) { cache_.take_snapshot(events); }
  // Pages of this prompt that the cache has, on the device or the host, of at most `max_pages`.
  int64_t cached_pages(std::span<const int32_t> prompt, std::span<const PageKey> keys, int64_t max_pages) {
    return cache_.match(prompt, keys, max_pages).num_pages();
  }

  // Recomputes the state from scratch and aborts when a page is lost or held twice, a lock is miscounted, or a list disagrees. For tests,
  // after every step.
  void verify() const;

 private:
  using List = std::vector<std::unique_ptr<Sequence>>;
  struct Work {
    Sequence* sequence = nullptr;
    int64_t rows = 0;
    int64_t drafts = 0;
  };

  int64_t pages_for(int64_t num_tokens) const { return (num_tokens + options_.page_size - 1) / options_.page_size; }
  int64_t available() const { return pool_.num_free() + cache_.num_evictable(); }
  int64_t more_pages(const Work& work) const;
  // Whether a deadline has ended the sequence.
  bool expire(Sequence& sequence, int64_t now_ns);
  void expire_all(int64_t now_ns);
  Sequence& next_waiting();
  void admit(int64_t budget, BatchPlan& plan);
  bool try_admit(Sequence& sequence, int64_t promised, BatchPlan& plan);
  void jump_ahead(Sequence& sequence);
  std::vector<Work> choose();
  void draft(std::vector<Work>& work, int64_t& budget);
  int64_t cut_drafts(std::vector<Work>& work, int64_t need);
  void fit(std::vector<Work>& work);
  void preempt_newest();
  void take_pages(int64_t count, std::vector<int32_t>& pages);
  void release(Sequence& sequence);
  void publish(Sequence& sequence);
  void append(Sequence& sequence, const SampledTokens& sampled);
  void finish(Sequence& sequence, TokenEvent event);
  void drop(RequestId id);
  void verify(const Sequence& sequence) const;

  SchedulerOptions options_;
  PagePool pool_;
  PrefixCache cache_;
  List running_;  // by priority, then by arrival
  WaitingQueue waiting_;
  std::unordered_map<RequestId, Sequence*> by_id_;
  DraftPlanner planner_;
  std::vector<DraftCandidate> candidates_;  // of choose(), kept for its memory
  std::vector<RequestId> released_;         // for the next plan with rows; only sequences that had rows: at most max_running_requests
  uint64_t next_arrival_ = 0;
  uint64_t step_ = 0;
  // No deadline lies before this: submit lowers it, plan finds it anew when it has passed.
  int64_t next_deadline_ns_ = std::numeric_limits<int64_t>::max();
  SchedulerStats counters_;
};

}  // namespace ingot::sched
