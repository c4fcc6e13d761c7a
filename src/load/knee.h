// The highest rate that holds an objective: a search in steps, repeated with other seeds, and the interval that the repeats leave. Pure:
// runs are made by a function.
#pragma once

#include <functional>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "load/figures.h"

namespace ingot::load {

struct KneePoint {
  double rate = 0;
  int repeat = 0;
  Figures figures;
  double worst = 0;  // greatest value / limit of the objectives; infinite when requests failed
  bool holds = false;
  bool kept_up = true;  // answers came nearly as fast as requests were sent; else a queue grew, and a longer run may not hold
};

struct KneeOptions {
  std::vector<Objective> objectives;
  double start_rate = 1;
  double tolerance = 0.05;  // a repeat's search ends when the rates that hold and that fail are so close
  int repeats = 3;
  double least_success = 0.99;  // a rate that loses more requests does not hold
};

struct Knee {
  std::vector<KneePoint> points;  // in order of running
  std::vector<double> estimates;  // of each repeat
  double rate = 0;                // their mean
  // 95 %: of the mean by Student's t over the repeats; of one repeat the rates between which it lies.
  double low = 0, high = 0;
  bool is_bounded = true;  // false: no rate failed, or none held, before the search gave up
};

// Greatest value / limit of the objectives; infinite when too many requests failed or a value is missing. A rate holds at 1 and below.
double worst_share(const KneeOptions& options, const Figures& figures);
// Which run's figures a report shows beside the curve, in words.
const char* shown_run(const Knee& knee);

// `run` makes a run at a rate; `repeat` counts the searches from 0. Errors: those of `run`.
Result<Knee> find_knee(const KneeOptions& options, const std::function<Result<Figures>(double rate, int repeat)>& run);

Json to_json(const Knee& knee, const KneeOptions& options);
// The whole curve, a row a run, as the article does.
std::string knee_text(const Knee& knee, const KneeOptions& options);

}  // namespace ingot::load
