#include "apps/bench_compare.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/file_map.h"
#include "load/report.h"

namespace ingot::apps {
namespace {

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
  std::string text =
      fmt::format("\n{}: step {:.3f} ms -> {:.3f} ms, x{:.3f} (a {:.3f}-{:.3f}, b {:.3f}-{:.3f})\n", a.name, a.step_ms.median,
                  b.step_ms.median, b.step_ms.median / a.step_ms.median, a.step_ms.least, a.step_ms.most, b.step_ms.least, b.step_ms.most);
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

bool is_load_report(const Json& json) { return json.is_object() && json.value("kind", Json()) == load::kReportKind; }

Result<std::string> compare_files(const std::string& path_a, const std::string& path_b) {
  INGOT_ASSIGN(const Json a, read_json(path_a));
  INGOT_ASSIGN(const Json b, read_json(path_b));
  if (is_load_report(a) || is_load_report(b)) return load::compare_reports(a, b);
  const auto read = [](const Json& json, const std::string& path) -> Result<ShardReport> {
    auto report = shard_report_of(json);
    if (!report) return fail_hint(report.error().hint, "{}: {}", path, report.error().message);
    return report;
  };
  INGOT_ASSIGN(const ShardReport shard_a, read(a, path_a));
  INGOT_ASSIGN(const ShardReport shard_b, read(b, path_b));
  return compare_text(shard_a, shard_b);
}

}  // namespace

std::string compare_text(const ShardReport& a, const ShardReport& b) {
  std::string text;
  const auto differs = [&](const char* what, const auto& x, const auto& y) {
    if (x != y) text += fmt::format("differs: {} is {} in a and {} in b\n", what, x, y);
  };
  differs("the model", a.spec, b.spec);
  differs("tp", a.tp, b.tp);
  differs("layers", a.layers, b.layers);
  differs("weights", a.weights, b.weights);
  differs("attention weights", a.attention_weights, b.attention_weights);
  differs("MTP weights", a.mtp_weights, b.mtp_weights);
  differs("cache type", a.kv_dtype, b.kv_dtype);
  differs("routing", a.routing, b.routing);
  differs("device", a.device, b.device);
  differs("products", a.device_matmul, b.device_matmul);
  text += fmt::format("roofs: {:.3f} -> {:.3f} TB/s, {:.1f} -> {:.1f} TFLOP/s\n", a.roofs.bytes_per_second / 1e12,
                      b.roofs.bytes_per_second / 1e12, a.roofs.flop_per_second / 1e12, b.roofs.flop_per_second / 1e12);
  const auto find = [](const ShardReport& r, const std::string& name) {
    return std::find_if(r.modes.begin(), r.modes.end(), [&](const ShardMode& m) { return m.name == name; });
  };
  for (const ShardMode& mode : a.modes) {
    const auto other = find(b, mode.name);
    text += other == b.modes.end() ? fmt::format("\n{}: in a alone\n", mode.name) : mode_text(mode, *other);
  }
  for (const ShardMode& mode : b.modes)
    if (find(a, mode.name) == a.modes.end()) text += fmt::format("\n{}: in b alone\n", mode.name);
  return text;
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
