#include "apps/bench_step_report.h"

#include <fmt/core.h>

#include <utility>

namespace ingot::apps {
namespace {

Bound bound_of(const StepLine& line, const Roofs& roofs) {
  return bound_of(line.bytes, line.flop, line.ms.median / 1000, line.bytes, roofs);
}

StepReport parse(const Json& j) {
  StepReport r;
  r.model = model_of(j.at("model"));
  r.machine = machine_of(j.at("machine"));
  r.load_seconds = j.at("load_seconds");
  r.cache_bytes = j.at("cache_bytes");
  r.resident_bytes = j.at("resident_bytes");
  for (const Json& note : j.at("notes")) r.notes.push_back(note);
  r.roofs = roofs_of(j.at("roofs"));
  for (const Json& s : j.at("steps")) {
    StepLine line;
    line.kind = s.at("kind") == "prefill" ? StepLine::Kind::prefill : StepLine::Kind::decode;
    line.batch = s.at("batch");
    line.context = s.at("context");
    line.chunk = s.at("chunk");
    line.runs = s.at("runs");
    line.ms = spread_of(s.at("ms"));
    line.bytes = s.at("bytes");
    line.flop = s.at("flop");
    line.hit_experts = s.at("hit_experts");
    r.lines.push_back(line);
  }
  return r;
}

}  // namespace

std::string StepLine::name() const {
  return kind == Kind::decode ? fmt::format("decode {} at {}", batch, context) : fmt::format("prefill {} in {}", context, chunk);
}

Json to_json(const StepReport& r) {
  Json j = {{"schema", kStepSchema},
            {"version", StepReport::kVersion},
            {"model", to_json(r.model)},
            {"machine", to_json(r.machine)},
            {"load_seconds", r.load_seconds},
            {"cache_bytes", r.cache_bytes},
            {"resident_bytes", r.resident_bytes},
            {"notes", r.notes},
            {"roofs", to_json(r.roofs)},
            {"steps", Json::array()}};
  for (const StepLine& line : r.lines) {
    const double seconds = line.ms.median / 1000;
    Json step = {{"kind", line.kind == StepLine::Kind::decode ? "decode" : "prefill"},
                 {"batch", line.batch},
                 {"context", line.context},
                 {"chunk", line.chunk},
                 {"runs", line.runs},
                 {"ms", to_json(line.ms)},
                 {"tokens_per_second", line.tokens_per_second()},
                 {"hit_experts", line.hit_experts},
                 {"bytes", line.bytes},
                 {"flop", line.flop},
                 {"bytes_per_second", line.bytes / seconds},
                 {"flop_per_second", line.flop / seconds}};
    add_bound(step, bound_of(line, r.roofs), seconds);
    j["steps"].push_back(std::move(step));
  }
  return j;
}

Result<StepReport> step_report_of(const Json& json) {
  return read_report(json, kStepSchema, StepReport::kVersion, "`ingot bench step`", parse);
}

std::string report_text(const StepReport& r) {
  std::string text = model_text(r.model) + r.machine.text() + "\n";
  text += fmt::format("load {:.1f} ms; caches {:.1f} MB; resident at the end {:.1f} MB\n", 1000 * r.load_seconds,
                      static_cast<double>(r.cache_bytes) / 1e6, static_cast<double>(r.resident_bytes) / 1e6);
  text += roofs_text(r.roofs);
  for (const std::string& note : r.notes) text += "note: " + note + "\n";
  text += fmt::format("{:<22} {:>5} {:>10} {:>10} {:>10} {:>9} {:>8} {:>9} {:>14}\n", "step", "runs", "ms", "least", "most", "tok/s",
                      "GB/s", "GFLOP/s", "of roof");
  for (const StepLine& line : r.lines) {
    const double seconds = line.ms.median / 1000;
    text += fmt::format("{:<22} {:>5} {:>10.3f} {:>10.3f} {:>10.3f} {:>9.0f} {:>8.1f} {:>9.1f} {:>14}\n", line.name(), line.runs,
                        line.ms.median, line.ms.least, line.ms.most, line.tokens_per_second(), line.bytes / seconds / 1e9,
                        line.flop / seconds / 1e9, bound_text(bound_of(line, r.roofs), seconds));
  }
  return text;
}

}  // namespace ingot::apps
