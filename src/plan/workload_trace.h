// Recorded loads read from files: Mooncake's and Azure's traces, and prompts as JSON lines. Called by plan_requests().
#pragma once

#include <cstdint>
#include <vector>

#include "plan/workload.h"

namespace ingot::plan {

inline constexpr int64_t kTraceBlockTokens = 512;  // of one of Mooncake's hash ids

struct RecordedLoad {
  std::vector<PlannedRequest> requests;
  bool has_times = false;  // arrival_s are set, from the first request on
};

// At most `limit` requests. With length_scale every length is multiplied, of the shared blocks, too, so that what was shared stays so.
// Errors name file, line and field.
Result<RecordedLoad> read_recorded_load(const Workload& workload, int64_t limit, uint64_t seed);

}  // namespace ingot::plan
