// GlmRunner: runs a plan on the model. Owns the model, its cache, the threads, and what drafts and draws. One thread calls it: the
// engine's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "exec/batch_inputs.h"
#include "exec/mtp_drafter.h"
#include "exec/runner.h"
#include "exec/verify.h"
#include "model/glm.h"
#include "sched/draft_policy.h"

namespace ingot::exec {

struct GlmRunnerOptions {
  bool speculate = false;  // keep up the MTP layer and draft where the plan allows; the model must have one
  VerifyOptions verify;
};

class GlmRunner final : public Runner {
 public:
  // The cache must be made for the model's config; its page size is that of the plans.
  GlmRunner(std::shared_ptr<model::Glm> model, model::KvCache cache, std::shared_ptr<ThreadPool> pool,
            const GlmRunnerOptions& options = {});
  GlmRunner(const GlmRunner&) = delete;  // the drafter knows where the cache lies
  GlmRunner& operator=(const GlmRunner&) = delete;

  // Errors: logits that are no numbers, naming request and token; a GPU that failed.
  Result<sched::BatchResult> run(const sched::BatchPlan& plan) override;

 private:
  std::shared_ptr<model::Glm> model_;
  model::KvCache cache_;
  std::shared_ptr<ThreadPool> pool_;
  BatchInputs inputs_;
  Verifier verifier_;
  std::optional<MtpDrafter> drafter_;
  std::vector<Draft> drafts_;  // one an item
  std::vector<float> logits_;  // (rows asked for, vocab_size)
  std::vector<float> hidden_;  // (rows, hidden_size); empty without a drafter
};

// Times steps of the model and passes of its MTP layer over random tokens of one sequence, in the cache's first pages, whose contents are
// lost. `max_rows`: of a step. Takes some dozen steps. Errors: a GPU's.
Result<sched::StepCost> measure_step_cost(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows);

}  // namespace ingot::exec
