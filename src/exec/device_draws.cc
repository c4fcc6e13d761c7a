#include "exec/device_draws.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::exec {

using sched::BatchItem;

void DeviceDraws::start(const sched::BatchPlan& plan) {
  items_.clear();
  changes_.clear();
  for (const BatchItem& item : plan.items) {
    kernels::DrawRow& row = items_.emplace_back();
    if (!item.sample) continue;
    row = verifier_.describe(item, 0);
    row.num_top = std::min(row.num_top, static_cast<int32_t>(vocab_size_));
    row.first_change = static_cast<int32_t>(changes_.size());
    verifier_.add_changes(item, vocab_size_, changes_);
    row.num_changes = static_cast<int32_t>(changes_.size()) - row.first_change;
  }
}

void DeviceDraws::describe(const sched::BatchPlan& plan, const std::vector<Draft>& drafts, model::QueuedStep& step) {
  rows_.clear();
  sampled_.clear();
  logits_back_.clear();
  max_top_ = 0;
  size_t batch_row = 0;
  int32_t num_before = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    batch_row += item.token_ids.size();
    if (!item.sample) continue;
    sampled_.push_back({i, rows_.size(), logits_back_.size()});
    for (int32_t depth = 0; depth <= drafts[i].size(); ++depth) {
      if (item.constraint != nullptr) {
        logits_back_.push_back(static_cast<int32_t>(rows_.size()));
        rows_.emplace_back();
        continue;
      }
      kernels::DrawRow& row = rows_.emplace_back(items_[i]);
      const kernels::DrawRow next = verifier_.describe(item, depth);
      row.uniform = next.uniform;
      row.num_drafted = next.num_drafted;
      row.first_drafted = static_cast<int32_t>(batch_row);
      max_top_ = std::max(max_top_, static_cast<size_t>(std::max(row.num_top, 0)));
      if (row.num_top < 0 || !row.changes_logits()) continue;
      row.first_before = num_before;
      num_before += row.num_changes + row.num_drafted;
    }
    batch_row += static_cast<size_t>(drafts[i].size());
  }
  results_.resize(rows_.size());
  top_.resize(rows_.size() * max_top_);
  logits_.resize(logits_back_.size() * vocab_size_);
  step.draw = {rows_, changes_, static_cast<int64_t>(max_top_), results_, top_};
  step.logits_back = logits_back_;
  step.logits = logits_;
}

Result<std::vector<sched::SampledTokens>> DeviceDraws::take(const sched::BatchPlan& plan, const std::vector<Draft>& drafts) {
  std::vector<sched::SampledTokens> sampled;
  for (const Rows& rows : sampled_) {
    const BatchItem& item = plan.items[rows.item];
    const Draft& draft = drafts[rows.item];
    if (item.constraint != nullptr) {
      const auto logits = [&](size_t row) {
        return std::span<const float>(logits_).subspan((rows.first_back + row) * vocab_size_, vocab_size_);
      };
      INGOT_ASSIGN(auto drawn, verifier_.verify(item, draft, logits));
      sampled.push_back(std::move(drawn));
    } else {
      const auto drawn_row = [&](size_t row) -> Verifier::DrawnRow {
        const size_t at = rows.first + row;
        return {&results_[at], std::span<const kernels::LikelyToken>(top_).subspan(at * max_top_, max_top_)};
      };
      INGOT_ASSIGN(auto drawn, verifier_.accept(item, draft, vocab_size_, drawn_row));
      sampled.push_back(std::move(drawn));
    }
  }
  return sampled;
}

}  // namespace ingot::exec
