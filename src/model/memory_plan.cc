#include "model/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace ingot::model {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); }

// Four digits where they tell something, so that a small model's items do not all read 0.0.
std::string size(int64_t bytes) { return fmt::format("{:.{}f} GiB", gib(bytes), std::abs(gib(bytes)) < 1 ? 4 : 2); }

int64_t taken(const MemoryRequest& r) { return r.replicas * ((r.mapped ? 0 : r.weights) + r.workspace + r.graphs); }

std::string times(const MemoryRequest& r) { return r.replicas > 1 ? fmt::format("{} x ", r.replicas) : std::string(); }

// "2 x weights 50.00 GiB, workspace 6.00 GiB", of what is there.
std::string taken_text(const MemoryRequest& r) {
  std::string out;
  const auto item = [&](const char* name, int64_t bytes) {
    if (bytes > 0) out += fmt::format("{}{} {}", out.empty() ? times(r) : ", ", name, size(bytes));
  };
  item("weights", r.mapped ? 0 : r.weights);
  item("workspace", r.workspace);
  item("graphs and driver", r.graphs);
  return out;
}

}  // namespace

std::vector<std::string> MemoryPlan::lines() const {
  const MemoryRequest& r = request;
  std::vector<std::string> out;
  out.push_back(fmt::format("memory of {}: {}{} free", r.where, r.total > 0 ? size(r.total) + ", " : std::string(), size(r.free)));
  const auto item = [&](const char* name, int64_t bytes, const std::string& remark) {
    out.push_back(fmt::format("  {:<18}{}{}{}{}", name, times(r), size(bytes), remark.empty() ? "" : ": ", remark));
  };
  if (r.mapped)
    out.push_back(fmt::format("  {:<18}{}: mapped from the file, not counted", "weights", size(r.weights)));
  else
    item("weights", r.weights, "");
  // The host's steps take theirs as they grow.
  if (r.workspace > 0) item("workspace", r.workspace, "");
  if (r.graphs > 0) item("graphs and driver", r.graphs, "");
  item("KV cache", cache, fmt::format("{} pages of {} tokens, {} bytes a token", num_pages, r.page_tokens, r.page_bytes / r.page_tokens));
  out.push_back(fmt::format("  {:<18}{}", "reserve", size(reserve)));
  return out;
}

Result<MemoryPlan> plan_memory(const MemoryRequest& r) {
  INGOT_CHECK(r.replicas > 0 && r.page_bytes > 0 && r.page_tokens > 0 && r.pages > 0, "{} replicas, {} pages of {} bytes for {} tokens",
              r.replicas, r.pages, r.page_bytes, r.page_tokens);
  const int64_t left = r.free - taken(r);
  if (left < 0) {
    const bool weights_alone = !r.mapped && r.replicas * r.weights > r.free;
    const char* hint = r.replicas > 1  ? "lower --dp, or --chunked-prefill-size and --max-running-requests"
                       : weights_alone ? "use a checkpoint of smaller weights or a machine with more memory"
                                       : "lower --chunked-prefill-size, --max-running-requests or --context-length";
    return fail_hint(hint, "the model does not fit into {}: {} are {} in all, {} are free", r.where, taken_text(r), size(taken(r)),
                     size(r.free));
  }
  const auto budget = static_cast<int64_t>(static_cast<double>(left) * r.fraction);
  const int64_t affordable = budget / r.replicas / r.page_bytes;
  if (affordable < (r.all_pages ? r.pages : 1)) {
    const int64_t pages = r.all_pages ? r.pages : 1;
    const char* hint = r.all_pages ? "lower --max-total-tokens, raise --mem-fraction-static, or use a smaller --kv-cache-dtype"
                                   : "raise --mem-fraction-static, or lower --page-size, --chunked-prefill-size or --max-running-requests";
    const std::string left_text = taken(r) > 0 ? fmt::format("; {} leave {}", taken_text(r), size(left)) : std::string();
    return fail_hint(hint, "no memory for a KV cache of {} tokens: {}{} in {}, where {} are free{}, and {} may go to the cache",
                     pages * r.page_tokens, times(r), size(pages * r.page_bytes), r.where, size(r.free), left_text, size(budget));
  }
  MemoryPlan plan;
  plan.request = r;
  plan.num_pages = std::min(affordable, r.pages);
  plan.cache = plan.num_pages * r.page_bytes;
  plan.reserve = left - r.replicas * plan.cache;
  return plan;
}

Result<GraphMemory> measure_graph_memory(Glm& glm) {
  GraphMemory out;
  out.graphs = glm.device_counts().most_graphs;
  if (!glm.device() || out.graphs == 0) return out;
  constexpr int64_t kPageSize = 64;
  constexpr int32_t kSteps = 4;                       // of 1 row, 2, ...: a graph each
  constexpr int64_t kGranularity = int64_t{2} << 20;  // the driver takes memory in such pieces
  INGOT_ASSIGN(KvCache cache, KvCache::create(glm.config(), {tensor::LatentFormat::f32, 1, kPageSize}, glm.device()));
  std::vector<float> logits(static_cast<size_t>(glm.config().vocab_size)), hidden;
  const std::vector<int32_t> zeros(kSteps), slots(kSteps, -1), pages(1);
  gpu::Stream stream;
  const auto step = [&](int32_t rows) -> Result<> {
    const std::span<const int32_t> some(zeros.data(), static_cast<size_t>(rows));
    const ForwardBatch batch{some, some, {slots.data(), some.size()}, some, pages, 1, std::span(zeros.data(), 1)};
    return glm.forward(stream, batch, cache, {logits, hidden}, nullptr);
  };
  for (int32_t rows = 1; rows <= kSteps; ++rows) INGOT_TRY(step(rows));  // launched one by one: whatever else is needed is there
  INGOT_ASSIGN(const gpu::MemoryInfo before, glm.device()->driver().memory());
  int64_t nodes = 0;
  for (int32_t rows = 1; rows <= kSteps; ++rows) {
    INGOT_TRY(step(rows));
    nodes += glm.device_counts().launches;
    out.nodes = std::max(out.nodes, glm.device_counts().launches);
  }
  INGOT_ASSIGN(const gpu::MemoryInfo after, glm.device()->driver().memory());
  if (nodes == 0) return out;
  out.node_bytes = (std::max(before.free_bytes - after.free_bytes, kGranularity) + nodes - 1) / nodes;
  out.bytes = out.graphs * out.nodes * out.node_bytes;
  return out;
}

}  // namespace ingot::model
