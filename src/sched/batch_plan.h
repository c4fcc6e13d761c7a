// The two plain structs of a step: what to run, and what came out. Made by the scheduler, run by a Runner (exec/runner.h), committed by the
// scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sched/host_page.h"
#include "sched/page_key.h"
#include "sched/request.h"

namespace ingot::sched {

// Device page to host memory. The runner sizes and fills `to`.
struct PageSave {
  int32_t page = -1;
  HostPage to;
  PageKey key = 0;  // the page's name and content, for the disk tier
  PageKey parent = 0;
  std::vector<int32_t> token_ids;  // (page_size)
};

// Host memory to device page. `from` was filled by an earlier save, or one of the same plan.
struct PageLoad {
  HostPage from;
  int32_t page = -1;
};

// One sequence's rows in a step: a chunk of its prompt (prefill) or its last token (decode). The spans and pointers are valid until commit.
struct BatchItem {
  RequestId request = 0;
  std::span<const int32_t> context;    // all tokens of the sequence that are known: prompt and completion so far
  std::span<const int32_t> token_ids;  // the rows, in order; at least one: context[start, start + rows)
  int32_t start = 0;                   // position of the first row; positions below are in the cache
  std::span<const int32_t> pages;      // page table of the sequence, covering start + token_ids.size() + num_draft positions
  bool sample = false;                 // the last row ends what is known: draw the next token
  // Rows [first_scored, first_scored + num_scored): of the token of the prompt that follows each, scored_token(), the logprob is wanted,
  // and the sampling->prompt_logprobs likeliest beside it.
  int32_t first_scored = 0;
  int32_t num_scored = 0;
  const SamplingParams* sampling = nullptr;
  TokenConstraint* constraint = nullptr;  // may be null
  int32_t num_generated = 0;              // completion tokens so far: the counter of the next random draw
  int32_t num_draft = 0;                  // the runner may draft so many tokens, verify them in this step and return those that hold

  // What follows row first_scored + `index`.
  int32_t scored_token(int32_t index) const { return context[static_cast<size_t>(start + first_scored + index) + 1]; }
};

struct BatchPlan {
  std::vector<PageSave> saves;      // run first, in order
  std::vector<PageLoad> loads;      // then these, in order; a page may appear twice
  std::vector<RequestId> released;  // ended or preempted since the last plan with rows: what a runner keeps of them is void
  std::vector<BatchItem> items;     // then the rows; decodes first
  int64_t num_tokens = 0;           // rows over all items, drafts included
  bool empty() const { return items.empty() && saves.empty(); }
};

// What one item drew: one token, or with drafts up to num_draft + 1, each of them what would have been drawn without drafts.
struct SampledTokens {
  RequestId request = 0;
  std::vector<int32_t> token_ids;      // at least one, unless there is an error
  std::vector<TokenLogprob> logprobs;  // as many, when the request asked for them; else empty
  int32_t num_drafted = 0;             // tokens that were drafted; token_ids.size() - 1 of them were accepted
  std::string error = {};              // not empty: after token_ids nothing can be drawn, and the request ends with it
};

// The logprobs of one item's scored rows.
struct ScoredTokens {
  RequestId request = 0;
  std::vector<TokenLogprob> logprobs;  // (num_scored)
};

struct BatchResult {
  std::vector<SampledTokens> sampled;     // one for every item with sample set, in plan order
  std::vector<ScoredTokens> scored = {};  // one for every item with num_scored > 0, in plan order
};

}  // namespace ingot::sched
