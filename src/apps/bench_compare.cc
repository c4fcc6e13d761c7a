#include "apps/bench_compare.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_map.h"
#include "load/report.h"

namespace ingot::apps {
namespace {

// What makes two reports unlike.
class Differences {
 public:
  template <class T>
  void add(const char* what, const T& a, const T& b) {
    if (a != b) text += fmt::format("differs: {} is {} in a and {} in b\n", what, a, b);
  }
  void add(const BenchedModel& a, const BenchedModel& b) {
    add("the model", a.name, b.name);
    add("layers", a.layers, b.layers);
    add("weights", a.weights, b.weights);
    add("bytes of weights", a.weight_bytes, b.weight_bytes);
    add("cache type", a.kv_cache_dtype, b.kv_cache_dtype);
    add("products", a.device_matmul, b.device_matmul);
  }
  void add(const Machine& a, const Machine& b) {
    add("device", a.device, b.device);
    add("processor", a.processor, b.processor);
    add("processors", a.processors, b.processors);
    add("threads", a.threads, b.threads);
  }
  void add(const Roofs& a, const Roofs& b) {
    text += fmt::format("roofs: {:.1f} -> {:.1f} GB/s, {:.1f} -> {:.1f} GFLOP/s\n", a.bytes_per_second / 1e9, b.bytes_per_second / 1e9,
                        a.flop_per_second / 1e9, b.flop_per_second / 1e9);
  }
  std::string text;
};

std::string pair_text(const std::string& name, const Spread& a, const Spread& b) {
  return fmt::format("{}: {:.3f} ms -> {:.3f} ms, x{:.3f} (a {:.3f}-{:.3f}, b {:.3f}-{:.3f})\n", name, a.median, b.median,
                     b.median / a.median, a.least, a.most, b.least, b.most);
}

// Calls both(a, b) for those of one name, in the order of a, and tells those that one report has alone.
template <class Item, class Name, class Both>
std::string paired_text(const std::vector<Item>& a, const std::vector<Item>& b, Name name, Both both) {
  std::string text;
  const auto find = [&](const std::vector<Item>& items, const std::string& wanted) {
    return std::find_if(items.begin(), items.end(), [&](const Item& item) { return name(item) == wanted; });
  };
  for (const Item& item : a) {
    const auto other = find(b, name(item));
    text += other == b.end() ? fmt::format("{}: in a alone\n", name(item)) : both(item, *other);
  }
  for (const Item& item : b)
    if (find(a, name(item)) == a.end()) text += fmt::format("{}: in b alone\n", name(item));
  return text;
}

struct Pair {
  std::string op, kernel_a, kernel_b;
  double a = 0, b = 0;
};

// By operation: another kernel for it is what one compares.
std::map<std::string, OpLine> by_op(const ShardMode& mode) {
  std::map<std::string, OpLine> ops;
  for (const OpLine& op : mode.ops) {
    OpLine& line = ops[op.op];
    line.kernel += (line.kernel.empty() ? "" : "+") + op.kernel;
    line.ms += op.ms;
  }
  return ops;
}

std::string mode_text(const ShardMode& a, const ShardMode& b) {
  std::string text = pair_text("\n" + a.name + ": step", a.step_ms, b.step_ms);
  const auto ops_a = by_op(a), ops_b = by_op(b);
  std::vector<Pair> pairs;
  std::vector<std::string> only_a, only_b;
  for (const auto& [op, line] : ops_a) {
    const auto other = ops_b.find(op);
    if (other == ops_b.end())
      only_a.push_back(fmt::format("{} {:.4f} ms", op, line.ms));
    else
      pairs.push_back({op, line.kernel, other->second.kernel, line.ms, other->second.ms});
  }
  for (const auto& [op, line] : ops_b)
    if (!ops_a.contains(op)) only_b.push_back(fmt::format("{} {:.4f} ms", op, line.ms));
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) { return std::abs(x.b - x.a) > std::abs(y.b - y.a); });
  for (const Pair& p : pairs)
    text += fmt::format("  {:<26} {:>9.4f} -> {:>9.4f} ms  x{:.3f}  {}\n", p.op, p.a, p.b, p.b / p.a,
                        p.kernel_a == p.kernel_b ? p.kernel_a : p.kernel_a + " -> " + p.kernel_b);
  if (!only_a.empty()) text += fmt::format("  in a alone: {}\n", fmt::join(only_a, ", "));
  if (!only_b.empty()) text += fmt::format("  in b alone: {}\n", fmt::join(only_b, ", "));
  return text;
}

Result<Json> read_json(const std::string& path) {
  INGOT_ASSIGN(const FileMap file, FileMap::open(path));
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

// The command whose report this is; empty: of none that is known.
std::string_view command_of(const Json& json) {
  if (!json.is_object()) return {};
  if (json.value("kind", Json()) == load::kReportKind) return load::kReportKind;
  const Json schema = json.value("schema", Json());
  for (const auto& [known, command] : {std::pair{kShardSchema, "ingot bench shard"}, std::pair{kStepSchema, "ingot bench step"},
                                       std::pair{kKernelsSchema, "ingot bench kernels"}})
    if (schema == known) return command;
  return {};
}

template <class Report>
Result<std::string> compare_as(Result<Report> (*read)(const Json&), const Json& a, const std::string& path_a, const Json& b,
                               const std::string& path_b) {
  const auto named = [&](const Json& json, const std::string& path) -> Result<Report> {
    auto report = read(json);
    if (!report) return fail_hint(report.error().hint, "{}: {}", path, report.error().message);
    return report;
  };
  INGOT_ASSIGN(const Report report_a, named(a, path_a));
  INGOT_ASSIGN(const Report report_b, named(b, path_b));
  return compare_text(report_a, report_b);
}

Result<std::string> compare_files(const std::string& path_a, const std::string& path_b) {
  INGOT_ASSIGN(const Json a, read_json(path_a));
  INGOT_ASSIGN(const Json b, read_json(path_b));
  const std::string_view command = command_of(a), other = command_of(b);
  for (const auto& [path, its] : {std::pair{&path_a, command}, std::pair{&path_b, other}})
    if (its.empty())
      return fail_hint("of `ingot bench serve`, `single`, `step`, `kernels` or `shard`, with --json", "{} is no report", *path);
  if (command != other)
    return fail("{} is a report of `{}` and {} one of `{}`: only reports of one kind can be compared", path_a, command, path_b, other);
  if (command == load::kReportKind) return load::compare_reports(a, b);
  if (command == "ingot bench step") return compare_as(step_report_of, a, path_a, b, path_b);
  if (command == "ingot bench kernels") return compare_as(kernels_report_of, a, path_a, b, path_b);
  return compare_as(shard_report_of, a, path_a, b, path_b);
}

}  // namespace

std::string compare_text(const ShardReport& a, const ShardReport& b) {
  Differences d;
  d.add("the model", a.spec, b.spec);
  d.add("tp", a.tp, b.tp);
  d.add("layers", a.layers, b.layers);
  d.add("weights", a.weights, b.weights);
  d.add("attention weights", a.attention_weights, b.attention_weights);
  d.add("MTP weights", a.mtp_weights, b.mtp_weights);
  d.add("cache type", a.kv_dtype, b.kv_dtype);
  d.add("routing", a.routing, b.routing);
  d.add("device", a.device, b.device);
  d.add("products", a.device_matmul, b.device_matmul);
  d.add(a.roofs, b.roofs);
  return d.text + paired_text(
                      a.modes, b.modes, [](const ShardMode& m) { return m.name; }, mode_text);
}

std::string compare_text(const StepReport& a, const StepReport& b) {
  Differences d;
  d.add(a.model, b.model);
  d.add(a.machine, b.machine);
  d.add(a.roofs, b.roofs);
  return d.text + paired_text(
                      a.lines, b.lines, [](const StepLine& line) { return line.name(); },
                      [](const StepLine& x, const StepLine& y) { return pair_text(x.name(), x.ms, y.ms); });
}

std::string compare_text(const KernelsReport& a, const KernelsReport& b) {
  Differences d;
  d.add(a.model, b.model);
  d.add(a.machine, b.machine);
  d.add(a.roofs, b.roofs);
  const auto step = [](const KernelsStep& s) { return fmt::format("{} rows of {} sequences at {}", s.rows, s.sequences, s.context); };
  const auto op = [](const KernelLine& o) { return fmt::format("  {:<22} {:<20}", o.op, o.shape); };
  const auto ops_text = [&](const KernelLine& x, const KernelLine& y) {
    const std::string kernels = x.kernel == y.kernel ? x.kernel : x.kernel + " -> " + y.kernel;
    return fmt::format("{} {:>10.1f} -> {:>10.1f} us  x{:.3f}  {}\n", op(x), 1000 * x.ms.median, 1000 * y.ms.median,
                       y.ms.median / x.ms.median, kernels);
  };
  const auto steps_text = [&](const KernelsStep& x, const KernelsStep& y) {
    return pair_text("\n" + step(x), x.ms, y.ms) + paired_text(x.ops, y.ops, op, ops_text);
  };
  return d.text + paired_text(a.steps, b.steps, step, steps_text);
}

int run_bench_compare(const BenchCompareOptions& options) {
  const auto text = compare_files(options.a, options.b);
  if (!text) {
    fmt::print(stderr, "bench compare: {}\n", text.error().text());
    return 1;
  }
  fmt::print("a: {}\nb: {}\n{}", options.a, options.b, *text);
  return 0;
}

}  // namespace ingot::apps
