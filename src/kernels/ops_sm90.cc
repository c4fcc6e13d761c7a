#include "kernels/ops_sm90.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "kernels/native/sm90/indexer.h"
#include "kernels/native/sm90/mla.h"
#include "kernels/native/sm90/route.h"
#include "kernels/native/sm90/stream_matmul.h"
#include "kernels/native/sm90/wide_matmul.h"
#include "kernels/observed.h"
#include "kernels/ops.h"

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

constexpr int64_t kMaxSources = int64_t{1} << 31;

bool in_use(const gpu::Stream& stream) {
  return stream.device != nullptr && stream.matmul == gpu::DeviceMatmul::fast && stream.device->has(kDeviceSm90RoundRows);
}

int64_t multiprocessors(const gpu::Stream& stream) { return stream.device->info().compute_units; }

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// The number of an entry point by the name that its params have for it.
size_t number_of(const char* entry) {
  static const std::unordered_map<std::string_view, size_t> numbers = {
#define INGOT_NUMBER_OF(K, file) {"ingot_" #K, kDevice##K},
      INGOT_SM90_KERNELS(INGOT_NUMBER_OF)
#undef INGOT_NUMBER_OF
  };
  const auto found = numbers.find(entry);
  INGOT_CHECK(found != numbers.end(), "no kernel {} in device/list.h", entry);
  return found->second;
}

template <class Params>
void launch_entry(gpu::Stream& stream, const char* entry, const Params& p) {
  stream.device->launch(number_of(entry), p);
}

const WeightView& first_weight(const GroupedMatmulParams& p) { return p.host_weights == nullptr ? p.weights[0] : p.host_weights[0]; }
const WeightView& first_gate(const GatedMatmulParams& p) { return p.host_gates == nullptr ? p.gates[0] : p.host_gates[0]; }

bool have_format(const WeightView* weights, int64_t count, WeightFormat format) {
  return std::all_of(weights, weights + count, [&](const WeightView& w) { return w.format == format && is_aligned(w.data); });
}
bool have_format(const GroupedMatmulParams& p, WeightFormat format) {
  return have_format(p.host_weights == nullptr ? p.weights : p.host_weights, p.num_experts, format);
}
bool have_format(const GatedMatmulParams& p, WeightFormat format) {
  return have_format(static_cast<const GroupedMatmulParams&>(p), format) &&
         have_format(p.host_gates == nullptr ? p.gates : p.host_gates, p.num_experts, format);
}

bool is_wide_weight(const gpu::Stream& stream, const WeightView& w, int64_t rows, int64_t experts) {
  return in_use(stream) && rows > gpu::kMaxStreamRows && sm90::wide_supported(w.format, w.rows, w.cols, experts) && is_aligned(w.data);
}

void launch_wide(gpu::Stream& stream, sm90::WideMatmulParams p) {
  p.multiprocessors = multiprocessors(stream);
  p.tiling = sm90::wide_tiling(p.format, p.output, p.num_rows, p.num_experts, p.n, p.k, p.multiprocessors);
  launch_entry(stream, sm90::wide_kernel(p.format, p.tiling.few), p);
}

sm90::WideMatmulParams wide_experts(const GroupedMatmulParams& p) {
  const WeightView& w = first_weight(p);
  sm90::WideMatmulParams wide = {};
  wide.y = p.y;
  wide.y_stride = p.y_stride;
  wide.x = p.x_wide;
  wide.x_stride = p.x_wide_stride;
  wide.order = p.order;
  wide.rows_per_source = p.rows_per_source;
  wide.offsets = p.offsets;
  wide.weights = p.weights;
  wide.num_rows = p.num_rows;
  wide.num_experts = p.num_experts;
  wide.n = p.n;
  wide.k = w.cols;
  wide.output = sm90::WideOutput::f32;
  wide.format = w.format;
  return wide;
}

}  // namespace

bool is_wide(const gpu::Stream& stream, const WeightView& w, int64_t rows) { return is_wide_weight(stream, w, rows, 1); }

bool gives_wide(const gpu::Stream& stream, const GatedMatmulParams& p) {
  const WeightView& w = first_weight(p);
  return is_wide_weight(stream, w, p.num_rows / p.rows_per_source, p.num_experts) && p.x_wide != nullptr && have_format(p, w.format);
}

int64_t wide_cols(int64_t cols) { return sm90::wide_cols(cols); }

void round_rows(gpu::Stream& stream, uint16_t* out, const float* x, int64_t x_stride, int64_t rows, int64_t cols) {
  const auto cost = [&](const gpu::OpHints&) {
    return gpu::OpCost{
        static_cast<double>(rows) * static_cast<double>(cols * 4 + wide_cols(cols) * 2), static_cast<double>(rows * cols), {rows, cols}};
  };
  observed_at(stream, "round_rows", "sm90", cost, [&] {
    stream.device->launch(kDeviceSm90RoundRows, sm90::RoundRowsParams{out, x, x_stride, rows, cols});
  });
}

namespace sm90 {

size_t matmul(gpu::Stream& stream, std::span<const MatmulParams> products) {
  const MatmulParams& first = products.front();
  const WeightFormat format = first.w.format;
  const int64_t k = first.w.cols;
  if (!in_use(stream) || format == WeightFormat::f32 || !is_aligned(first.w.data)) return 0;
  if (first.x_wide != nullptr && is_wide(stream, first.w, first.rows)) {
    WideMatmulParams p = {};
    p.y = first.y;
    p.y_stride = first.y_stride;
    p.x = first.x_wide;
    p.x_stride = first.x_wide_stride;
    p.rows_per_source = 1;
    p.weight = first.w;
    p.num_rows = first.rows;
    p.num_experts = 1;
    p.n = first.w.rows;
    p.k = k;
    p.output = first.accumulate ? WideOutput::f32_add : WideOutput::f32;
    p.format = format;
    observed(stream, "matmul", "sm90 wide", first, [&] { launch_wide(stream, p); });
    return 1;
  }
  if (first.rows > gpu::kMaxStreamRows || !stream_supports(format, k)) return 0;
  StreamDenseParams p = {};
  p.x = first.x;
  p.x_stride = first.x_stride;
  p.rows = first.rows;
  p.accumulate = first.accumulate;
  for (const MatmulParams& product : products) {
    const WeightView& w = product.w;
    const bool joins = p.count < kStreamMaxOutputs && product.x == first.x && product.x_stride == first.x_stride &&
                       product.rows == first.rows && product.accumulate == first.accumulate && w.format == format && w.cols == k &&
                       is_aligned(w.data);
    if (!joins) break;
    p.outputs[p.count++] = {w, product.y, product.y_stride};
  }
  p.plan();
  const auto taken = static_cast<size_t>(p.count);
  observed(stream, "matmul", "sm90 stream", products.first(taken), [&] { launch_entry(stream, p.entry(), p); });
  return taken;
}

bool grouped_matmul(gpu::Stream& stream, const GroupedMatmulParams& p) {
  const WeightView& w = first_weight(p);
  if (!in_use(stream) || p.rows_per_source >= kMaxSources || !have_format(p, w.format)) return false;
  if (p.x_wide != nullptr && wide_supported(w.format, p.n, w.cols, p.num_experts)) {
    WideMatmulParams wide = wide_experts(p);
    if (p.y_rounded != nullptr) {
      wide.y = p.y_rounded;
      wide.output = WideOutput::bf16;
    }
    observed(stream, "grouped_matmul", "sm90 wide", p, [&] { launch_wide(stream, wide); });
    return true;
  }
  if (!stream_supports(w.format, w.cols)) return false;
  const StreamGroupedParams stream_params{p.y,     p.y_stride, p.x,           p.x_stride, p.order, p.rows_per_source, p.offsets, p.weights,
                                          nullptr, p.num_rows, p.num_experts, p.n,        w.cols,  w.format};
  observed(stream, "grouped_matmul", "sm90 stream", p, [&] { launch_entry(stream, stream_params.entry(), stream_params); });
  return true;
}

bool gated_matmul(gpu::Stream& stream, const GatedMatmulParams& p) {
  const WeightView& w = first_weight(p);
  if (!in_use(stream) || p.rows_per_source >= kMaxSources || first_gate(p).format != w.format || !have_format(p, w.format)) return false;
  if (p.y_wide != nullptr && gives_wide(stream, p)) {
    WideMatmulParams wide = wide_experts(p);
    wide.y = p.y_wide;
    wide.y_stride = p.y_wide_stride;
    wide.weights = p.gates;
    wide.up_weights = p.weights;
    wide.output = WideOutput::gated;
    observed(stream, "gated_matmul", "sm90 wide", p, [&] { launch_wide(stream, wide); });
    return true;
  }
  if (!stream_supports(w.format, w.cols)) return false;
  const StreamGroupedParams stream_params{p.y,       p.y_stride, p.x,           p.x_stride, p.order, p.rows_per_source, p.offsets, p.gates,
                                          p.weights, p.num_rows, p.num_experts, p.n,        w.cols,  w.format};
  observed(stream, "gated_matmul", "sm90 stream", p, [&] { launch_entry(stream, stream_params.entry(), stream_params); });
  return true;
}

bool head_matmul(gpu::Stream& stream, const HeadMatmulParams& p) {
  if (!in_use(stream) || !stream_supports(p.w.format, p.w.cols) || !is_aligned(p.w.data)) return false;
  if (p.transposed && (p.n % 16 != 0 || p.w.cols % 32 != 0)) return false;
  StreamHeadsParams heads{p.y,         p.y_stride, p.y_head_stride, p.x,    p.x_stride,  p.x_head_stride, p.w, p.rows_per_head,
                          p.first_row, p.n,        p.heads,         p.rows, p.transposed};
  heads.plan();
  observed(stream, "head_matmul", "sm90 stream", p, [&] { launch_entry(stream, heads.entry(), heads); });
  return true;
}

bool combine(gpu::Stream& stream, const CombineParams& p) {
  if (p.y_rounded == nullptr) return false;
  observed(stream, "combine", "sm90", p, [&] {
    stream.device->launch(kDeviceSm90CombineRounded, CombineRoundedParams{p.out, p.out_stride, p.y_rounded, p.y_stride, p.inverse,
                                                                          p.weights, p.num_tokens, p.k, p.dim, p.accumulate});
  });
  return true;
}

bool index_scores(gpu::Stream& stream, const IndexScoresParams& p) {
  if (!in_use(stream) || !index_scores_supported(p)) return false;
  observed(stream, "index_scores", "sm90", p, [&] {
    stream.device->launch(kDeviceSm90IndexScores, Sm90IndexScoresParams{p, multiprocessors(stream)});
  });
  return true;
}

bool top_k(gpu::Stream& stream, const TopKParams& p) {
  if (!in_use(stream) || !top_k_supported(p)) return false;
  const Sm90TopKParams params{p};
  observed(stream, "top_k", "sm90", p, [&] { stream.device->launch(params.few() ? kDeviceSm90TopKFew : kDeviceSm90TopKMany, params); });
  return true;
}

bool router(gpu::Stream& stream, const RouterParams& p) {
  if (!in_use(stream) || !router_supported(p)) return false;
  observed(stream, "router", "sm90", p, [&] { stream.device->launch(kDeviceSm90Router, Sm90RouterParams{p}); });
  return true;
}

bool permute(gpu::Stream& stream, const PermuteParams& p) {
  if (!in_use(stream) || !permute_supported(p)) return false;
  observed(stream, "permute", "sm90", p, [&] { stream.device->launch(kDeviceSm90Permute, Sm90PermuteParams{p}); });
  return true;
}

bool route(gpu::Stream& stream, const RouterParams& choice, const PermuteParams& permutation) {
  if (!in_use(stream) || !route_supported(choice, permutation)) return false;
  const auto cost = [&](const gpu::OpHints& hints) {
    const gpu::OpCost first = op_cost(choice, hints), second = op_cost(permutation, hints);
    return gpu::OpCost{first.bytes + second.bytes, first.flop + second.flop, first.shape};
  };
  const Sm90RouteParams params{choice, permutation};
  observed_at(stream, "route", "sm90", cost,
              [&] { stream.device->launch(params.few() ? kDeviceSm90RouteFew : kDeviceSm90RouteMany, params); });
  return true;
}

bool sparse_mla(gpu::Stream& stream, const SparseMlaParams& p) {
  if (!in_use(stream) || !mla_supported(p)) return false;
  const Sm90MlaParams params{p};
  observed(stream, "sparse_mla", "sm90", p, [&] { launch_entry(stream, params.entry(), params); });
  return true;
}

}  // namespace sm90
}  // namespace ingot::kernels
