// What `ingot bench step` found, as values, text and JSON. No device, no clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_step_figures.h"
#include "base/json.h"
#include "base/result.h"

namespace ingot::apps {

// A decode step of `batch` sequences that see `context` positions, or the steps of one prompt.
struct StepLine {
  enum class Kind : uint8_t { decode, prefill };
  Kind kind = Kind::decode;
  int64_t batch = 1;    // sequences; of a prompt 1
  int64_t context = 0;  // of a prompt its length
  int64_t chunk = 0;    // of a prompt: rows of its steps
  int runs = 0;
  Spread ms;  // of the step, or of all steps of the prompt
  double bytes = 0, flop = 0;
  double hit_experts = 0;  // that are sent a row of a decode step, in the mean; 0: the model has none

  int64_t tokens() const { return kind == Kind::decode ? batch : context; }
  double tokens_per_second() const { return 1000 * static_cast<double>(tokens()) / ms.median; }
  std::string name() const;  // "decode 4 at 4096", "prefill 2000 in 512"
};

struct StepReport {
  static constexpr int kVersion = 1;
  BenchedModel model;
  Machine machine;
  double load_seconds = 0;
  int64_t cache_bytes = 0, resident_bytes = 0;  // resident: of the process, caches that were touched included
  std::vector<std::string> notes;
  Roofs roofs;
  std::vector<StepLine> lines;
};

Json to_json(const StepReport& report);
// Errors: not such a report, or one of another version.
Result<StepReport> step_report_of(const Json& json);
inline constexpr const char* kStepSchema = "ingot.bench.step";

std::string report_text(const StepReport& report);

}  // namespace ingot::apps
