// What the engine tells of itself: one struct a step, one a finished request. Metrics, the request log and the step trace are observers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sched/request.h"
#include "serve/speculation.h"

namespace ingot::serve {

// One step of one replica. Times are of the engine's clock.
struct StepRecord {
  int replica = 0;
  int64_t step = 0;      // 1, 2, ...
  int64_t start_ns = 0;  // begin of plan
  int64_t plan_ns = 0;   // durations
  int64_t run_ns = 0;
  int64_t commit_ns = 0;
  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
  int64_t pages_saved = 0;   // copied to the host tier
  int64_t pages_loaded = 0;  // and back
};

// State of one replica, after a step or when something changed.
struct ReplicaState {
  int replica = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_pages = 0;
  int64_t cached_pages = 0;  // held by the prefix cache alone: they can be evicted
  int64_t total_pages = 0;
  // Counters since start; they only grow.
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // of requests that got their first token
  int64_t completion_tokens = 0;
  int64_t cache_query_tokens = 0;  // prompt tokens looked up in the prefix cache, and found there
  int64_t cache_hit_tokens = 0;
  int64_t host_hit_tokens = 0;  // of the found ones, those that came from the host or disk tier
  int64_t evicted_pages = 0;
  int64_t preemptions = 0;
  int64_t finished_requests = 0;
  int64_t drafts = 0;  // speculation: sequences' steps with drafts, tokens drafted, tokens accepted
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  std::array<int64_t, sched::kMaxDraftTokens> drafted_at{};  // by position in the draft
  std::array<int64_t, sched::kMaxDraftTokens> accepted_at{};
};

// A request from submit to its last event. Times are of the engine's clock; 0: it never came so far.
struct RequestRecord {
  sched::RequestId id = 0;
  std::string name;  // the id that the client saw ("chatcmpl-..."), or empty
  int replica = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t max_tokens = 0;
  int32_t preemptions = 0;
  int32_t priority = 0;
  SpeculationCounts speculation;
  double forced_acceptance = 0;  // the server's; 0: none
  int64_t submitted_ns = 0;
  int64_t scheduled_ns = 0;  // first rows planned
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
  int64_t finished_ns = 0;
  sched::FinishReason finish = sched::FinishReason::none;
  std::string error;  // of FinishReason::error
};

// Called on engine threads, several replicas at once: must be thread-safe, quick, and must not throw. Outlives the engines.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void on_step(const StepRecord&) {}
  virtual void on_state(const ReplicaState&) {}
  // `count` tokens of one request came out of one step, `seconds` after its previous ones (inter-token latency a token: seconds / count).
  virtual void on_tokens(int /*replica*/, double /*seconds*/, int64_t /*count*/) {}
  virtual void on_first_token(int /*replica*/, double /*seconds_since_submit*/) {}
  virtual void on_finished(const RequestRecord&) {}
};

}  // namespace ingot::serve
