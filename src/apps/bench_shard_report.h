// What `ingot bench shard` found, as values, text and JSON. No device, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench_step_figures.h"
#include "base/json.h"
#include "base/result.h"
#include "plan/node_projection.h"

namespace ingot::apps {

// All calls of one operation in one step.
struct OpLine {
  std::string op, kernel;  // its role, and what ran it
  int64_t calls = 0;
  double ms = 0;  // median over the runs
  double bytes = 0, flop = 0;
};

// A step of one shape.
struct ShardMode {
  std::string name;  // "decode 6", "mtp 6", "draft 1", "prefill 8192"
  int64_t rows = 0, sequences = 0, context = 0;
  bool graph = false;
  int64_t launches = 0;  // of the graph
  int runs = 0;
  Spread step_ms;     // from the first kernel to the last; on the CPU as wall_ms
  Spread wall_ms;     // of the call: upload, step, logits to the host
  double ops_ms = 0;  // of the step with every operation timed
  std::vector<OpLine> ops;
  double expected_experts = 0, hit_experts = 0;  // that are sent a row; hit: in the MoE layer that ran last

  double bytes() const;
  double flop() const;
};

// The least time that the roofs allow an operation, in ms; 0 without roofs.
double bound_ms(const OpLine& op, const Roofs& roofs);

struct CheckLine {
  std::string name;
  double median = 0, worst = 0;                    // relative error of a row, over rows
  double limit = 0;                                // of the median
  bool passed() const { return median <= limit; }  // false for NaN
};

struct ShardReport {
  static constexpr int kVersion = 1;
  // What was run. Reports that differ in these are not of the same thing.
  std::string spec, weights, attention_weights, mtp_weights, kv_dtype, routing, device_matmul;
  int tp = 1;
  int64_t layers = 0, model_layers = 0, hidden_size = 0, moe_layers = 0;
  std::string device;
  int64_t weight_bytes = 0, cache_bytes = 0, l2_bytes = 0;
  double fill_seconds = 0;
  std::vector<std::string> notes;
  Roofs roofs;
  std::vector<ShardMode> modes;
  std::vector<CheckLine> checks;
};

Json to_json(const ShardReport& report);
// Errors: not such a report, or one of another version.
Result<ShardReport> shard_report_of(const Json& json);
inline constexpr const char* kShardSchema = "ingot.bench.shard";

std::string report_text(const ShardReport& report);

// The measurements that a projection needs; what is missing in the report stays empty.
plan::RankMeasurements rank_measurements(const ShardReport& report);
std::string projection_text(const plan::NodeProjection& projection);
Json to_json(const plan::NodeProjection& projection);

}  // namespace ingot::apps
