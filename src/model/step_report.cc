#include "model/step_report.h"

#include <fmt/format.h>

#include <utility>

#include "model/startup_report.h"

namespace ingot::model {
namespace {

struct Collector final : gpu::OpObserver {
  explicit Collector(int64_t rows) : shape(fmt::format("{} rows", rows)) {}
  void before(std::string_view op, std::string_view kernel, const gpu::OpCost& cost) override {
    const auto arithmetic = kernel == "lanes" ? spec::Arithmetic::f32 : spec::Arithmetic::bf16;
    ops.push_back({std::string(op), shape, std::string(kernel), kernel.starts_with("sm90"), cost.bytes, cost.flop, arithmetic});
  }
  void after() override {}

  std::string shape;
  std::vector<OpReport> ops;
};

}  // namespace

Result<std::vector<std::string>> reserve_and_report(Glm& glm, const StepLimits& limits) {
  Collector largest(limits.rows), smallest(1);
  gpu::Stream stream;
  stream.observer = &largest;
  INGOT_TRY(glm.reserve(stream, limits));

  constexpr int64_t kPageSize = 64;
  INGOT_ASSIGN(KvCache cache, KvCache::create(glm.config(), {limits.cache_format, 1, kPageSize}, glm.device()));
  const int64_t max_pages = (limits.context_length + kPageSize - 1) / kPageSize;
  const std::vector<int32_t> pages(static_cast<size_t>(max_pages));  // all are the one that there is, and nothing is stored
  const int32_t token_id = 0, position = static_cast<int32_t>(limits.context_length - 1), slot = -1, seq = 0, wanted = 0;
  std::vector<float> logits(static_cast<size_t>(glm.config().vocab_size));
  stream.observer = &smallest;
  INGOT_TRY(
      glm.forward(stream, {{&token_id, 1}, {&position, 1}, {&slot, 1}, {&seq, 1}, pages, max_pages, {&wanted, 1}}, cache, {logits, {}}));

  const std::string& device = glm.device()->info().name;
  std::vector<std::string> lines = startup_report(smallest.ops, device, fmt::format("1 row at position {}", position));
  for (std::string& line : startup_report(largest.ops, device, largest.shape)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ingot::model
