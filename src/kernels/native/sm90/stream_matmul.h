// Products of a decode step, y = x w^T for few rows of x: bound by the bytes of the weights, which are read in the format of the checkpoint
// (mxfp4, fp8_block, bf16). Params and their pure functions, for the host; kernels: stream_matmul.cu, stream_team.cu,
// stream_transposed.cu.
//
// x is rounded to bf16, weights become bf16 exactly, sums are f32. K is cut into chunks (stream_chunk) and these are dealt to `slices`
// sums, chunk c to sum c % slices, each along rising K; the sums are then added in order. FP8 chunks are multiplied by their scale first.
// `slices` depends on the shapes of the weights alone, so a row of y has the same bits whatever other rows run beside it, from 0 rows to
// any number, in all kernels of one product.
//
// The kernels of stream_matmul.cu take kStreamRows rows of x in a pass over the weights, or kStreamSeveralRows ("Several"), those of
// stream_team.cu ("Many", clusters of kStreamTeamBlocks blocks) kStreamTeamRows; entry() takes the fastest.
//
// All: K is a multiple of 32 (mxfp4) or 16, N any number; `data` of every weight is aligned to 16 bytes, FP8 scales to 4 (mxfp4 scales need
// not be, but are read faster when aligned to 4). x, y and strides need no alignment; x is read faster when rows are aligned to 16 bytes.
// A kernel starts with griddepcontrol.wait, so programmatic dependent launch is allowed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/grid.h"
#include "tensor/weight_view.h"

namespace ingot::kernels::sm90 {

using gpu::Grid;
using tensor::WeightFormat;
using tensor::WeightView;

inline constexpr int kStreamWarps = 16;
inline constexpr int kStreamBlocks = 132;  // one a multiprocessor; fewer or more are right as well
inline constexpr int kStreamRows = 8;      // rows of x in one pass
inline constexpr int kStreamMaxOutputs = 4;

// Teams: clusters that multiprocessors can hold next to each other, and the parts of a block's shared memory (all of what there is).
inline constexpr int kStreamTeamBlocks = 8, kStreamTeamGrid = 16 * kStreamTeamBlocks, kStreamTeamRows = 64;
inline constexpr int kStreamTeamXBytes = 98304, kStreamTeamRingBytes = 6336, kStreamTeamSumBytes = 32768;
inline constexpr size_t kStreamTeamSharedBytes = kStreamTeamXBytes + kStreamWarps * kStreamTeamRingBytes + kStreamTeamSumBytes;

constexpr bool stream_supports(WeightFormat format, int64_t k) {
  return k > 0 && (format == WeightFormat::mxfp4 ? k % 32 == 0 : format != WeightFormat::f32 && k % 16 == 0);
}

// Numbers along K that a warp takes at a time.
constexpr int stream_chunk(WeightFormat format) { return format == WeightFormat::bf16 ? 64 : 128; }
constexpr int stream_chunks(WeightFormat format, int64_t k) {
  return static_cast<int>((k + stream_chunk(format) - 1) / stream_chunk(format));
}

// Into how many sums K is dealt, for `tiles` tiles of 16 rows of weights: what fills the GPU's warps best, but few where it is all the
// same.
constexpr int stream_slices(WeightFormat format, int64_t k, int64_t tiles) {
  const int chunks = stream_chunks(format, k);
  int best = 1;
  int64_t best_time = 0;
  for (int slices = 1; slices <= kStreamWarps && slices <= chunks; slices *= 2) {
    const int64_t at_once = kStreamBlocks * kStreamWarps / slices;
    const int64_t time = (tiles + at_once - 1) / at_once * (kStreamWarps / slices);
    if (best_time == 0 || time < best_time) best = slices, best_time = time;
  }
  return best;
}
// The same where the number of tiles is known on the device alone. Eight are no faster for one row, and slower for more, whose groups wait
// for each other more often (docs/shard.md).
constexpr int stream_slices_grouped(WeightFormat format, int64_t k) {
  const int chunks = stream_chunks(format, k);
  int slices = 1;
  while (k > 512 && slices < 4 && slices * 2 <= chunks) slices *= 2;
  return slices;
}

// Several rows: four times as many in one pass, where all of K fits in shared memory for that.
inline constexpr int kStreamSeveralRows = 4 * kStreamRows, kStreamSeveralK = 2048;
constexpr bool stream_several(int64_t rows, int64_t k) { return rows > kStreamRows && k <= kStreamSeveralK; }

// Chunks of x that are in shared memory at once: all, or (K above 6144 or so) as many as fit, in whole rounds of the slices.
constexpr int stream_segment(WeightFormat format, int64_t k) {
  const int chunks = stream_chunks(format, k), fitting = 6144 / stream_chunk(format);
  return chunks < fitting ? chunks : fitting;
}
// A warp's ring: items (chunks of a tile's rows) that are on their way or in use. `tall` kernels take two tiles of 16 rows at once.
constexpr int stream_item_bytes(WeightFormat format, bool tall) { return (format == WeightFormat::mxfp4 ? 1024 : 2048) * (tall ? 2 : 1); }
constexpr int stream_stages(WeightFormat format, bool tall, int rows) {
  if (rows == kStreamRows) return 6144 / stream_item_bytes(format, tall);
  return format == WeightFormat::mxfp4 ? 3 : 2;  // what is left beside the rows of x
}
constexpr int stream_scale_bytes(WeightFormat format, bool tall) { return format == WeightFormat::bf16 ? 0 : tall ? 128 : 64; }
// `rows` of x in a pass: kStreamRows or kStreamSeveralRows.
constexpr size_t stream_shared_bytes(WeightFormat format, int64_t k, bool tall, int rows) {
  const size_t x =
      static_cast<size_t>(stream_segment(format, k)) * static_cast<size_t>(stream_chunk(format)) * static_cast<size_t>(rows) * 2;
  const int item = stream_item_bytes(format, tall) + stream_scale_bytes(format, tall);
  const size_t ring = static_cast<size_t>(stream_stages(format, tall, rows) * item);
  const size_t sums = static_cast<size_t>(rows * 16 * (tall ? 2 : 1)) * 4;
  return x + static_cast<size_t>(kStreamWarps) * (ring + sums);
}

constexpr const char* stream_name(WeightFormat format, const char* mxfp4, const char* fp8, const char* bf16) {
  switch (format) {
    case WeightFormat::mxfp4: return mxfp4;
    case WeightFormat::fp8_block: return fp8;
    case WeightFormat::bf16: return bf16;
    case WeightFormat::f32: break;
  }
  return nullptr;
}
#define INGOT_STREAM_NAME(FORMAT, NAME, SUFFIX) \
  stream_name(FORMAT, "ingot_Sm90Stream" NAME "Mxfp4" SUFFIX, "ingot_Sm90Stream" NAME "Fp8" SUFFIX, "ingot_Sm90Stream" NAME "Bf16" SUFFIX)

// For every permuted row i of expert e (offsets[e] <= i < offsets[e + 1]), with s = order[i] / rows_per_source, or i when order is null:
//   ups null:  y[i,:] = x[s,:] . weights[e]^T
//   otherwise: y[i,:] = silu(x[s,:] . weights[e]^T) * (x[s,:] . ups[e]^T)
// Kernels: ingot_Sm90StreamGrouped<F> and ingot_Sm90StreamGated<F>, F = Mxfp4, Fp8 or Bf16.
struct StreamGroupedParams {
  float* y;
  int64_t y_stride;  // (num_rows, n)
  const float* x;
  int64_t x_stride;             // (num sources, k)
  const int32_t* order;         // (num_rows) or null
  int64_t rows_per_source = 1;  // below 2^31
  const int32_t* offsets;       // (num_experts + 1)
  const WeightView* weights;    // (num_experts) on the device, each (n, k) of `format`
  const WeightView* ups;        // the same, or null
  int64_t num_rows, num_experts, n, k;
  WeightFormat format;

  // mxfp4 kernels take two tiles of 16 rows at once, which share what they read of x: faster for every number of rows (docs/shard.md).
  bool tall() const { return format == WeightFormat::mxfp4; }
  Grid grid() const { return {num_rows == 0 ? 0 : kStreamBlocks, kStreamWarps * 32}; }
  size_t shared_bytes() const { return stream_shared_bytes(format, k, tall(), kStreamRows); }
  const char* entry() const { return ups != nullptr ? INGOT_STREAM_NAME(format, "Gated", "") : INGOT_STREAM_NAME(format, "Grouped", ""); }
};

// Up to four products of the same x, of weights of one format and K: outputs[i].y[m,:] (+)= x[m,:] . outputs[i].w^T. With `accumulate` it
// is added to y, which is then the last addition.
// Kernels: ingot_Sm90StreamDense<F>, F = Mxfp4, Fp8 or Bf16, or these with "Several" or "Many".
struct StreamDenseParams {
  struct Output {
    WeightView w;  // (n, k)
    float* y;
    int64_t y_stride;  // (rows, n)
  };
  Output outputs[kStreamMaxOutputs];
  int32_t count;  // of outputs, at least 1
  const float* x;
  int64_t x_stride;  // (rows, k)
  int64_t rows;
  bool accumulate;

  WeightFormat format() const { return outputs[0].w.format; }
  int64_t k() const { return outputs[0].w.cols; }
  int64_t tiles() const {
    int64_t sum = 0;
    for (int i = 0; i < count; ++i) sum += (outputs[i].w.rows + 15) / 16;
    return sum;
  }
  int32_t slices = 0;  // set by plan()
  void plan() { slices = stream_slices(format(), k(), tiles()); }

  // Teams pay for long sums over many tiles; elsewhere what their blocks exchange costs more than reading the weights again (measured,
  // docs/shard.md).
  bool many() const { return rows > kStreamRows && slices <= 8 && k() >= 4096; }
  bool several() const { return stream_several(rows, k()); }
  Grid grid() const { return {rows == 0 ? 0 : many() ? kStreamTeamGrid : kStreamBlocks, kStreamWarps * 32}; }
  size_t shared_bytes() const {
    return many() ? kStreamTeamSharedBytes : stream_shared_bytes(format(), k(), false, several() ? kStreamSeveralRows : kStreamRows);
  }
  const char* entry() const {
    if (many()) return INGOT_STREAM_NAME(format(), "Dense", "Many");
    return several() ? INGOT_STREAM_NAME(format(), "Dense", "Several") : INGOT_STREAM_NAME(format(), "Dense", "");
  }
};

// The transposed product: a block has one head, kTransposedColumns columns of y and kStreamRows or kStreamSeveralRows tokens at a time. The
// rows of w go in steps of 16, step s to warp s % kTransposedWarps, whose sums are then added in order.
inline constexpr int kTransposedColumns = 64, kTransposedWarps = 4;

// A product a head, of rows of one weight: head h has rows [h * head_rows + first_row, .. + n) of w.
//   y[t,h,:] = x[t,h,:] . rows^T      (n numbers from w.cols)    kernels ingot_Sm90StreamHeads<F>
//   y[t,h,:] = x[t,h,:] . rows        (w.cols numbers from n)    kernels ingot_Sm90StreamHeadsTransposed<F>, w.cols a multiple of 32
// and these with "Several".
// Strides in numbers, of tokens and of heads.
struct StreamHeadsParams {
  float* y;
  int64_t y_token_stride, y_head_stride;
  const float* x;
  int64_t x_token_stride, x_head_stride;
  WeightView w;  // (heads * head_rows, cols)
  int64_t head_rows, first_row, n;
  int64_t heads, rows;  // rows: tokens
  bool transposed;

  int32_t slices = 0;  // set by plan(); not for the transposed product
  void plan() { slices = stream_slices(w.format, w.cols, heads * ((n + 15) / 16)); }

  bool several() const { return transposed ? rows > kStreamRows : stream_several(rows, w.cols); }
  int rows_at_once() const { return several() ? kStreamSeveralRows : kStreamRows; }
  Grid grid() const;
  size_t shared_bytes() const {
    if (transposed) return static_cast<size_t>(kTransposedWarps * kTransposedColumns * rows_at_once()) * 4;
    return stream_shared_bytes(w.format, w.cols, false, rows_at_once());
  }
  const char* entry() const {
    if (transposed)
      return several() ? INGOT_STREAM_NAME(w.format, "HeadsTransposed", "Several") : INGOT_STREAM_NAME(w.format, "HeadsTransposed", "");
    return several() ? INGOT_STREAM_NAME(w.format, "Heads", "Several") : INGOT_STREAM_NAME(w.format, "Heads", "");
  }
};
#undef INGOT_STREAM_NAME

inline Grid StreamHeadsParams::grid() const {
  if (!transposed) return {rows == 0 ? 0 : kStreamBlocks, kStreamWarps * 32};
  const int64_t groups = (rows + rows_at_once() - 1) / rows_at_once();
  return {heads * ((w.cols + kTransposedColumns - 1) / kTransposedColumns) * (groups < 16 ? groups : 16), kTransposedWarps * 32};
}

}  // namespace ingot::kernels::sm90
