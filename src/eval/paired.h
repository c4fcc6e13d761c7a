// Two runs on the same questions: how far apart they are, and whether that is more than chance. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/statistics.h"

namespace ingot::eval {

// One question under both runs.
struct Pair {
  std::string id;
  std::string cluster;  // repeats of one question share it; empty: the id
  bool before = false;
  bool now = false;
};

struct PairedDifference {
  int64_t pairs = 0;
  int64_t clusters = 0;           // fewer than pairs: with repeats
  std::vector<std::string> lost;  // right before, wrong now: McNemar's b
  std::vector<std::string> won;   // wrong before, right now: c
  quant::Interval difference;     // accuracy now minus before, with its 95 % interval
  double p = 1;                   // two-sided. Without repeats McNemar's exact test, with them a normal test over questions
  // Questions that would resolve the difference as observed (two-sided 5 %, power 80 %); none where no difference was observed.
  std::optional<int64_t> questions_to_resolve;
  // The least difference that so many questions resolve, at the observed share of pairs that differ; NaN where not even all of those
  // going one way would be resolved.
  double resolvable = 0;

  bool is_exact() const { return clusters == pairs; }  // which test gave p
  std::string_view test() const { return is_exact() ? "McNemar exact" : "normal test over questions"; }
};

// Without repeats the interval is Tango's score interval (T. Tango, Statistics in Medicine 17, 1998), which holds for few pairs that differ
// and agrees with McNemar's test; with them it is the normal one over the questions' mean differences.
PairedDifference paired_difference(std::span<const Pair> pairs);

// Tango's 95 % interval of (c - b) / n.
quant::Interval tango_interval(int64_t b, int64_t c, int64_t n);

// The standard error of a mean over clusters of unequal size: `ok` of each item beside the cluster it belongs to. With one item a cluster
// it is sqrt(p (1 - p) / n).
struct ClusteredMean {
  double mean = 0;  // NaN of nothing
  double standard_error = 0;
  int64_t items = 0;
  int64_t clusters = 0;
};
ClusteredMean clustered_mean(std::span<const std::pair<std::string, double>> items);

}  // namespace ingot::eval
