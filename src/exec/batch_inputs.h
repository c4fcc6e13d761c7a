// The porter: a BatchPlan as the flat arrays of model::ForwardBatch. Keeps its memory from step to step. The plan was checked by the
// scheduler; a broken one is a programmer error.
#pragma once

#include <cstdint>
#include <vector>

#include "model/glm.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

class BatchInputs {
 public:
  // `page_size` as in the cache. The batch's spans are good until the next call.
  model::ForwardBatch fill(const sched::BatchPlan& plan, int64_t page_size);

 private:
  std::vector<int32_t> token_ids_;     // (T)
  std::vector<int32_t> positions_;     // (T)
  std::vector<int32_t> slots_;         // (T)
  std::vector<int32_t> seq_of_token_;  // (T)
  std::vector<int32_t> page_table_;    // (num_seqs, max_pages), unused entries 0
  std::vector<int32_t> logit_rows_;    // one for each item with sample set, in plan order
};

}  // namespace ingot::exec
