// Continuous batching with chunked prefill over a paged pool: request -> sequence -> batch plan -> commit.
// One thread owns it. A step is three verbs: plan() hands out rows and takes their pages, a Runner runs them, commit() appends
// what came out and cannot fail. When pages run out, the newest sequence is preempted: its pages are freed and it is computed anew later,
// with the same greedy text and the same seeded draws. The oldest running sequence can always go on, so every request ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sched/batch_plan.h"
#include "sched/page_pool.h"
#include "sched/request.h"
#include "sched/sequence.h"

namespace ingot::sched {

struct SchedulerOptions {
  int64_t num_pages = 0;
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 512;  // token budget of a step, shared by decodes and prefill chunks
  int64_t max_running_requests = 32;
  int64_t context_length = 0;  // prompt + completion of one sequence; the pool's size when that is less

  int64_t max_length() const { return std::min(context_length, num_pages * page_size); }
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_pages = 0;
  int64_t prompt_tokens = 0;  // counters since start: of requests whose prompt was computed for the first time
  int64_t completion_tokens = 0;
  int64_t finished_requests = 0;
  int64_t preemptions = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Whether a request can be run at all; any thread. Errors are for the client: an empty prompt, or one that leaves no room to answer.
  static Result<> admissible(const Request& request, const SchedulerOptions& options);

  // Takes an admissible request, with its id set. Its sink is called by commit() and cancel() from now on.
  void submit(Request request);

  // Ends a request: pages are freed now, or by commit() when it has rows in the step that runs. Its sink gets `cancelled`.
  // An id that is not there (it has ended) is ignored.
  void cancel(RequestId id);

  // Ends every request with `error`; used when the runner failed.
  void fail_all(const std::string& error);

  // The next step's rows: decodes first, then chunks of prompts in order of arrival, within the token budget. Empty when nothing can run,
  // which is only so when there is no request.
  BatchPlan plan();

  // Appends the drawn tokens, ends what is finished, tells the sinks. `plan` is what the last plan() returned.
  void commit(const BatchPlan& plan, const BatchResult& result);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  SchedulerStats stats() const;
  const Sequence* find(RequestId id) const;

  // Recomputes the state from scratch and aborts when a page is lost or held twice, or a list disagrees. For tests, after every step.
  void verify() const;

 private:
  using List = std::deque<std::unique_ptr<Sequence>>;

  int64_t pages_for(int64_t num_tokens) const { return (num_tokens + options_.page_size - 1) / options_.page_size; }
  // Makes room for `count` more pages for `sequence` by preempting newer sequences. False when there are none left to preempt.
  bool make_room(int64_t count, const Sequence& sequence, BatchPlan& plan);
  void preempt_newest(BatchPlan& plan);
  void admit(int64_t budget);
  bool add_rows(Sequence& sequence, int64_t budget, BatchPlan& plan);
  void append(Sequence& sequence, const SampledToken& sampled);
  void finish(Sequence& sequence, TokenEvent event);
  void drop(RequestId id);

  SchedulerOptions options_;
  PagePool pool_;
  List running_;  // by arrival
  List waiting_;  // by arrival; the preempted ones are older than all others
  std::unordered_map<RequestId, Sequence*> by_id_;
  uint64_t next_arrival_ = 0;
  uint64_t step_ = 0;
  SchedulerStats counters_;
};

}  // namespace ingot::sched
