// MtpDrafter: chains of drafts from the MTP layer, and the upkeep of that layer's cache. Owned by GlmRunner, used by its thread.
//
// The MTP row at position i takes the main model's hidden state of i and token i + 1, so it can be run once token i + 1 is known: one token
// later than the main model's row. Rows that could be run wait, with their hidden states, until drafts are wanted, or until the page that
// they lie in is full: a page that the prefix cache publishes has its MTP rows, whoever computed it and whether it drafted or not. Drafted
// rows write into the slots of positions that are not computed yet; the true rows replace them later.
//
// The last row of a page depends on one token that is not in the page. Who finds the page in the prefix cache and goes on with another
// token drafts from that row all the same: it can cost a draft, never an answer.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "exec/batch_inputs.h"
#include "exec/draft_source.h"
#include "exec/verify.h"
#include "model/glm.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

class MtpDrafter {
 public:
  // `glm` must have an MTP layer. All are used by draft() and keep() alone, and outlive this object.
  MtpDrafter(model::Glm& glm, model::KvCache& cache, Verifier& verifier);

  // Drops what is kept of these requests.
  void forget(std::span<const sched::RequestId> released);

  // Fills drafts[i], empty at first, with at most plan.items[i].num_draft tokens. `inputs` was started with the plan.
  // Errors, as those of keep(): a GPU's.
  Result<> draft(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, std::vector<Draft>& drafts);

  // Takes the step's hidden states (rows of plan_rows(plan, drafts), hidden_size), and what each item drew (one for each with sample set,
  // in plan order). Runs the rows of pages that are full now.
  Result<> keep(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, const std::vector<Draft>& drafts,
                std::span<const float> hidden, std::span<const sched::SampledTokens> sampled);

  int64_t num_sequences() const { return static_cast<int64_t>(states_.size()); }

 private:
  // The row that a chain begins with, once it was run.
  struct Head {
    std::vector<float> logits;  // (vocab_size), when it was run for the next step; else empty
    std::vector<float> hidden;  // (hidden_size)
    std::vector<int32_t> list;  // positions it attended to
  };
  struct State {
    int64_t end = 0;             // positions below were computed by the main model
    std::vector<float> waiting;  // (rows, hidden_size) of the last positions before `end`: their MTP rows are still to be run
    Head head;                   // of position end - 1, when no row waits
  };

  size_t num_waiting(const State& state) const { return state.waiting.size() / hidden_size_; }
  // Runs what was added to `inputs` and hidden_. Results of the wanted rows are in logits_, out_hidden_ and lists_.
  Result<> run(gpu::Stream& stream, const BatchInputs& inputs, bool with_lists);
  // Result `row` of the last run.
  std::span<const float> logits(size_t row) const { return std::span(logits_).subspan(row * vocab_size_, vocab_size_); }
  void take_head(size_t row, Head& head) const;  // all but the logits

  model::Glm& glm_;
  model::KvCache& cache_;
  Verifier& verifier_;
  const size_t hidden_size_, vocab_size_, list_size_;
  std::unordered_map<sched::RequestId, State> states_;
  std::vector<float> hidden_;      // inputs of the next run(): (rows, hidden_size)
  std::vector<int32_t> lists_in_;  // (rows, list_width_); empty: the layer chooses
  int64_t list_width_ = 0;
  std::vector<float> logits_;      // (wanted rows, vocab_size)
  std::vector<float> out_hidden_;  // (wanted rows, hidden_size)
  std::vector<int32_t> lists_;     // (wanted rows, index_topk)
};

}  // namespace ingot::exec
