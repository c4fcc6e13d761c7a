// DeviceDrafter: what MtpDrafter does, for a model on a GPU: its hidden states stay there, and a chain of drafts runs from pass to pass,
// and on into the step that verifies it, without the host. Greedy drafts alone: those of the same draw (verify.h). Owned by GlmRunner, used
// by its thread.
//
// A row of the MTP layer waits as MtpDrafter says, but in a place of its own on the GPU, and not for long: what a sequence that does not
// draft has waiting is run when it is more than a few rows, so that the places are few. A chain's head is run for its draft even when it
// was run before, for its page's sake: then it stores nothing.
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

class DeviceDrafter {
 public:
  // Hidden states that are kept on the GPU at most: model::StepLimits::kept_rows.
  static int64_t kept_rows(int64_t num_sequences) { return num_sequences * kMaxWaiting; }

  // `glm` must have an MTP layer and a GPU. All outlive this object.
  DeviceDrafter(model::Glm& glm, model::KvCache& cache, Verifier& verifier);

  // Drops what is kept of these requests.
  void forget(std::span<const sched::RequestId> released);

  // Puts the passes of the chains on the GPU's queue. drafts[i], empty at first, gets as many tokens as plan.items[i] may have, which are
  // not known: 0. `inputs` was started with the plan; changes[i] are those of item i (Verifier::add_changes), as its rows of draws say.
  // Errors, as those of the others: a GPU's.
  Result<> draft(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, std::span<const kernels::DrawRow> draws,
                 std::span<const kernels::LogitChange> changes, std::vector<Draft>& drafts);
  // The place of each row of plan_rows(plan, drafts), for model::QueuedStep. Good until the next draft().
  std::span<const int32_t> token_places(const sched::BatchPlan& plan, const std::vector<Draft>& drafts);
  // Behind that step: has the tokens sent for.
  Result<> fetch();
  // After Glm::finish(): the tokens themselves; a chain ends before a row that had no numbers.
  void take(std::vector<Draft>& drafts) const;

  // Takes what each item drew (one for each with sample set, in plan order), and `planned`, the sizes of the drafts as they were run. Keeps
  // the hidden states of what holds, and runs the rows of pages that are full now.
  Result<> keep(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, std::span<const int32_t> planned,
                std::span<const sched::SampledTokens> sampled);

 private:
  static constexpr size_t kMaxWaiting = 8;  // rows of a sequence

  struct State {
    int64_t end = 0;               // positions below were computed by the main model
    std::vector<int32_t> waiting;  // where the hidden states of the last positions before `end` are kept
    bool was_run = false;          // the one that waits was run, and is only kept as a chain's head
  };
  struct Chain {
    size_t item = 0;  // of the plan
    int32_t length = 0;
    int64_t end = 0;  // the position of its first draft
  };

  int32_t place();
  void free(std::vector<int32_t>& places);
  int32_t draft_place(size_t chain, int32_t depth) const { return static_cast<int32_t>(chain) * kernels::kMaxDrafted + depth; }

  model::Glm& glm_;
  model::KvCache& cache_;
  Verifier& verifier_;
  std::unordered_map<sched::RequestId, State> states_;
  int64_t num_places_ = 0;
  std::vector<int32_t> free_;     // places that are given back
  std::vector<Chain> chains_;     // of the last draft()
  std::vector<int32_t> drafted_;  // (chains, kMaxDrafted)
  // Of the step that is put together.
  std::vector<int32_t> hidden_rows_, token_places_, draft_places_, from_, to_;
  std::vector<kernels::DrawRow> rows_;
};

}  // namespace ingot::exec
