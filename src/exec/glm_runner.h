// GlmRunner: runs a plan on the model. Owns the model, its cache, the threads and the sampler. One thread calls it: the engine's.
#pragma once

#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "exec/batch_inputs.h"
#include "exec/runner.h"
#include "exec/sampler.h"
#include "model/glm.h"

namespace ingot::exec {

class GlmRunner final : public Runner {
 public:
  // The cache must be made for the model's config; its page size is that of the plans.
  GlmRunner(std::shared_ptr<model::Glm> model, model::KvCache cache, std::shared_ptr<ThreadPool> pool);

  // Errors: logits that are no numbers, naming request and token.
  Result<sched::BatchResult> run(const sched::BatchPlan& plan) override;

 private:
  std::shared_ptr<model::Glm> model_;
  model::KvCache cache_;
  std::shared_ptr<ThreadPool> pool_;
  BatchInputs inputs_;
  Sampler sampler_;
  std::vector<float> logits_;  // (rows asked for, vocab_size)
};

}  // namespace ingot::exec
