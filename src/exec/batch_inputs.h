// The porter: a BatchPlan as the flat arrays of model::ForwardBatch. Keeps its memory from step to step. The plan was checked by the
// scheduler; a broken one is a programmer error.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/draft_source.h"
#include "model/glm.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

class BatchInputs {
 public:
  // Takes the page tables of the plan's items: sequence i of every batch that follows is plan.items[i]. `page_size` as in the cache.
  void start(const sched::BatchPlan& plan, int64_t page_size);

  // The plan's rows; behind those of item i come drafts[i]'s, a chain, at the positions that follow. `drafts`
  // may be empty. Logits are wanted of the last row of every item with sample set, and of its drafts. The spans are good until the next
  // call of start(), plan_rows() or clear().
  model::ForwardBatch plan_rows(const sched::BatchPlan& plan, const std::vector<Draft>& drafts);

  // Rows of the caller's choice, in order.
  void clear();
  // A row that does not store leaves the cache as it is: it was run before.
  void add(size_t item, int64_t position, int32_t token_id, bool wants_logits, bool stores = true);
  model::ForwardBatch rows() const;

 private:
  int64_t page_size_ = 0;
  size_t max_pages_ = 0;
  std::vector<int32_t> page_table_;    // (num_seqs, max_pages), unused entries 0
  std::vector<int32_t> token_ids_;     // (T)
  std::vector<int32_t> positions_;     // (T)
  std::vector<int32_t> slots_;         // (T)
  std::vector<int32_t> seq_of_token_;  // (T)
  std::vector<int32_t> logit_rows_;
};

}  // namespace ingot::exec
