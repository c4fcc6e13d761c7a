// The two plain structs of a step: what to run, and what came out. Made by the scheduler, run by a Runner (exec/runner.h), committed by the
// scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/request.h"

namespace ingot::sched {

// One sequence's rows in a step: a chunk of its prompt (prefill) or its last token (decode).
struct BatchItem {
  RequestId request = 0;
  std::vector<int32_t> token_ids;            // the rows, in order; at least one
  int32_t start = 0;                         // position of the first row; positions below are in the cache
  std::vector<int32_t> pages;                // page table of the sequence, covering start + token_ids.size() positions
  bool sample = false;                       // the last row ends what is known: draw the next token
  const SamplingParams* sampling = nullptr;  // valid until commit; set when sample
  int32_t num_generated = 0;                 // completion tokens so far: the counter of the next random draw
};

struct BatchPlan {
  std::vector<BatchItem> items;  // decodes first
  int64_t num_tokens = 0;        // rows over all items
  bool empty() const { return items.empty(); }
};

struct SampledToken {
  RequestId request = 0;
  int32_t token_id = -1;
  TokenLogprob logprob;  // filled when the request asked for it
};

struct BatchResult {
  std::vector<SampledToken> sampled;  // one for every item with sample set, in plan order
};

}  // namespace ingot::sched
