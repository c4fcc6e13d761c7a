#include "model/startup_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace ingot::model {
namespace {

struct Kind {
  const OpReport* op;
  int64_t launches;
};

bool same(const OpReport& a, const OpReport& b) {
  return a.op == b.op && a.shape == b.shape && a.kernel == b.kernel && a.tuned == b.tuned && a.bytes == b.bytes && a.flop == b.flop &&
         a.arithmetic == b.arithmetic;
}

double byte_seconds(const OpReport& op, const spec::Hardware& roof) { return op.bytes / roof.memory; }
double flop_seconds(const OpReport& op, const spec::Hardware& roof) { return op.flop / roof.flops(op.arithmetic); }

// Three digits of what may be nanoseconds or milliseconds.
std::string microseconds(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f} us", us, us < 1 ? 3 : us < 100 ? 2 : 0);
}

std::string amount(double value, const char* unit) {
  const char* prefix = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (value < 1000) break;
    value /= 1000;
    prefix = next;
  }
  return fmt::format("{:.3g} {}{}", value, prefix, unit);
}

}  // namespace

std::vector<std::string> startup_report(std::span<const OpReport> launches, std::string_view device_name, std::string_view step) {
  const std::optional<spec::Hardware> roof = spec::hardware_of(device_name);
  std::vector<Kind> kinds;
  for (const OpReport& op : launches) {
    const auto known = std::ranges::find_if(kinds, [&](const Kind& kind) { return same(*kind.op, op); });
    if (known == kinds.end())
      kinds.push_back({&op, 1});
    else
      ++known->launches;
  }
  size_t op_width = 0, shape_width = 0, kernel_width = 0;
  for (const Kind& kind : kinds) {
    op_width = std::max(op_width, kind.op->op.size());
    shape_width = std::max(shape_width, kind.op->shape.size());
    kernel_width = std::max(kernel_width, kind.op->kernel.size());
  }
  std::vector<std::string> out;
  out.push_back(fmt::format(
      "operations of a step of {} on {}{}", step, device_name,
      roof ? fmt::format(", at the roofs of the data sheet ({:.3g} TB/s, {:.4g} bf16 TFLOP/s)", roof->memory / 1e12, roof->bf16 / 1e12)
           : std::string(": its roofs are not known")));
  double total = 0;
  size_t tuned = 0;
  for (const Kind& kind : kinds) {
    const OpReport& op = *kind.op;
    std::string bound, time;
    if (roof) {
      const double moving = byte_seconds(op, *roof), computing = flop_seconds(op, *roof);
      bound = moving >= computing ? "bytes" : "flop";
      time = fmt::format("  {:>10}", microseconds(std::max(moving, computing)));
      total += static_cast<double>(kind.launches) * std::max(moving, computing);
    }
    tuned += op.tuned ? static_cast<size_t>(kind.launches) : 0;
    out.push_back(fmt::format("  {:<{}}  {:<{}}  {:<{}}  {:<7}  {:>10}  {:>12}  {:<5}{}  x {}", op.op, op_width, op.shape, shape_width,
                              op.kernel, kernel_width, op.tuned ? "tuned" : "generic", amount(op.bytes, "B"), amount(op.flop, "flop"),
                              bound, time, kind.launches));
  }
  out.push_back(fmt::format("  {} launches, {} of them tuned{}", launches.size(), tuned,
                            roof ? fmt::format("; {} at the roofs", microseconds(total)) : std::string()));
  return out;
}

}  // namespace ingot::model
