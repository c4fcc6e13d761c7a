// PromptScores: the logprobs of prompt tokens that requests ask for (sched::BatchItem::num_scored). The rows' hidden states are kept from
// the step, and their logits made and read in pieces of Glm::kHeadRows, so that a chunk of a prompt takes no more memory than that,
// whatever the vocabulary. Owned by GlmRunner, used by its thread; keeps its memory from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/draft_source.h"
#include "exec/sampler.h"
#include "model/glm.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

// The logprob of item.scored_token(index) under its row of logits (vocab_size), and of the item's sampling->prompt_logprobs likeliest.
// Errors: logits that are no numbers, naming request, position and token id.
Result<sched::TokenLogprob> score(Sampler& sampler, const sched::BatchItem& item, int32_t index, std::span<const float> logits);

class PromptScores {
 public:
  // Takes the scored rows of a plan, of the batch of BatchInputs::plan_rows(plan, drafts). Whether there are any: then the step must keep
  // its hidden states.
  bool start(const sched::BatchPlan& plan, const std::vector<Draft>& drafts);

  // On the host: from the step's hidden states (T, hidden_size). Errors: those of score(); a GPU's.
  Result<std::vector<sched::ScoredTokens>> run(gpu::Stream& stream, model::Glm& glm, const sched::BatchPlan& plan,
                                               std::span<const float> hidden);

  // On a GPU: queue() behind the step, take() after Glm::finish(). Errors: as run().
  Result<> queue(gpu::Stream& stream, model::Glm& glm, const sched::BatchPlan& plan);
  Result<std::vector<sched::ScoredTokens>> take(const sched::BatchPlan& plan, int64_t vocab_size) const;

 private:
  struct Row {
    size_t item = 0;
    int32_t index = 0;  // of the item's scored rows
  };

  // Calls visit(first, count) for each piece of the rows.
  template <class Visit>
  Result<> each_piece(Visit visit) const;
  // Puts the logprob of the next row where it belongs.
  static void add(const sched::BatchPlan& plan, const Row& row, sched::TokenLogprob logprob, std::vector<sched::ScoredTokens>& to);

  Sampler sampler_;
  std::vector<Row> rows_;
  std::vector<int32_t> batch_rows_;  // one a row, as the next four
  std::vector<kernels::DrawRow> draws_;
  std::vector<kernels::LogitChange> changes_;
  std::vector<kernels::SampledRow> results_;
  std::vector<kernels::LikelyToken> top_;  // (rows, max_top_)
  size_t max_top_ = 0;
  std::vector<float> hidden_;  // of a piece: (rows, hidden_size)
  std::vector<float> logits_;  // (rows, vocab_size)
};

}  // namespace ingot::exec
