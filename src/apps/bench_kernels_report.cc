#include "apps/bench_kernels_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace ingot::apps {
namespace {

KernelsReport parse(const Json& j) {
  KernelsReport r;
  r.model = model_of(j.at("model"));
  r.machine = machine_of(j.at("machine"));
  for (const Json& note : j.at("notes")) r.notes.push_back(note);
  r.roofs = roofs_of(j.at("roofs"));
  for (const Json& s : j.at("steps")) {
    KernelsStep step{s.at("rows"), s.at("sequences"), s.at("context"), s.at("runs"), spread_of(s.at("ms")), s.at("hit_experts"), {}};
    for (const Json& o : s.at("ops"))
      step.ops.push_back(
          {o.at("op"), o.at("kernel"), o.at("shape"), o.at("calls"), spread_of(o.at("ms")), o.at("share"), o.at("bytes"), o.at("flop")});
    r.steps.push_back(std::move(step));
  }
  return r;
}

std::string step_text(const KernelsStep& step, const Roofs& roofs) {
  std::string text = fmt::format("\nrows {}, sequences {}, context {}: {:.3f} ms ({:.3f} to {:.3f}, {} runs) with every operation timed",
                                 step.rows, step.sequences, step.context, step.ms.median, step.ms.least, step.ms.most, step.runs);
  if (step.hit_experts > 0) text += fmt::format("; {:.1f} experts are sent a row", step.hit_experts);
  std::vector<KernelLine> ops = step.ops;
  std::stable_sort(ops.begin(), ops.end(), [](const KernelLine& a, const KernelLine& b) { return a.ms.median > b.ms.median; });
  size_t op_width = 2, shape_width = 5, kernel_width = 6;
  for (const KernelLine& op : ops) {
    op_width = std::max(op_width, op.op.size());
    shape_width = std::max(shape_width, op.shape.size());
    kernel_width = std::max(kernel_width, op.kernel.size());
  }
  text += fmt::format("\n  {:<{}}  {:<{}}  {:<{}} {:>5} {:>9} {:>9} {:>9} {:>6} {:>9} {:>9} {:>7} {:>8} {:>14}\n", "op", op_width, "shape",
                      shape_width, "kernel", kernel_width, "calls", "us", "least", "most", "share", "MB", "MFLOP", "GB/s", "GFLOP/s",
                      "of roof");
  for (const KernelLine& op : ops) {
    const double seconds = op.ms.median / 1000;
    text += fmt::format("  {:<{}}  {:<{}}  {:<{}} {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>5.1f}% {:>9.3f} {:>9.2f} {:>7.1f} {:>8.1f} {:>14}\n",
                        op.op, op_width, op.shape, shape_width, op.kernel, kernel_width, op.calls, 1000 * op.ms.median, 1000 * op.ms.least,
                        1000 * op.ms.most, 100 * op.share, op.bytes / 1e6, op.flop / 1e6, op.bytes / seconds / 1e9, op.flop / seconds / 1e9,
                        bound_text(op.bound(roofs), seconds));
  }
  return text;
}

}  // namespace

Bound KernelLine::bound(const Roofs& roofs) const {
  return bound_of(bytes, flop, ms.median / 1000, bytes / static_cast<double>(calls), roofs);
}

Json to_json(const KernelsReport& r) {
  Json j = {{"schema", kKernelsSchema}, {"version", KernelsReport::kVersion}, {"model", to_json(r.model)}, {"machine", to_json(r.machine)},
            {"notes", r.notes},         {"roofs", to_json(r.roofs)},          {"steps", Json::array()}};
  for (const KernelsStep& s : r.steps) {
    Json step = {{"rows", s.rows},      {"sequences", s.sequences},     {"context", s.context}, {"runs", s.runs},
                 {"ms", to_json(s.ms)}, {"hit_experts", s.hit_experts}, {"ops", Json::array()}};
    for (const KernelLine& o : s.ops) {
      const double seconds = o.ms.median / 1000;
      Json op = {{"op", o.op},
                 {"shape", o.shape},
                 {"kernel", o.kernel},
                 {"calls", o.calls},
                 {"ms", to_json(o.ms)},
                 {"share", o.share},
                 {"bytes", o.bytes},
                 {"flop", o.flop},
                 {"bytes_per_second", o.bytes / seconds},
                 {"flop_per_second", o.flop / seconds}};
      add_bound(op, o.bound(r.roofs), seconds);
      step["ops"].push_back(std::move(op));
    }
    j["steps"].push_back(std::move(step));
  }
  return j;
}

Result<KernelsReport> kernels_report_of(const Json& json) {
  return read_report(json, kKernelsSchema, KernelsReport::kVersion, "`ingot bench kernels`", parse);
}

std::string report_text(const KernelsReport& r) {
  std::string text = model_text(r.model) + r.machine.text() + "\n" + roofs_text(r.roofs);
  for (const std::string& note : r.notes) text += "note: " + note + "\n";
  for (const KernelsStep& step : r.steps) text += step_text(step, r.roofs);
  return text;
}

}  // namespace ingot::apps
