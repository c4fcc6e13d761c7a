#include "exec/batch_inputs.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::exec {

void BatchInputs::start(const sched::BatchPlan& plan, int64_t page_size) {
  page_size_ = page_size;
  max_pages_ = 0;
  for (const sched::BatchItem& item : plan.items) max_pages_ = std::max(max_pages_, item.pages.size());
  page_table_.assign(plan.items.size() * max_pages_, 0);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const sched::BatchItem& item = plan.items[i];
    const auto end = item.start + static_cast<int64_t>(item.token_ids.size()) + item.num_draft;
    INGOT_CHECK(!item.token_ids.empty() && item.start >= 0 && end <= static_cast<int64_t>(item.pages.size()) * page_size,
                "request {}: rows [{}, {}) in {} pages of {}", item.request, item.start, end, item.pages.size(), page_size);
    std::copy(item.pages.begin(), item.pages.end(), page_table_.begin() + static_cast<std::ptrdiff_t>(i * max_pages_));
  }
}

void BatchInputs::clear() {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  seq_of_token_.clear();
  logit_rows_.clear();
}

void BatchInputs::add(size_t item, int64_t position, int32_t token_id, bool wants_logits, bool stores) {
  if (wants_logits) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
  const int64_t page = page_table_[item * max_pages_ + static_cast<size_t>(position / page_size_)];
  token_ids_.push_back(token_id);
  positions_.push_back(static_cast<int32_t>(position));
  slots_.push_back(stores ? static_cast<int32_t>(page * page_size_ + position % page_size_) : -1);
  seq_of_token_.push_back(static_cast<int32_t>(item));
}

model::ForwardBatch BatchInputs::rows() const {
  return {token_ids_, positions_, slots_, seq_of_token_, page_table_, static_cast<int64_t>(max_pages_), logit_rows_};
}

model::ForwardBatch BatchInputs::plan_rows(const sched::BatchPlan& plan, const std::vector<Draft>& drafts) {
  clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const sched::BatchItem& item = plan.items[i];
    const auto count = static_cast<int64_t>(item.token_ids.size());
    for (int64_t row = 0; row < count; ++row)
      add(i, item.start + row, item.token_ids[static_cast<size_t>(row)], item.sample && row + 1 == count);
    if (drafts.empty()) continue;
    const Draft& draft = drafts[i];
    INGOT_CHECK(draft.size() <= item.num_draft && (item.sample || draft.size() == 0));
    for (int32_t d = 0; d < draft.size(); ++d) {
      INGOT_CHECK(draft.parents[static_cast<size_t>(d)] == d - 1, "a tree of drafts: attention sees chains only");
      add(i, item.start + count + d, draft.token_ids[static_cast<size_t>(d)], true);
    }
  }
  INGOT_CHECK(static_cast<int64_t>(token_ids_.size()) <= plan.num_tokens, "{} rows in a plan of {}", token_ids_.size(), plan.num_tokens);
  return rows();
}

}  // namespace ingot::exec
