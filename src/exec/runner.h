// The one virtual call a step. The real one runs the model; tests script the logits; the planner simulates time.
#pragma once

#include "base/result.h"
#include "sched/batch_plan.h"

namespace ingot::exec {

class Runner {
 public:
  virtual ~Runner() = default;
  // Runs all items and draws the tokens asked for. An error is fatal for the engine: all clients are told.
  virtual Result<sched::BatchResult> run(const sched::BatchPlan& plan) = 0;
};

}  // namespace ingot::exec
