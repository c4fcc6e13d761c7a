#include "apps/bench_step_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace ingot::apps {

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

double Roofs::flop_roof() const { return std::max(flop_per_second, reference_flop_per_second); }

std::string_view name_of(Binds binds) {
  switch (binds) {
    case Binds::bytes: return "bytes";
    case Binds::flop: return "flop";
    case Binds::cache: return "cache";
    case Binds::nothing: break;
  }
  return "none";
}

Bound bound_of(double bytes, double flop, double seconds, double bytes_at_once, const Roofs& roofs) {
  const auto time_of = [](double amount, double rate) { return rate > 0 ? amount / rate : 0.0; };
  const double moving = time_of(bytes, roofs.bytes_per_second), computing = time_of(flop, roofs.flop_roof());
  if (moving == 0 && computing == 0) return {};
  if (computing >= moving) return {computing, Binds::flop};
  if (seconds >= moving || bytes_at_once > static_cast<double>(roofs.cache_bytes)) return {moving, Binds::bytes};
  const double cached = time_of(bytes, roofs.cache_bytes_per_second);
  if (cached > 0 && computing >= cached) return {computing, Binds::flop};
  return {cached, Binds::cache};
}

std::string bound_text(const Bound& bound, double seconds) {
  if (bound.by == Binds::nothing) return "-";
  const std::string name = bound.by == Binds::cache ? "in cache" : std::string(name_of(bound.by));
  return bound.seconds > 0 ? fmt::format("{:.2f} {}", bound.seconds / seconds, name) : name;
}

std::string Machine::text() const {
  return fmt::format("{}; {}, {} threads on {} processors; load average {:.2f} when it began{}", device, processor, threads, processors,
                     load_average, load_average > 0.5 ? ": the machine was not idle" : "");
}

Json to_json(const Spread& s) { return {{"median", s.median}, {"least", s.least}, {"most", s.most}}; }
Spread spread_of(const Json& j) { return {j.at("median"), j.at("least"), j.at("most")}; }

Json to_json(const Roofs& r) {
  return {{"memory_how", r.memory_how},
          {"flop_how", r.flop_how},
          {"bytes_per_second", r.bytes_per_second},
          {"flop_per_second", r.flop_per_second},
          {"reference_flop_per_second", r.reference_flop_per_second},
          {"cache_bytes_per_second", r.cache_bytes_per_second},
          {"cache_bytes", r.cache_bytes}};
}

Roofs roofs_of(const Json& j) {
  return {j.at("memory_how"),
          j.at("flop_how"),
          j.at("bytes_per_second"),
          j.at("flop_per_second"),
          j.at("reference_flop_per_second"),
          j.at("cache_bytes_per_second"),
          j.at("cache_bytes")};
}

Json to_json(const Machine& m) {
  return {{"device", m.device},
          {"processor", m.processor},
          {"processors", m.processors},
          {"threads", m.threads},
          {"load_average", m.load_average}};
}

Machine machine_of(const Json& j) { return {j.at("device"), j.at("processor"), j.at("processors"), j.at("threads"), j.at("load_average")}; }

Json to_json(const BenchedModel& m) {
  return {{"name", m.name},     {"weights", m.weights},          {"kv_cache_dtype", m.kv_cache_dtype}, {"device_matmul", m.device_matmul},
          {"layers", m.layers}, {"weight_bytes", m.weight_bytes}};
}

BenchedModel model_of(const Json& j) {
  return {j.at("name"), j.at("weights"), j.at("kv_cache_dtype"), j.at("device_matmul"), j.at("layers"), j.at("weight_bytes")};
}

void add_bound(Json& json, const Bound& bound, double seconds) {
  json["bound"] = name_of(bound.by);
  json["bound_ms"] = 1000 * bound.seconds;
  json["of_roof"] = bound.seconds > 0 ? Json(bound.seconds / seconds) : Json();
}

std::string roofs_text(const Roofs& r) {
  if (r.bytes_per_second == 0) return {};
  std::string text = fmt::format("roofs of this run: {:.1f} GB/s ({}); {:.1f} GFLOP/s ({})\n", r.bytes_per_second / 1e9, r.memory_how,
                                 r.flop_per_second / 1e9, r.flop_how);
  if (r.cache_bytes_per_second > 0)
    text += fmt::format("  in cache: {:.1f} GB/s (the same from the cores' own caches); the last cache is {:.1f} MB\n",
                        r.cache_bytes_per_second / 1e9, static_cast<double>(r.cache_bytes) / 1e6);
  if (r.reference_flop_per_second > 0)
    text += fmt::format("  the vendor's library on this kind of GPU, measured earlier: {:.0f} GFLOP/s; fractions are of the greater\n",
                        r.reference_flop_per_second / 1e9);
  return text;
}

std::string model_text(const BenchedModel& m) {
  return fmt::format("{}: {} layers, {:.1f} MB of weights ({}), cache {}, products {}\n", m.name, m.layers,
                     static_cast<double>(m.weight_bytes) / 1e6, m.weights, m.kv_cache_dtype, m.device_matmul);
}

int put_report(std::string_view command, const Json& report, const std::string& text, const std::string& json) {
  if (json == "-") {
    fmt::print("{}\n", report.dump(1));
    return 0;
  }
  fmt::print("{}", text);
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << report.dump(1) << "\n";
  if (file.flush()) return 0;
  fmt::print(stderr, "{}: {} cannot be written\n", command, json);
  return 1;
}

}  // namespace ingot::apps
