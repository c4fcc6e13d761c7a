// DeviceDraws: what a GPU is to draw in a step, and what came of it. Items whose constraint must see their logits are drawn for on the
// host, which gets these rows alone. Owned by GlmRunner, used by its thread; keeps its memory from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/draft_source.h"
#include "exec/verify.h"
#include "model/glm.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

class DeviceDraws {
 public:
  // The verifier outlives this object.
  DeviceDraws(Verifier& verifier, int64_t vocab_size) : verifier_(verifier), vocab_size_(static_cast<size_t>(vocab_size)) {}

  // Takes the items of a plan.
  void start(const sched::BatchPlan& plan);
  // Of each item, how its next token is drawn, before any draft; and the changes that these rows name.
  std::span<const kernels::DrawRow> items() const { return items_; }
  std::span<const kernels::LogitChange> changes() const { return changes_; }

  // Fills the step with what it is to draw: of each item with sample set a row, and one for each of its drafts, of which only the number
  // counts. The rows of the batch are those of BatchInputs::plan_rows.
  void describe(const sched::BatchPlan& plan, const std::vector<Draft>& drafts, model::QueuedStep& step);
  // After Glm::finish(): what each item with sample set drew. `drafts` have their tokens now, and may be shorter.
  Result<std::vector<sched::SampledTokens>> take(const sched::BatchPlan& plan, const std::vector<Draft>& drafts);

 private:
  // Of an item with sample set.
  struct Rows {
    size_t item = 0;
    size_t first = 0;       // its first logit row
    size_t first_back = 0;  // in logits_, when its logits come back
  };

  Verifier& verifier_;
  const size_t vocab_size_;
  std::vector<kernels::DrawRow> items_;  // one an item
  std::vector<kernels::LogitChange> changes_;
  std::vector<Rows> sampled_;
  // One a logit row.
  std::vector<kernels::DrawRow> rows_;
  std::vector<kernels::SampledRow> results_;
  std::vector<kernels::LikelyToken> top_;  // (rows, max_top_)
  size_t max_top_ = 0;
  std::vector<int32_t> logits_back_;
  std::vector<float> logits_;  // (logits_back_, vocab_size)
};

}  // namespace ingot::exec
