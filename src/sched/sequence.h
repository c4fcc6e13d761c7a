// Sequence: our record of a request, from submit to its last event. Lives in the scheduler; every field says who writes it.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/draft_policy.h"
#include "sched/prefix_cache.h"
#include "sched/request.h"

namespace ingot::sched {

struct Sequence {
  Request request;              // submit; immutable afterwards
  std::vector<int32_t> tokens;  // submit: the prompt; commit appends what was generated
  std::vector<PageKey> keys;    // of the full pages of the prompt (and, once preempted, of what was generated): submit, preempt
  // Page table, covering positions [0, pages.size() * page_size). The first num_shared pages are the prefix cache's, locked through
  // `tail`; the others are this sequence's own. admit and plan take, commit publishes, release gives back.
  std::vector<int32_t> pages;
  int64_t num_shared = 0;
  PrefixCache::Node* tail = nullptr;  // null while waiting
  bool publishes = true;              // false after a key collision: its further pages stay its own
  int64_t ranked_pages = 0;           // admit: cached pages when it was last ranked
  int64_t num_computed = 0;           // admit, commit: positions [0, num_computed) are in the cache; release sets it to 0
  int64_t max_length = 0;             // submit: prompt + completion may not be longer
  uint64_t arrival = 0;               // submit: order of arrival, for ever
  uint64_t last_step = 0;             // plan: the step it last had rows in
  int64_t cached_tokens = 0;          // admit: of the prompt, before its first token
  int64_t scheduled_ns = 0;           // plan
  int32_t num_generated = 0;          // commit
  // commit: rows [0, num_scored) of the prompt have their logprobs, for the tokens behind them; kept here until the first token takes them
  // to the sink. A preemption leaves both: rows that are computed again are not scored again.
  int64_t num_scored = 0;
  std::vector<TokenLogprob> prompt_logprobs;
  int32_t num_preempted = 0;   // preempt
  int64_t num_overtaken = 0;   // the queue: later arrivals that went first, as far as it counts them one by one (waiting_queue.h)
  int64_t overtaken_mark = 0;  // the queue
  Acceptance acceptance;       // commit: what its drafts were worth
  bool runner_knows = false;   // plan sets, release clears: had rows, so that a runner may keep something of it
  bool in_flight = false;      // plan sets, commit clears: has rows in the step that runs
  bool cancelled = false;      // cancel while in flight; commit releases it

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_left() const { return length() - num_computed; }  // rows to run before the next token can be drawn
  // Rows that are to be scored in the end.
  int64_t most_scored() const { return request.sampling.prompt_logprobs < 0 ? 0 : static_cast<int64_t>(request.prompt.size()) - 1; }
  bool scoring() const { return num_scored < most_scored(); }
  // Rows [0, num_cacheable()) may come from the cache: nobody asks for their logits any more. The last row's are always asked for.
  int64_t num_cacheable() const { return scoring() ? num_scored : length() - 1; }
  bool decoding() const { return num_left() == 1 && num_generated > 0; }
};

}  // namespace ingot::sched
