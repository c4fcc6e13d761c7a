// GlmRunner: runs a plan on the model. Owns the model, its cache, the threads, and what drafts and draws. One thread calls it: the
// engine's.
//
// On a GPU a step is one wait: drafts, verification and draws stay there, and tokens come back. The rule of rejection (verify.h) needs
// distributions of both models on the host: then all logits and hidden states go there, as on the CPU.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "exec/batch_inputs.h"
#include "exec/device_drafter.h"
#include "exec/device_draws.h"
#include "exec/mtp_drafter.h"
#include "exec/prompt_scores.h"
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
  Result<sched::BatchResult> run_on_host(gpu::Stream& stream, const sched::BatchPlan& plan);
  Result<sched::BatchResult> run_on_device(gpu::Stream& stream, const sched::BatchPlan& plan);

  std::shared_ptr<model::Glm> model_;
  model::KvCache cache_;
  std::shared_ptr<ThreadPool> pool_;
  BatchInputs inputs_;
  Verifier verifier_;
  PromptScores scores_;
  std::vector<Draft> drafts_;  // one an item
  // Where the host draws.
  std::optional<MtpDrafter> drafter_;
  std::vector<float> logits_;  // (rows asked for, vocab_size)
  std::vector<float> hidden_;  // (rows, hidden_size); empty when nobody asks for it
  // Where a GPU does.
  std::optional<DeviceDraws> device_draws_;
  std::optional<DeviceDrafter> device_drafter_;
  std::vector<int32_t> planned_;  // sizes of the drafts before it was known what is in them
};

// Times steps of the model and passes of its MTP layer over random tokens of one sequence, in the cache's first pages, whose contents are
// lost. `max_rows`: of a step. Takes some dozen steps. Errors: a GPU's.
Result<sched::StepCost> measure_step_cost(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows);

}  // namespace ingot::exec
