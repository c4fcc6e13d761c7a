// What a run was worth: counts, standard errors, warnings, and the difference from an earlier run on the same questions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "eval/paired.h"
#include "eval/runner.h"
#include "eval/task.h"

namespace ingot::eval {

// One accuracy with what it is worth.
struct Accuracy {
  std::string name;
  int64_t right = 0, n = 0;
  int64_t clusters = 0;   // questions; fewer than n with repeats
  quant::Interval share;  // 95 %: Wilson's, or the normal one over questions with repeats
  double standard_error = 0;
};

struct Report {
  Accuracy main;
  std::vector<Accuracy> marks;                                  // further rules
  std::vector<Accuracy> groups;                                 // in the order in which they first occur
  std::vector<std::pair<std::string, int64_t>> finish_reasons;  // most frequent first
  int64_t cut = 0;                                              // by max_tokens
  int64_t errors = 0;                                           // refused by the server; counted as wrong
  int64_t no_answer = 0;                                        // nothing to score was found
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

Report make_report(const Task& task, const std::vector<Item>& items);

// Pairs by id with the items of an earlier result. `flag`, which gave it, begins the errors: items without `id` and `ok`, or no id in
// common.
Result<PairedDifference> difference_from(const Json& earlier, std::string_view flag, const std::vector<Item>& items);
// The same for --baseline. Further errors: another task or rule.
Result<PairedDifference> compare_with(const Json& baseline, const Task& task, const std::vector<Item>& items);
// Something about the baseline that makes the difference say less than it seems; empty: nothing.
std::string baseline_warning(const Json& baseline, const Task& task, int64_t pairs);

struct ReportHead {
  std::string url, model;
  double seconds = 0;
  int64_t resumed = 0;
  std::filesystem::path baseline;  // empty: none
};

// Schema "ingot-eval/1". Carries `ok` of each item, so that it can be a later run's baseline.
Json report_json(const ReportHead& head, const Task& task, const Report& report, const std::vector<Item>& items,
                 const std::optional<PairedDifference>& difference);
std::string report_text(const ReportHead& head, const Task& task, const Report& report, const std::optional<PairedDifference>& difference);
// One a line: answers that were cut, errors.
std::vector<std::string> report_warnings(const Report& report);

}  // namespace ingot::eval
