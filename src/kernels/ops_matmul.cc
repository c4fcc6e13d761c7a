// The operations that multiply by weights.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/grouped_matmul.kernel.h"
#include "kernels/head_matmul.kernel.h"
#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/native/cpu/native.h"
#include "kernels/observed.h"
#include "kernels/ops.h"
#include "kernels/ops_sm90.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"

namespace ingot::kernels {
namespace {

using gpu::DeviceMatmul;
using tensor::WeightFormat;

void check_weight(const WeightView& w) {
  INGOT_CHECK(w.rows >= 0 && w.cols > 0 && w.data != nullptr, "weight of {} x {}", w.rows, w.cols);
  INGOT_CHECK(w.format != WeightFormat::mxfp4 || w.cols % 32 == 0, "MXFP4 needs a multiple of 32 columns, got {}", w.cols);
  const bool scaled = w.format == WeightFormat::fp8_block || w.format == WeightFormat::mxfp4;
  INGOT_CHECK(!scaled || w.scale != nullptr, "a quantised weight without scales");
}

void check_experts(const WeightView* weights, const GroupedMatmulParams& p) {
  for (int64_t e = 0; e < p.num_experts; ++e) {
    check_weight(weights[e]);
    INGOT_CHECK(weights[e].rows == p.n && weights[e].cols == weights[0].cols, "expert {} is {} x {}, not {} x {}", e, weights[e].rows,
                weights[e].cols, p.n, weights[0].cols);
  }
}

const WeightView* host_weights(const GroupedMatmulParams& p) { return p.host_weights == nullptr ? p.weights : p.host_weights; }
const WeightView* host_gates(const GatedMatmulParams& p) { return p.host_gates == nullptr ? p.gates : p.host_gates; }

// Whether they all have the first one's format, which matrix instructions take.
bool are_tiles(const WeightView* weights, int64_t count) {
  const WeightFormat format = weights[0].format;
  return format != WeightFormat::f32 && std::all_of(weights, weights + count, [&](const WeightView& w) { return w.format == format; });
}

// The sizes of a tile kernel are neighbours in list.h, and `small` is the first.
static_assert(kDeviceTileMatmulMxfp4Small + static_cast<size_t>(TileSize::large) == kDeviceTileMatmulMxfp4Large);

DeviceKernel small_of(WeightFormat format, DeviceKernel bf16, DeviceKernel fp8, DeviceKernel mxfp4) {
  return format == WeightFormat::bf16 ? bf16 : format == WeightFormat::fp8_block ? fp8 : mxfp4;
}

template <class TileParams, class Params, class... Gates>
TileParams tile_params(const Params& p, Gates... gates) {
  TileParams tile{};
  static_cast<Params&>(tile) = p;
  ((tile.gates = gates), ...);
  return tile;
}

template <template <TileSize, int> class TileParams, TileSize Size, class Params, class... More>
void launch_tile(gpu::Accelerator& device, DeviceKernel small, const Params& p, More... more) {
  const size_t kernel = small + static_cast<size_t>(Size);
  if (device.info().lanes == 32)
    device.launch(kernel, tile_params<TileParams<Size, 32>>(p, more...));
  else
    device.launch(kernel, tile_params<TileParams<Size, 64>>(p, more...));
}

// The size changes no bit.
template <template <TileSize, int> class TileParams, class Params, class... More>
void launch_tiles(gpu::Accelerator& device, DeviceKernel small, TileSize size, const Params& p, More... more) {
  switch (size) {
    case TileSize::small: return launch_tile<TileParams, TileSize::small>(device, small, p, more...);
    case TileSize::medium: return launch_tile<TileParams, TileSize::medium>(device, small, p, more...);
    case TileSize::large: return launch_tile<TileParams, TileSize::large>(device, small, p, more...);
  }
}

SwiGluParams activation(const GatedMatmulParams& p) { return {p.y, p.y_stride, p.y, p.up, p.y_stride, p.num_rows, p.n}; }

GroupedMatmulParams gate_product(const GatedMatmulParams& p) {
  GroupedMatmulParams gate = p;
  gate.weights = p.gates;
  gate.host_weights = p.host_gates;
  return gate;
}

GroupedMatmulParams up_product(const GatedMatmulParams& p) {
  GroupedMatmulParams up = p;
  up.y = p.up;
  return up;
}

}  // namespace

void matmul(gpu::Stream& stream, std::span<const MatmulParams> products) {
  for (const MatmulParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.cols && p.y_stride >= p.w.rows), "matmul {} x {} with strides {} and {}", p.w.rows,
                p.w.cols, p.x_stride, p.y_stride);
  }
  if (stream.device == nullptr)
    return native_observed(stream, "matmul", products, [&](ThreadPool& pool) { native::matmul(pool, products); });
  while (!products.empty()) {
    const size_t taken = sm90::matmul(stream, products);
    if (taken > 0) {
      products = products.subspan(taken);
      continue;
    }
    const MatmulParams& p = products.front();
    products = products.subspan(1);
    if (stream.matmul == DeviceMatmul::lanes || p.w.format == WeightFormat::f32) {
      launch_observed<Matmul>(stream, "matmul", p);
      continue;
    }
    observed(stream, "matmul", "tiles", p, [&] {
      launch_tiles<TileMatmulParams>(
          *stream.device, small_of(p.w.format, kDeviceTileMatmulBf16Small, kDeviceTileMatmulFp8Small, kDeviceTileMatmulMxfp4Small),
          tile_size(p.rows), p);
    });
  }
}

void matmul_transposed(gpu::Stream& stream, std::span<const MatmulTransposedParams> products) {
  for (const MatmulTransposedParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.rows && p.y_stride >= p.w.cols), "transposed matmul {} x {} with strides {} and {}",
                p.w.rows, p.w.cols, p.x_stride, p.y_stride);
  }
  if (stream.device == nullptr)
    return native_observed(stream, "matmul_transposed", products, [&](ThreadPool& pool) { native::matmul_transposed(pool, products); });
  for (const MatmulTransposedParams& p : products) launch_observed<MatmulTransposed>(stream, "matmul_transposed", p);
}

void grouped_matmul(gpu::Stream& stream, std::span<const GroupedMatmulParams> products) {
  for (const GroupedMatmulParams& p : products) check_experts(host_weights(p), p);
  if (stream.device == nullptr)
    return native_observed(stream, "grouped_matmul", products, [&](ThreadPool& pool) { native::grouped_matmul(pool, products); });
  for (const GroupedMatmulParams& p : products) {
    if (sm90::grouped_matmul(stream, p)) continue;
    INGOT_CHECK(p.x_wide == nullptr, "no kernel for an input of the wide order");
    const WeightView* weights = host_weights(p);
    if (stream.matmul == DeviceMatmul::lanes || !are_tiles(weights, p.num_experts)) {
      launch_observed<GroupedMatmul>(stream, "grouped_matmul", p);
      continue;
    }
    // An expert's own number of rows is known to the GPU alone: sized for the mean.
    observed(stream, "grouped_matmul", "tiles", p, [&] {
      launch_tiles<TileGroupedMatmulParams>(*stream.device,
                                            small_of(weights[0].format, kDeviceTileGroupedMatmulBf16Small, kDeviceTileGroupedMatmulFp8Small,
                                                     kDeviceTileGroupedMatmulMxfp4Small),
                                            tile_size(p.num_rows / p.num_experts), p);
    });
  }
}

void gated_matmul(gpu::Stream& stream, const GatedMatmulParams& p) {
  const WeightView *ups = host_weights(p), *gates = host_gates(p);
  check_experts(ups, p);
  check_experts(gates, p);
  if (stream.device != nullptr && sm90::gated_matmul(stream, p)) return;
  const bool tiles = stream.device != nullptr && stream.matmul != DeviceMatmul::lanes && are_tiles(ups, p.num_experts) &&
                     are_tiles(gates, p.num_experts) && ups[0].format == gates[0].format;
  if (!tiles) {
    const GroupedMatmulParams both[] = {gate_product(p), up_product(p)};
    grouped_matmul(stream, both);
    return swiglu(stream, activation(p));
  }
  observed(stream, "gated_matmul", "tiles", p, [&] {
    const DeviceKernel small =
        small_of(ups[0].format, kDeviceTileGatedMatmulBf16Small, kDeviceTileGatedMatmulFp8Small, kDeviceTileGatedMatmulMxfp4Small);
    launch_tiles<TileGatedMatmulParams>(*stream.device, small, tile_size(p.num_rows / p.num_experts),
                                        static_cast<const GroupedMatmulParams&>(p), p.gates);
  });
}

void head_matmul(gpu::Stream& stream, const HeadMatmulParams& p) {
  check_weight(p.w);
  INGOT_CHECK(p.first_row >= 0 && p.first_row + p.n <= p.rows_per_head && p.heads * p.rows_per_head == p.w.rows,
              "{} heads of {} rows, of these {} from {}, in a weight of {}", p.heads, p.rows_per_head, p.n, p.first_row, p.w.rows);
  if (stream.device == nullptr) {
    std::vector<MatmulParams> products;
    std::vector<MatmulTransposedParams> transposed;
    for (int64_t h = 0; h < p.heads; ++h) {
      if (p.transposed)
        transposed.push_back(p.product_transposed(h));
      else
        products.push_back(p.product(h));
    }
    return native_observed(stream, "head_matmul", p, [&](ThreadPool& pool) {
      native::matmul(pool, products);
      native::matmul_transposed(pool, transposed);
    });
  }
  if (sm90::head_matmul(stream, p)) return;
  if (stream.matmul == DeviceMatmul::lanes || p.w.format == WeightFormat::f32 || p.transposed)
    return launch_observed<HeadMatmul>(stream, "head_matmul", p);
  observed(stream, "head_matmul", "tiles", p, [&] {
    launch_tiles<TileHeadMatmulParams>(
        *stream.device,
        small_of(p.w.format, kDeviceTileHeadMatmulBf16Small, kDeviceTileHeadMatmulFp8Small, kDeviceTileHeadMatmulMxfp4Small),
        tile_size(p.rows), p);
  });
}

}  // namespace ingot::kernels
