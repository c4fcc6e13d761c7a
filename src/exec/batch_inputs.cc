#include "exec/batch_inputs.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::exec {

model::ForwardBatch BatchInputs::fill(const sched::BatchPlan& plan, int64_t page_size) {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  seq_of_token_.clear();
  logit_rows_.clear();
  size_t max_pages = 0;
  for (const sched::BatchItem& item : plan.items) max_pages = std::max(max_pages, item.pages.size());
  page_table_.assign(plan.items.size() * max_pages, 0);
  for (size_t seq = 0; seq < plan.items.size(); ++seq) {
    const sched::BatchItem& item = plan.items[seq];
    const auto num_rows = static_cast<int64_t>(item.token_ids.size());
    const auto num_places = static_cast<int64_t>(item.pages.size()) * page_size;
    INGOT_CHECK(num_rows > 0 && item.start >= 0 && item.start + num_rows <= num_places, "request {}: rows [{}, {}) in {} pages of {}",
                item.request, item.start, item.start + num_rows, item.pages.size(), page_size);
    std::copy(item.pages.begin(), item.pages.end(), page_table_.begin() + static_cast<std::ptrdiff_t>(seq * max_pages));
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t position = item.start + row;
      const int64_t page = item.pages[static_cast<size_t>(position / page_size)];
      token_ids_.push_back(item.token_ids[static_cast<size_t>(row)]);
      positions_.push_back(static_cast<int32_t>(position));
      slots_.push_back(static_cast<int32_t>(page * page_size + position % page_size));
      seq_of_token_.push_back(static_cast<int32_t>(seq));
    }
    if (item.sample) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  INGOT_CHECK(static_cast<int64_t>(token_ids_.size()) == plan.num_tokens, "{} rows in a plan of {}", token_ids_.size(), plan.num_tokens);
  model::ForwardBatch batch;
  batch.token_ids = token_ids_;
  batch.positions = positions_;
  batch.slots = slots_;
  batch.seq_of_token = seq_of_token_;
  batch.page_table = page_table_;
  batch.max_pages = static_cast<int64_t>(max_pages);
  batch.logit_rows = logit_rows_;
  return batch;
}

}  // namespace ingot::exec
