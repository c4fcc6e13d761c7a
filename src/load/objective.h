// Service-level objectives as values: "ttft_p95<=5s,tpot_p95<=50ms". Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ingot::load {

struct Objective {
  enum class Metric : uint8_t { ttft, tpot, itl, e2e };
  Metric metric = Metric::ttft;
  double percentile = 0;  // 0: of every request by itself
  double limit_ms = 0;

  std::string text() const;
  std::string metric_text() const;  // "ttft_p95"
};

// `with_percentile`: each one needs it (of a run), else none may have it (of a request). Errors: what is wrong with which part.
Result<std::vector<Objective>> parse_objectives(std::string_view text, bool with_percentile);

}  // namespace ingot::load
