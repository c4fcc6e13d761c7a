// What `ingot bench kernels` found, as values, text and JSON. No device, no clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_step_figures.h"
#include "base/json.h"
#include "base/result.h"

namespace ingot::apps {

// All calls of one operation of one shape in a step.
struct KernelLine {
  std::string op, kernel;  // its role, and what ran it
  std::string shape;       // as gpu::OpShape has it: "6 x 1024 x 256"
  int64_t calls = 0;
  Spread ms;         // over the runs
  double share = 0;  // of the time of all runs
  double bytes = 0, flop = 0;

  Bound bound(const Roofs& roofs) const;
};

// A step of so many rows.
struct KernelsStep {
  int64_t rows = 0, sequences = 0, context = 0;
  int runs = 0;
  Spread ms;               // with every operation timed
  double hit_experts = 0;  // that are sent a row, in the mean; 0: the model has none
  std::vector<KernelLine> ops;
};

struct KernelsReport {
  static constexpr int kVersion = 1;
  BenchedModel model;
  Machine machine;
  std::vector<std::string> notes;
  Roofs roofs;
  std::vector<KernelsStep> steps;
};

Json to_json(const KernelsReport& report);
// Errors: not such a report, or one of another version.
Result<KernelsReport> kernels_report_of(const Json& json);
inline constexpr const char* kKernelsSchema = "ingot.bench.kernels";

// Operations that take longest first.
std::string report_text(const KernelsReport& report);

}  // namespace ingot::apps
