#include "eval/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

namespace ingot::eval {
namespace {

using quant::kZ95;

// Right or wrong of each item, beside its question.
class Counter {
 public:
  void add(const Item& item, bool ok) { items_.emplace_back(item.cluster.empty() ? item.id : item.cluster, ok ? 1.0 : 0.0); }
  Accuracy accuracy(std::string name) const {
    Accuracy a;
    a.name = std::move(name);
    const ClusteredMean mean = clustered_mean(items_);
    a.n = mean.items;
    a.clusters = mean.clusters;
    for (const auto& [cluster, ok] : items_) a.right += ok > 0;
    a.standard_error = mean.standard_error;
    if (a.clusters == a.n)
      a.share = quant::wilson(a.right, a.n);
    else
      a.share = {mean.mean, std::max(0.0, mean.mean - kZ95 * mean.standard_error), std::min(1.0, mean.mean + kZ95 * mean.standard_error)};
    return a;
  }

 private:
  std::vector<std::pair<std::string, double>> items_;
};

// Counters by name, in the order in which the names came.
class Counters {
 public:
  Counter& operator[](const std::string& name) {
    const auto [it, is_new] = index_.try_emplace(name, counters_.size());
    if (is_new) counters_.emplace_back(name, Counter{});
    return counters_[it->second].second;
  }
  std::vector<Accuracy> accuracies() const {
    std::vector<Accuracy> all;
    for (const auto& [name, counter] : counters_) all.push_back(counter.accuracy(name));
    return all;
  }

 private:
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::pair<std::string, Counter>> counters_;
};

Json number(double value) { return std::isnan(value) ? Json() : Json(value); }

Json accuracy_json(const Accuracy& a) {
  Json json = {{"name", a.name},
               {"right", a.right},
               {"n", a.n},
               {"accuracy", number(a.share.value)},
               {"standard_error", number(a.standard_error)},
               {"low", number(a.share.low)},
               {"high", number(a.share.high)}};
  if (a.clusters != a.n) json["questions"] = a.clusters;
  return json;
}

Json difference_json(const ReportHead& head, const PairedDifference& d) {
  return {{"file", head.baseline.string()},
          {"pairs", d.pairs},
          {"questions", d.clusters},
          {"difference", d.difference.value},
          {"low", d.difference.low},
          {"high", d.difference.high},
          {"p", d.p},
          {"test", d.is_exact() ? "McNemar, exact" : "normal, over questions"},
          {"lost", d.lost},
          {"won", d.won},
          {"questions_to_resolve", d.questions_to_resolve ? Json(*d.questions_to_resolve) : Json()},
          {"resolvable_difference", number(d.resolvable)}};
}

std::string accuracy_line(const Accuracy& a, std::string_view indent) {
  return fmt::format("{:<28} {:>5} of {:>5}  {:6.2f} %  [{:.2f}, {:.2f}]  standard error {:.2f}{}\n", fmt::format("{}{}", indent, a.name),
                     a.right, a.n, 100 * a.share.value, 100 * a.share.low, 100 * a.share.high, 100 * a.standard_error,
                     a.clusters == a.n ? "" : fmt::format(" over {} questions", a.clusters));
}

std::string difference_text(const ReportHead& head, const PairedDifference& d) {
  std::string text = fmt::format("against {}: {:+.2f} points  [{:+.2f}, {:+.2f}], {} pairs, {} lost, {} won, {} p {:.3g}\n",
                                 head.baseline.string(), 100 * d.difference.value, 100 * d.difference.low, 100 * d.difference.high, d.pairs,
                                 d.lost.size(), d.won.size(), d.test(), d.p);
  const bool is_resolved = d.p < 0.05;
  if (is_resolved)
    text += "  resolved: chance alone makes so uneven a split less than once in twenty times\n";
  else if (d.questions_to_resolve)
    text += fmt::format("  not resolved: a difference like this one needs about {} questions (5 %, power 80 %)\n", *d.questions_to_resolve);
  else
    text += "  no difference seen\n";
  if (!is_resolved && !std::isnan(d.resolvable))
    text += fmt::format("  {} questions resolve {:.2f} points at this share of answers that differ\n", d.clusters, 100 * d.resolvable);
  return text;
}

}  // namespace

Report make_report(const Task& task, const std::vector<Item>& items) {
  Report report;
  Counter main;
  Counters marks, groups;
  std::map<std::string, int64_t> reasons;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    main.add(item, item.score.ok);
    for (const auto& [name, ok] : item.score.marks) marks[name].add(item, ok);
    for (const auto& [name, value] : task.questions[i].groups) groups[name == "set" ? value : name + " " + value].add(item, item.score.ok);
    ++reasons[item.finish_reason];
    report.cut += item.finish_reason == "length";
    report.errors += item.finish_reason == "error";
    report.no_answer += item.score.no_answer;
    report.prompt_tokens += item.prompt_tokens;
    report.cached_tokens += item.cached_tokens;
    report.completion_tokens += item.completion_tokens;
  }
  report.main = main.accuracy(task.first_mark.empty() ? "accuracy" : task.first_mark);
  report.marks = marks.accuracies();
  report.groups = groups.accuracies();
  if (report.groups.size() == 1) report.groups.clear();  // the whole again
  report.finish_reasons.assign(reasons.begin(), reasons.end());
  std::stable_sort(report.finish_reasons.begin(), report.finish_reasons.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return report;
}

Result<PairedDifference> difference_from(const Json& earlier, std::string_view flag, const std::vector<Item>& items) {
  if (!earlier.is_object() || !earlier.contains("items") || !earlier["items"].is_array())
    return fail_hint("give what --out wrote; of two files, the one with .json at the end", "{}: the file has no `items`", flag);
  std::unordered_map<std::string, bool> before;
  for (const Json& item : earlier["items"]) {
    if (!item.is_object() || !item.contains("id") || !item["id"].is_string() || !item.contains("ok") || !item["ok"].is_boolean())
      return fail("{}: an item without `id` and `ok`", flag);
    before[item["id"].get<std::string>()] = item["ok"].get<bool>();
  }
  std::vector<Pair> pairs;
  for (const Item& item : items)
    if (const auto it = before.find(item.id); it != before.end()) pairs.push_back({item.id, item.cluster, it->second, item.score.ok});
  if (pairs.empty()) return fail("{}: none of its ids is in this run", flag);
  return paired_difference(pairs);
}

Result<PairedDifference> compare_with(const Json& baseline, const Task& task, const std::vector<Item>& items) {
  for (const auto& [name, value] : {std::pair("task", task.name), std::pair("rule", task.rule)})
    if (baseline.contains(name) && baseline[name] != value)
      return fail("--baseline: {} is {} there and \"{}\" here", name, baseline[name].dump(), value);
  return difference_from(baseline, "--baseline", items);
}

std::string baseline_warning(const Json& baseline, const Task& task, int64_t pairs) {
  if (pairs < static_cast<int64_t>(task.questions.size()))
    return fmt::format("the baseline has {} of these {} questions; the difference is over those", pairs, task.questions.size());
  if (!baseline.contains("prompts_sha256")) return {};
  if (baseline["items"].size() != task.questions.size())
    return fmt::format("the baseline has {} questions, these are {}: whether both were asked with the same settings is not checked",
                       baseline["items"].size(), task.questions.size());
  if (baseline["prompts_sha256"] != prompts_sha256(task))
    return "the baseline was asked other prompts, or with other settings (prompts_sha256 differs)";
  return {};
}

Json report_json(const ReportHead& head, const Task& task, const Report& report, const std::vector<Item>& items,
                 const std::optional<PairedDifference>& difference) {
  Json json = {{"schema", "ingot-eval/1"},
               {"task", task.name},
               {"rule", task.rule},
               {"about", task.about},
               {"url", head.url},
               {"model", head.model},
               {"prompts_sha256", prompts_sha256(task)}};
  if (!task.not_scored.empty()) json["not_scored"] = task.not_scored;
  if (!task.secret && !task.questions.empty()) json["first_request"] = task.questions.front().body;
  json["result"] = accuracy_json(report.main);
  for (const Accuracy& mark : report.marks) json["marks"].push_back(accuracy_json(mark));
  for (const Accuracy& group : report.groups) json["groups"].push_back(accuracy_json(group));
  for (const auto& [reason, count] : report.finish_reasons) json["finish_reasons"][reason] = count;
  json["no_answer"] = report.no_answer;
  json["errors"] = report.errors;
  json["usage"] = {
      {"prompt_tokens", report.prompt_tokens}, {"cached_tokens", report.cached_tokens}, {"completion_tokens", report.completion_tokens}};
  json["seconds"] = head.seconds;
  json["resumed"] = head.resumed;
  json["warnings"] = report_warnings(report);
  if (difference) json["baseline"] = difference_json(head, *difference);
  json["items"] = Json::array();
  for (const Item& item : items) {
    json["items"].push_back({{"id", item.id}, {"ok", item.score.ok}});
    if (!item.cluster.empty()) json["items"].back()["cluster"] = item.cluster;
  }
  return json;
}

std::string report_text(const ReportHead& head, const Task& task, const Report& report, const std::optional<PairedDifference>& difference) {
  std::string text = fmt::format("{} ({}), {} at {}\n", task.name, task.rule, head.model, head.url);
  text += fmt::format("rule: {}\n", task.about);
  if (!task.not_scored.empty()) text += fmt::format("not scored: {}\n", task.not_scored);
  text += accuracy_line(report.main, "");
  for (const Accuracy& mark : report.marks) text += accuracy_line(mark, "");
  for (const Accuracy& group : report.groups) text += accuracy_line(group, "  ");
  std::vector<std::string> reasons;
  for (const auto& [reason, count] : report.finish_reasons)
    reasons.push_back(fmt::format("{} {}", reason.empty() ? "none" : reason, count));
  text += fmt::format("finish reasons: {}; without an answer to score: {}; errors: {}\n", fmt::join(reasons, ", "), report.no_answer,
                      report.errors);
  text += fmt::format("tokens: {} in ({} cached), {} out; {:.1f} s\n", report.prompt_tokens, report.cached_tokens, report.completion_tokens,
                      head.seconds);
  if (difference) text += difference_text(head, *difference);
  return text;
}

std::vector<std::string> report_warnings(const Report& report) {
  std::vector<std::string> warnings;
  if (report.cut > 0)
    warnings.push_back(fmt::format("{} of {} answers were cut off by max_tokens: they may be wrong for that alone; give more --max-tokens",
                                   report.cut, report.main.n));
  if (report.errors > 0) warnings.push_back(fmt::format("{} questions were refused by the server and count as wrong", report.errors));
  return warnings;
}

}  // namespace ingot::eval
