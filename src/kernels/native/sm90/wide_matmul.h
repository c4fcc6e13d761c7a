// Products of many rows on the H200's warpgroup matrix instruction: y = x w^T for hundreds of rows and more, with w as it lies in the
// checkpoint (mxfp4, fp8_block or bf16). The weight is the left operand, unpacked to bf16 in registers; x is the right one, bf16 in shared
// memory. One kernel serves the experts (rows sorted by expert) and dense layers (one weight), gated (silu(x gate^T) * (x up^T)) or not.
//
// x comes in "wide order": bf16, and every 128 numbers of a row permuted so that the 16 bytes which one lane loads of a weight's row are
// the numbers it needs. RoundRows makes it of f32; a gated product writes it, for the next product to read.
//
// The bits of a row of y depend on that row of x, the weight and K alone: an element's sum runs over K in ascending steps of 16 (numbers
// in wide order) in the matrix unit's f32 accumulator, however many rows run beside it and whatever the tiles are. fp8_block weights are
// summed per 128 of K and then added to the total, times the block's scale, in f32.
//
// Exact: mxfp4 and e4m3 numbers are bf16 numbers, scales included (e8m0 up to 2^127; e4m3's NaN code reads as 480, which no weight holds).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/grid.h"
#include "tensor/weight_view.h"

namespace ingot::kernels::sm90 {

using gpu::Grid;
using tensor::WeightFormat;
using tensor::WeightView;

// Numbers of K that are permuted among themselves.
inline constexpr int kWideChunk = 128;

// Length of a row of `cols` numbers in wide order: full chunks, the rest zeros.
constexpr int64_t wide_cols(int64_t cols) { return (cols + kWideChunk - 1) / kWideChunk * kWideChunk; }

// Where number k of a chunk lies in wide order. k = 32 t + 8 w + 4 b + i is lane t's (of four) word w of e2m1 numbers, b the half of
// the word: numbers i and i + 4 of a word share a register. Steps of 16 are the matrix instruction's.
constexpr int wide_position(int k) {
  const int t = k / 32, w = k / 8 % 4, b = k / 4 % 2, i = k % 4;
  return 16 * (2 * w + i / 2) + 8 * (i % 2) + 2 * t + b;
}

// out[r, chunk * 128 + wide_position(k)] = bf16(x[r, chunk * 128 + k]), to nearest even; zero from `cols` on.
// Kernel: ingot_Sm90RoundRows.
struct RoundRowsParams {
  uint16_t* out;  // (rows, wide_cols(cols)), aligned to 16 bytes
  const float* x;
  int64_t x_stride;  // (rows, cols)
  int64_t rows, cols;
  Grid grid() const { return {std::min<int64_t>((rows * (wide_cols(cols) / 8) + 255) / 256, int64_t{1} << 30), 256}; }
  size_t shared_bytes() const { return 0; }
};

enum class WideOutput : int32_t {
  f32,      // y: (num_rows, n) f32
  f32_add,  // the same, added to what y holds
  bf16,     // y: (num_rows, n) bf16, plain order
  gated,    // y: (num_rows, wide_cols(n)) bf16 in wide order: silu(x weight^T) * (x up^T), zero from n on
};

// CombineParams (kernels/params.h) for a y that a product wrote as bf16: out[t,:] (+)= sum over j of weights[t,j] * y[inverse[t*k+j],:], in
// slot order, in f32. Half the bytes of an f32 y, written and read once each; every term is rounded by at most 2^-8 of itself.
// Kernel: ingot_Sm90CombineRounded.
struct CombineRoundedParams {
  float* out;
  int64_t out_stride;  // (T, dim), a multiple of 4; out aligned to 16 bytes
  const uint16_t* y;
  int64_t y_stride;            // (T * k, dim), permuted; a multiple of 8, y aligned to 16 bytes
  const int32_t* inverse;      // (T * k)
  const float* weights;        // (T, k)
  int64_t num_tokens, k, dim;  // dim a multiple of 8
  bool accumulate;
  Grid grid() const { return {std::min<int64_t>((num_tokens * (dim / 8) + 255) / 256, int64_t{1} << 30), 256}; }
  size_t shared_bytes() const { return 0; }
};

// How the work is cut; wide_tiling() below chooses it from shapes alone.
struct WideTiling {
  bool few;                // the kernel for at most 64 rows a tile
  int32_t max_tile;        // rows of x in a tile, at most
  int32_t stages;          // slots of 64 numbers of K of x's tile in shared memory
  int32_t pairs_per_item;  // tiles of 128 weight rows that one block computes with one tile of x, which then stays in shared memory
};

// For row i of y in [offsets[e], offsets[e+1]): y[i,:] (+)= x[src(i),:] . weights[e]^T, src(i) = order[i] / rows_per_source, or i where
// order is null. With offsets null there is one weight, by value, for all rows. K is a multiple of 32, and weights' data is aligned to 16
// bytes; see wide_supported().
struct WideMatmulParams {
  void* y;
  int64_t y_stride;   // in elements of y; of a gated y at least wide_cols(n) and a multiple of 8
  const uint16_t* x;  // (num sources, wide_cols(k)) in wide order, aligned to 16 bytes
  int64_t x_stride;   // a multiple of 8
  const int32_t* order;
  int64_t rows_per_source;
  const int32_t* offsets;         // (num_experts + 1) on the device, or null
  const WeightView* weights;      // (num_experts) on the device, each (n, k), or null
  const WeightView* up_weights;   // gated: the same
  WeightView weight, up_weight;   // where offsets is null
  int64_t num_rows, num_experts;  // num_experts is 1 where offsets is null
  int64_t n, k;
  WideOutput output;
  WeightFormat format;  // of all weights
  WideTiling tiling;
  int64_t multiprocessors;  // the grid: each block stays on one for the whole product

  Grid grid() const { return {num_rows == 0 ? 0 : multiprocessors, 384}; }
  inline size_t shared_bytes() const;
};

inline constexpr int kWideMaxExperts = 512;
inline constexpr int kWideMaxStages = 20;

// Rows of a tile: the widths of the matrix instruction that are compiled.
inline constexpr int kWideTiles[] = {64, 96, 128, 144, 160, 192, 224, 256};
inline constexpr int kFewTiles[] = {16, 32, 48, 64};

// Shared memory of a warp for one chunk of its 16 weight rows, and how many such slots it has.
constexpr int wide_slot_bytes(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 16 * 64 + 16 * 4 : format == WeightFormat::fp8_block ? 16 * 128 : 16 * 256;
}
constexpr int wide_depth(WeightFormat format, bool few) {
  return format == WeightFormat::mxfp4 ? (few ? 10 : 4) : format == WeightFormat::fp8_block ? (few ? 6 : 4) : (few ? 4 : 2);
}
// The widest tile that the registers allow: fp8_block keeps two sums.
constexpr int wide_max_tile(WeightFormat format) { return format == WeightFormat::fp8_block ? 128 : 256; }

// Layout of the dynamic shared memory, from a start aligned to 1024 bytes; constants but for the length of x's ring, which comes last.
struct WideShared {
  int full = 0;                                   // barriers of x's slots
  int empty = full + kWideMaxStages * 8;          // the same
  int state = empty + kWideMaxStages * 8;         // 32 bytes a multiplying warp
  int source = state + 8 * 32;                    // (256): where the rows of x's tile begin
  int key = source + 256 * 4;                     // (experts): width and number of its tiles
  int expert = key + kWideMaxExperts * 4;         // (experts): sorted
  int first_tile = expert + kWideMaxExperts * 4;  // (experts + 1): of the sorted ones
  int weights = (first_tile + kWideMaxExperts * 4 + 4 + 127) / 128 * 128;
  int x;
};
constexpr WideShared wide_shared(WeightFormat format, bool few) {
  WideShared s = {};
  s.x = (s.weights + 8 * wide_depth(format, few) * wide_slot_bytes(format) + 1023) / 1024 * 1024;
  return s;
}
inline size_t WideMatmulParams::shared_bytes() const {
  return static_cast<size_t>(1024 + wide_shared(format, tiling.few).x + tiling.stages * tiling.max_tile * 128);
}

inline constexpr int64_t kWideSharedLimit = 227 * 1024;

constexpr int wide_stages(WeightFormat format, bool few, int max_tile) {
  const int64_t fixed = 1024 + wide_shared(format, few).x;
  return static_cast<int>(std::min<int64_t>(kWideMaxStages, (kWideSharedLimit - fixed) / (max_tile * 128)));
}

// The smallest compiled tile of at least `rows` (at most 256) rows.
constexpr int wide_tile(int64_t rows) {
  for (int tile : kWideTiles)
    if (rows <= tile) return tile;
  return 256;
}

// True where the kernels can run it; the data pointers must be aligned to 16 bytes too.
constexpr bool wide_supported(WeightFormat format, int64_t n, int64_t k, int64_t num_experts) {
  return format != WeightFormat::f32 && n > 0 && k > 0 && k % 32 == 0 && n < (int64_t{1} << 28) && k < (int64_t{1} << 28) &&
         num_experts <= kWideMaxExperts;
}

// The cut with tiles of at most `max_tile` rows of x, of which there are `row_tiles`.
inline WideTiling wide_tiling_of(WeightFormat format, int max_tile, int64_t row_tiles, int64_t pairs, int64_t k, int64_t multiprocessors) {
  WideTiling t = {max_tile <= 64, max_tile, 0, 1};
  t.stages = wide_stages(format, t.few, max_tile);
  if (wide_cols(k) / 64 <= t.stages) {
    // A whole tile of x fits: it stays for several pairs, but there are enough items for the last round to cost little.
    const int64_t most = std::clamp<int64_t>(row_tiles * pairs / (6 * multiprocessors), 1, pairs);
    const int64_t groups = (pairs + most - 1) / most;
    t.pairs_per_item = static_cast<int32_t>((pairs + groups - 1) / groups);
  }
  return t;
}

// The cut for a product of `num_rows` rows in total over `num_experts` weights (n, k).
inline WideTiling wide_tiling(WeightFormat format, WideOutput output, int64_t num_rows, int64_t num_experts, int64_t n, int64_t k,
                              int64_t multiprocessors) {
  const int64_t pairs = output == WideOutput::gated ? wide_cols(n) / 64 : (n + 127) / 128;
  const int64_t steps = wide_cols(k) / 64;  // slots that a whole tile of x takes
  num_rows = std::max<int64_t>(num_rows, 1);
  if (num_experts > 1) {
    // How many rows each expert has is not known here: one tile for most of them, if routing is even.
    const int64_t mean = (num_rows + num_experts - 1) / num_experts;
    int max_tile = std::min(wide_tile(mean + mean / 4 + 16), wide_max_tile(format));
    // Short K: narrower tiles that stay are better than wide ones that are fetched again for each pair.
    int staying = 0;
    for (int tile : kWideTiles) {
      if (tile >= 128 && tile <= max_tile && steps <= wide_stages(format, false, tile)) staying = tile;
    }
    if (staying != 0) max_tile = staying;
    return wide_tiling_of(format, max_tile, std::max(num_rows / max_tile, std::min(num_experts, num_rows)), pairs, k, multiprocessors);
  }
  WideTiling best = {};
  double best_cost = 0;
  for (int max_tile : kWideTiles) {
    if (max_tile > wide_max_tile(format)) break;
    const int64_t row_tiles = (num_rows + max_tile - 1) / max_tile;
    const WideTiling t = wide_tiling_of(format, max_tile, row_tiles, pairs, k, multiprocessors);
    const bool stays = t.pairs_per_item > 1;
    const int64_t items = row_tiles * ((pairs + t.pairs_per_item - 1) / t.pairs_per_item);
    const double rounds = static_cast<double>((items + multiprocessors - 1) / multiprocessors);
    // Clocks. A step of 64 costs 4 a row in the matrix unit, and no less than unpacking the weights does; what a pair writes at its end
    // is hidden behind the other warpgroup's products where x stays.
    const double tile = wide_tile((num_rows + row_tiles - 1) / row_tiles);
    const double pair = (std::max(4 * tile, 250.0) + 40) * static_cast<double>(steps) + (stays ? 2 : 8) * tile + 400;
    const double cost = rounds * (pair * t.pairs_per_item + 1500);
    if (best.max_tile == 0 || cost < best_cost) best = t, best_cost = cost;
  }
  return best;
}

constexpr const char* wide_kernel(WeightFormat format, bool few) {
  switch (format) {
    case WeightFormat::mxfp4: return few ? "ingot_Sm90WideMatmulMxfp4Few" : "ingot_Sm90WideMatmulMxfp4";
    case WeightFormat::fp8_block: return few ? "ingot_Sm90WideMatmulFp8Few" : "ingot_Sm90WideMatmulFp8";
    default: return few ? "ingot_Sm90WideMatmulBf16Few" : "ingot_Sm90WideMatmulBf16";
  }
}

}  // namespace ingot::kernels::sm90
