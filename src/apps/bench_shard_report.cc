#include "apps/bench_shard_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace ingot::apps {
namespace {

// The better of triton_kernels and Marlin for gate_up, SwiGLU, down and the sum of 8 of one layer, us, on an H200 at the same shapes with
// MXFP4 weights (shared/anchors/peers-h200.md, section 1).
struct PeerRow {
  int tp;
  int64_t rows;
  double us;
};
constexpr PeerRow kPeers[] = {{8, 1, 27.7}, {8, 6, 64.5},  {8, 32, 189.7}, {8, 64, 253.0}, {8, 192, 271.0}, {8, 8192, 2243.3},
                              {4, 1, 33.6}, {4, 6, 104.1}, {4, 32, 299.8}, {4, 64, 404.9}, {4, 192, 460.6}, {4, 8192, 3790.7}};

bool is_experts(const std::string& op) { return op.starts_with("experts") || op == "combine"; }

std::string ratio_text(double value) { return value > 0 ? fmt::format("{:6.3f}", value) : "     -"; }

std::string ops_text(const ShardMode& mode, const Roofs& roofs) {
  std::vector<OpLine> ops = mode.ops;
  double total = 0;
  for (const OpLine& op : ops) total += op.ms;
  const auto lost = [&](const OpLine& op) { return op.ms - bound_ms(op, roofs); };
  std::sort(ops.begin(), ops.end(), [&](const OpLine& a, const OpLine& b) { return lost(a) > lost(b); });
  std::string text = fmt::format("  {:<26} {:<16} {:>6} {:>9} {:>6} {:>9} {:>10} {:>7} {:>8} {:>7} {:>6} {:>9}\n", "op", "kernel", "calls",
                                 "ms", "share", "GB", "GFLOP", "TB/s", "TFLOP/s", "of roof", "bound", "lost ms");
  OpLine all;
  for (const OpLine& op : ops) {
    const double bound = bound_ms(op, roofs);
    const bool by_bytes = roofs.bytes_per_second > 0 && op.bytes / roofs.bytes_per_second * 1000 >= bound * (1 - 1e-9);
    text += fmt::format("  {:<26} {:<16} {:>6} {:>9.4f} {:>5.1f}% {:>9.4f} {:>10.2f} {:>7.3f} {:>8.2f}  {} {:>6} {:>9.4f}\n", op.op,
                        op.kernel, op.calls, op.ms, 100 * op.ms / total, op.bytes / 1e9, op.flop / 1e9, op.bytes / op.ms / 1e9,
                        op.flop / op.ms / 1e9, ratio_text(bound / op.ms),
                        bound == 0 ? "-"
                        : by_bytes ? "bytes"
                                   : "flop",
                        lost(op));
    all.ms += op.ms;
    all.bytes += op.bytes;
    all.flop += op.flop;
    all.calls += op.calls;
  }
  double bounds = 0;
  for (const OpLine& op : ops) bounds += bound_ms(op, roofs);
  text += fmt::format("  {:<26} {:<16} {:>6} {:>9.4f} {:>5.1f}% {:>9.4f} {:>10.2f} {:>7.3f} {:>8.2f}  {} {:>6} {:>9.4f}\n", "all", "",
                      all.calls, all.ms, 100.0, all.bytes / 1e9, all.flop / 1e9, all.bytes / all.ms / 1e9, all.flop / all.ms / 1e9,
                      ratio_text(bounds / all.ms), "sum", all.ms - bounds);
  return text;
}

std::string peer_text(const ShardReport& report, const ShardMode& mode) {
  if (report.spec != "glm-5.2" || report.weights != "mxfp4" || !(mode.name.starts_with("decode") || mode.name.starts_with("prefill")) ||
      report.moe_layers == 0)
    return {};
  double ms = 0;
  for (const OpLine& op : mode.ops)
    if (is_experts(op.op)) ms += op.ms;
  const auto peer =
      std::find_if(std::begin(kPeers), std::end(kPeers), [&](const PeerRow& row) { return row.tp == report.tp && row.rows == mode.rows; });
  if (ms == 0 || peer == std::end(kPeers)) return {};
  const double us = 1000 * ms / static_cast<double>(report.moe_layers);
  return fmt::format(
      "  experts of a layer (gate_up, SwiGLU, down, combine): {:.1f} us; the better public kernels on an H200: {:.1f} us; ratio {:.2f}\n",
      us, peer->us, us / peer->us);
}

std::string mode_text(const ShardReport& report, const ShardMode& mode) {
  std::string text = fmt::format(
      "\n{}: {} rows of {} sequences at context {}\n  step {:.3f} ms ({:.3f}-{:.3f}, {} runs, {}); the call with copies and host {:.3f} "
      "ms\n",
      mode.name, mode.rows, mode.sequences, mode.context, mode.step_ms.median, mode.step_ms.least, mode.step_ms.most, mode.runs,
      mode.graph ? fmt::format("graph replay of {} launches", mode.launches) : "launched one by one", mode.wall_ms.median);
  if (mode.expected_experts > 0)
    text += fmt::format("  experts that are sent a row: {:.1f} expected, {:.0f} in the last MoE layer\n", mode.expected_experts,
                        mode.hit_experts);
  text += fmt::format("  with every operation timed: {:.3f} ms ({:+.1f} %), which the lines below divide; {:.2f} GB, {:.2f} TFLOP\n",
                      mode.ops_ms, 100 * (mode.ops_ms / mode.step_ms.median - 1), mode.bytes() / 1e9, mode.flop() / 1e12);
  text += peer_text(report, mode);
  return text + ops_text(mode, report.roofs);
}

ShardReport parse(const Json& j) {
  ShardReport r;
  const Json& run = j.at("run");
  r.spec = run.at("spec");
  r.weights = run.at("weights");
  r.attention_weights = run.at("attention_weights");
  r.mtp_weights = run.at("mtp_weights");
  r.kv_dtype = run.at("kv_dtype");
  r.routing = run.at("routing");
  r.device_matmul = run.at("device_matmul");
  r.tp = run.at("tp");
  r.layers = run.at("layers");
  r.model_layers = run.at("model_layers");
  r.moe_layers = run.at("moe_layers");
  r.hidden_size = run.at("hidden_size");
  r.device = j.at("device");
  r.weight_bytes = j.at("weight_bytes");
  r.cache_bytes = j.at("cache_bytes");
  r.l2_bytes = j.at("l2_bytes");
  r.fill_seconds = j.at("fill_seconds");
  for (const Json& note : j.at("notes")) r.notes.push_back(note);
  const Json& roofs = j.at("roofs");
  r.roofs = {roofs.at("memory_how"), roofs.at("flop_how"), roofs.at("bytes_per_second"), roofs.at("flop_per_second"),
             roofs.at("reference_flop_per_second")};
  for (const Json& m : j.at("modes")) {
    ShardMode mode;
    mode.name = m.at("name");
    mode.rows = m.at("rows");
    mode.sequences = m.at("sequences");
    mode.context = m.at("context");
    mode.graph = m.at("graph");
    mode.launches = m.at("launches");
    mode.runs = m.at("runs");
    mode.step_ms = spread_of(m.at("step_ms"));
    mode.wall_ms = spread_of(m.at("wall_ms"));
    mode.ops_ms = m.at("ops_ms");
    mode.expected_experts = m.at("expected_experts");
    mode.hit_experts = m.at("hit_experts");
    for (const Json& o : m.at("ops"))
      mode.ops.push_back({o.at("op"), o.at("kernel"), o.at("calls"), o.at("ms"), o.at("bytes"), o.at("flop")});
    r.modes.push_back(std::move(mode));
  }
  for (const Json& c : j.at("checks")) r.checks.push_back({c.at("name"), c.at("median"), c.at("worst"), c.at("limit")});
  return r;
}

const ShardMode* find_mode(const ShardReport& report, const std::string& name) {
  const auto mode = std::find_if(report.modes.begin(), report.modes.end(), [&](const ShardMode& m) { return m.name == name; });
  return mode == report.modes.end() ? nullptr : &*mode;
}

double step_ms(const ShardReport& report, const std::string& name) {
  const ShardMode* mode = find_mode(report, name);
  return mode == nullptr ? 0 : mode->step_ms.median;
}

}  // namespace

double ShardMode::bytes() const {
  double sum = 0;
  for (const OpLine& op : ops) sum += op.bytes;
  return sum;
}
double ShardMode::flop() const {
  double sum = 0;
  for (const OpLine& op : ops) sum += op.flop;
  return sum;
}

double bound_ms(const OpLine& op, const Roofs& roofs) {
  double seconds = 0;
  if (roofs.bytes_per_second > 0) seconds = op.bytes / roofs.bytes_per_second;
  if (roofs.flop_roof() > 0) seconds = std::max(seconds, op.flop / roofs.flop_roof());
  return 1000 * seconds;
}

Json to_json(const ShardReport& r) {
  Json j = {{"schema", kShardSchema},
            {"version", ShardReport::kVersion},
            {"run",
             {{"spec", r.spec},
              {"tp", r.tp},
              {"layers", r.layers},
              {"model_layers", r.model_layers},
              {"moe_layers", r.moe_layers},
              {"hidden_size", r.hidden_size},
              {"weights", r.weights},
              {"attention_weights", r.attention_weights},
              {"mtp_weights", r.mtp_weights},
              {"kv_dtype", r.kv_dtype},
              {"routing", r.routing},
              {"device_matmul", r.device_matmul}}},
            {"device", r.device},
            {"weight_bytes", r.weight_bytes},
            {"cache_bytes", r.cache_bytes},
            {"l2_bytes", r.l2_bytes},
            {"fill_seconds", r.fill_seconds},
            {"notes", r.notes},
            {"collectives", "not included"},
            {"roofs",
             {{"memory_how", r.roofs.memory_how},
              {"flop_how", r.roofs.flop_how},
              {"bytes_per_second", r.roofs.bytes_per_second},
              {"flop_per_second", r.roofs.flop_per_second},
              {"reference_flop_per_second", r.roofs.reference_flop_per_second}}},
            {"modes", Json::array()},
            {"checks", Json::array()}};
  for (const ShardMode& m : r.modes) {
    Json mode = {{"name", m.name},
                 {"rows", m.rows},
                 {"sequences", m.sequences},
                 {"context", m.context},
                 {"graph", m.graph},
                 {"launches", m.launches},
                 {"runs", m.runs},
                 {"step_ms", to_json(m.step_ms)},
                 {"wall_ms", to_json(m.wall_ms)},
                 {"ops_ms", m.ops_ms},
                 {"expected_experts", m.expected_experts},
                 {"hit_experts", m.hit_experts},
                 {"ops", Json::array()}};
    for (const OpLine& o : m.ops)
      mode["ops"].push_back({{"op", o.op},
                             {"kernel", o.kernel},
                             {"calls", o.calls},
                             {"ms", o.ms},
                             {"bytes", o.bytes},
                             {"flop", o.flop},
                             {"bound_ms", bound_ms(o, r.roofs)}});
    j["modes"].push_back(std::move(mode));
  }
  for (const CheckLine& c : r.checks)
    j["checks"].push_back({{"name", c.name}, {"median", c.median}, {"worst", c.worst}, {"limit", c.limit}, {"passed", c.passed()}});
  return j;
}

Result<ShardReport> shard_report_of(const Json& json) {
  return read_report(json, kShardSchema, ShardReport::kVersion, "`ingot bench shard`", parse);
}

std::string report_text(const ShardReport& r) {
  std::string text = fmt::format(
      "{}, one rank of TP{}, {} of {} layers; {} experts, {} attention, {} MTP experts, {} cache, {} routing, "
      "products {}\n{}\nweights {:.2f} GB made in {:.1f} s, cache {:.2f} GB\n",
      r.spec, r.tp, r.layers, r.model_layers, r.weights, r.attention_weights, r.mtp_weights, r.kv_dtype, r.routing, r.device_matmul,
      r.device, static_cast<double>(r.weight_bytes) / 1e9, r.fill_seconds, static_cast<double>(r.cache_bytes) / 1e9);
  if (r.roofs.bytes_per_second > 0)
    text += fmt::format("roofs of this run: {:.3f} TB/s ({}); {:.1f} TFLOP/s ({})\n", r.roofs.bytes_per_second / 1e12, r.roofs.memory_how,
                        r.roofs.flop_per_second / 1e12, r.roofs.flop_how);
  if (r.roofs.reference_flop_per_second > 0)
    text += fmt::format(
        "  bf16 with the vendor's library on this kind of GPU, measured earlier: {:.0f} TFLOP/s; fractions are of the greater\n",
        r.roofs.reference_flop_per_second / 1e12);
  text += "collectives: not included in any figure\n";
  for (const std::string& note : r.notes) text += "note: " + note + "\n";
  for (const CheckLine& c : r.checks)
    text += fmt::format("check {:<28} relative error of a row: median {:.2e}, worst {:.2e}; limit of the median {:.0e}: {}\n", c.name,
                        c.median, c.worst, c.limit, c.passed() ? "passed" : "FAILED");
  for (const ShardMode& mode : r.modes) text += mode_text(r, mode);
  return text;
}

plan::RankMeasurements rank_measurements(const ShardReport& report) {
  plan::RankMeasurements rank;
  rank.tp = report.tp;
  rank.layers = report.layers;
  rank.hidden_size = report.hidden_size;
  for (const ShardMode& mode : report.modes) {
    if (mode.name.starts_with("prefill")) {
      rank.prefill_ms = mode.step_ms.median;
      rank.prefill_rows = mode.rows;
    }
    if (!mode.name.starts_with("decode")) continue;
    plan::MeasuredBatch batch{mode.sequences, mode.rows, mode.step_ms.median, 0, 0};
    if (mode.rows > mode.sequences) {
      batch.extend_ms = step_ms(report, fmt::format("mtp {}", mode.rows));
      batch.draft_ms = step_ms(report, fmt::format("draft {}", mode.sequences));
      if (batch.extend_ms == 0 || batch.draft_ms == 0) continue;
      if (mode.sequences == 1) rank.single = batch;
    }
    rank.batches.push_back(batch);
  }
  return rank;
}

std::string projection_text(const plan::NodeProjection& p) {
  std::string text = fmt::format("\nnode of {} GPUs as TP{}{}, projected (collectives by the published table, shown apart)\n",
                                 plan::kNodeGpus, p.tp, p.replicas > 1 ? fmt::format(" x DP{}", p.replicas) : "");
  for (const auto& s : p.single)
    text += fmt::format(
        "  single stream: round {:.2f} ms + collectives {:.2f} ms: {:.0f} / {:.0f} / {:.0f} tok/s at acceptance {} / {} / {}; if hidden "
        "{:.0f} / {:.0f} / {:.0f}\n",
        s.iteration_ms, s.collective_ms, s.tokens_per_second[0], s.tokens_per_second[1], s.tokens_per_second[2], plan::kAcceptance[0],
        plan::kAcceptance[1], plan::kAcceptance[2], s.tokens_per_second_if_hidden[0], s.tokens_per_second_if_hidden[1],
        s.tokens_per_second_if_hidden[2]);
  for (const auto& d : p.decode)
    text += fmt::format("  decode, {} sequences a replica, {}: {:.2f} ms + {:.2f} ms: {:.0f} tok/s a node; if hidden {:.0f}\n", d.sequences,
                        d.speculation ? "speculation" : "one row each", d.iteration_ms, d.collective_ms, d.node_tokens_per_second,
                        d.node_tokens_per_second_if_hidden);
  for (const auto& r : p.requests)
    text += fmt::format(
        "  requests 20k/1k/60 %: prefill {:.0f} ms + collectives {:.0f} ms, decode {:.0f} ms ({} sequences): {:.2f} requests/s a node; if "
        "hidden {:.2f}\n",
        r.prefill_ms, r.prefill_collective_ms, r.decode_ms, r.sequences, r.per_second, r.per_second_if_hidden);
  if (p.single.empty() && p.decode.empty()) text += "  nothing to project: it takes the decode and MTP steps of all layers\n";
  text += "  assumptions:\n";
  for (const std::string& a : p.assumptions) text += "  - " + a + "\n";
  text += "  published, and derived bounds:\n";
  for (const auto& f : plan::published_figures()) text += fmt::format("  - {}: {} ({})\n", f.what, f.value, f.source);
  return text;
}

Json to_json(const plan::NodeProjection& p) {
  Json j = {{"tp", p.tp},
            {"replicas", p.replicas},
            {"acceptance", plan::kAcceptance},
            {"single", Json::array()},
            {"decode", Json::array()},
            {"requests", Json::array()},
            {"assumptions", p.assumptions}};
  for (const auto& s : p.single)
    j["single"].push_back({{"iteration_ms", s.iteration_ms},
                           {"collective_ms", s.collective_ms},
                           {"tokens_per_second", s.tokens_per_second},
                           {"tokens_per_second_if_hidden", s.tokens_per_second_if_hidden}});
  for (const auto& d : p.decode)
    j["decode"].push_back({{"sequences", d.sequences},
                           {"speculation", d.speculation},
                           {"iteration_ms", d.iteration_ms},
                           {"collective_ms", d.collective_ms},
                           {"node_tokens_per_second", d.node_tokens_per_second},
                           {"node_tokens_per_second_if_hidden", d.node_tokens_per_second_if_hidden}});
  for (const auto& r : p.requests)
    j["requests"].push_back({{"sequences", r.sequences},
                             {"prefill_ms", r.prefill_ms},
                             {"prefill_collective_ms", r.prefill_collective_ms},
                             {"decode_ms", r.decode_ms},
                             {"per_second", r.per_second},
                             {"per_second_if_hidden", r.per_second_if_hidden}});
  return j;
}

}  // namespace ingot::apps
