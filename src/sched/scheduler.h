// Continuous batching with chunked prefill over a paged pool: request -> sequence -> batch plan -> commit.
// One thread owns it. plan() is const over the pool's content it hands out; commit() cannot fail.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "sched/batch_plan.h"
#include "sched/request.h"

namespace ingot::sched {

struct SchedulerOptions {
  int64_t num_pages = 0;
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 512;  // token budget of a step, shared by decodes and prefill chunks
  int64_t max_running_requests = 32;
  int64_t context_length = 0;  // prompt + completion of one sequence
};

}  // namespace ingot::sched
