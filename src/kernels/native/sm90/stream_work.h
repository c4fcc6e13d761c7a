// What the stream kernels work on: the list of units of each of the products of stream_matmul.h. A unit is a tile of weight rows for up to
// `rows` rows of x; how many rows of weights are a tile (tile_rows) is up to the caller.
#pragma once

#include "kernels/native/sm90/stream_matmul.h"
#include "kernels/native/sm90/stream_multiply.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

SM90_FN float silu(float v) { return v / (1.0f + expf(-v)); }

// ---- x

SM90_FN void load_eight(const float* from, bool exists, float (&v)[8]) {
  for (int i = 0; i < 8; ++i) v[i] = 0.0f;
  if (!exists) return;
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    for (int i = 0; i < 8; ++i) v[i] = from[i];
  }
}

// Eight numbers of x as a lane's part of a slot.
template <class F>
SM90_FN uint4 pack_eight(const float (&v)[8]) {
  if constexpr (F::kPairStep == 4)
    return {pack_bf16(v[0], v[4]), pack_bf16(v[1], v[5]), pack_bf16(v[2], v[6]), pack_bf16(v[3], v[7])};
  else
    return {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}

// ---- units

// The rows of x that a run of units shares.
struct StreamRun {
  int begin, end;  // units
  int key;         // expert, head, or nothing
  int first_row;   // of y (and of the order, or of x)
  int count;       // rows, at least 1
};

// The part of a row of y that a unit has.
struct StreamOutputRow {
  float* y;  // at the unit's first row of w
  int left;  // rows of w from there on
  bool accumulate = false;

  SM90_FN void store(int n, float value) const {
    if (n < left) y[n] = accumulate ? y[n] + value : value;
  }
};

// Which part of the launch's units one has, and how many rows of x a pass has.
struct StreamPart {
  int index, parts, rows;
};

// Gives each part of the launch its units, neighbours together.
SM90_FN void share_units(int64_t units, const StreamPart& part, int& first, int& last) {
  const int64_t each = (units + part.parts - 1) / part.parts;
  const int64_t begin = each * part.index, end = begin + each;
  first = static_cast<int>(begin < units ? begin : units);
  last = static_cast<int>(end < units ? end : units);
}

// Units: expert by expert, its rows in passes of `rows`, all tiles of w for each.
template <bool Gated>
struct StreamGroupedWork {
  static constexpr bool kGated = Gated;
  static constexpr bool kWaitsFirst = true;  // which weights are needed is what the kernel before says
  static constexpr bool kViewsOfRun = true;

  const StreamGroupedParams& p;
  StreamPart part;

  SM90_FN int64_t k() const { return p.k; }
  SM90_FN int tiles(int tile_rows) const { return (static_cast<int>(p.n) + tile_rows - 1) / tile_rows; }
  SM90_FN int passes(int expert) const {
    return expert < p.num_experts ? (p.offsets[expert + 1] - p.offsets[expert] + part.rows - 1) / part.rows : 0;
  }

  // Every warp finds out by itself: a lane adds up the passes of neighbouring experts.
  SM90_FN void start(int tile_rows, int lane, int& first_unit, int& last_unit, StreamRun& run) const {
    const int per_lane = (static_cast<int>(p.num_experts) + 31) / 32, mine = lane * per_lane;
    int sum = 0;
#pragma unroll 8
    for (int i = 0; i < per_lane; ++i) sum += passes(mine + i);
    int up_to = sum;  // this lane's last
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += below;
    }
    share_units(static_cast<int64_t>(__shfl_sync(kAllLanes, up_to, 31)) * tiles(tile_rows), part, first_unit, last_unit);
    if (first_unit >= last_unit) return;
    const int wanted = first_unit / tiles(tile_rows);  // the pass, counted over all experts
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to > wanted))) - 1;
    int expert = mine, pass = wanted - (up_to - sum);
    if (lane == owner) {
      while (pass >= passes(expert)) pass -= passes(expert++);
    }
    expert = __shfl_sync(kAllLanes, expert, owner);
    pass = __shfl_sync(kAllLanes, pass, owner);
    run.key = expert;
    run.begin = wanted * tiles(tile_rows);
    go_to_pass(tile_rows, p.offsets[expert] + pass * part.rows, run);
  }
  SM90_FN void next(int tile_rows, StreamRun& run) const {
    run.begin = run.end;
    int row = run.first_row + run.count;
    while (row >= p.offsets[run.key + 1]) ++run.key;  // to one that has rows; called while there are more
    go_to_pass(tile_rows, row, run);
  }
  SM90_FN void go_to_pass(int tile_rows, int first_row, StreamRun& run) const {
    const int left = p.offsets[run.key + 1] - first_row;
    run.first_row = first_row;
    run.count = left < part.rows ? left : part.rows;
    run.end = run.begin + tiles(tile_rows);
  }

  SM90_FN void views(const StreamRun& run, WeightView* views) const {
    views[0] = p.weights[run.key];
    if (kGated) views[1] = p.ups[run.key];
  }
  // The first row of a unit's tile in the run's views.
  SM90_FN int first_row(int tile_rows, const StreamRun& run, int unit) const { return (unit - run.begin) * tile_rows; }
  SM90_FN const float* source(const StreamRun& run, int column) const {
    const int row = run.first_row + column;
    return p.x + (p.order != nullptr ? p.order[row] / static_cast<int>(p.rows_per_source) : row) * p.x_stride;
  }
  SM90_FN StreamOutputRow output_row(int tile_rows, const StreamRun& run, int unit, int column) const {
    const int first = first_row(tile_rows, run, unit);
    return {p.y + (run.first_row + column) * p.y_stride + first, static_cast<int>(p.n) - first};
  }
};

// Units: the rows of x in passes of `rows`, all tiles of all outputs for each.
struct StreamDenseWork {
  static constexpr bool kGated = false;
  static constexpr bool kWaitsFirst = false;
  static constexpr bool kViewsOfRun = false;

  const StreamDenseParams& p;
  StreamPart part;

  SM90_FN int64_t k() const { return p.outputs[0].w.cols; }
  SM90_FN static int tiles(int tile_rows, const StreamDenseParams::Output& o) {
    return (static_cast<int>(o.w.rows) + tile_rows - 1) / tile_rows;
  }
  SM90_FN int tiles(int tile_rows) const {
    int sum = 0;
    for (int i = 0; i < p.count; ++i) sum += tiles(tile_rows, p.outputs[i]);
    return sum;
  }

  SM90_FN void start(int tile_rows, int, int& first_unit, int& last_unit, StreamRun& run) const {
    const int all = tiles(tile_rows);
    share_units((p.rows + part.rows - 1) / part.rows * all, part, first_unit, last_unit);
    run.key = 0;
    go_to_pass(tile_rows, first_unit / all, run);
  }
  SM90_FN void next(int tile_rows, StreamRun& run) const { go_to_pass(tile_rows, run.first_row / part.rows + 1, run); }
  SM90_FN void go_to_pass(int tile_rows, int pass, StreamRun& run) const {
    const int left = static_cast<int>(p.rows) - pass * part.rows;
    run.first_row = pass * part.rows;
    run.count = left < part.rows ? left : part.rows;
    run.begin = pass * tiles(tile_rows);
    run.end = run.begin + tiles(tile_rows);
  }

  SM90_FN int output(int tile_rows, const StreamRun& run, int unit, int& tile) const {
    tile = unit - run.begin;
    int i = 0;
    for (; i + 1 < p.count && tile >= tiles(tile_rows, p.outputs[i]); ++i) tile -= tiles(tile_rows, p.outputs[i]);
    return i;
  }
  // The view of a unit's tile, and the tile's first row in it.
  SM90_FN int weights(int tile_rows, const StreamRun& run, int unit, WeightView* views) const {
    int tile;
    const StreamDenseParams::Output& o = p.outputs[output(tile_rows, run, unit, tile)];
    views[0] = o.w;
    return tile * tile_rows;
  }
  // Rows of w from the first of a unit on.
  SM90_FN int rows_from(int tile_rows, const StreamRun& run, int unit) const {
    int tile;
    const StreamDenseParams::Output& o = p.outputs[output(tile_rows, run, unit, tile)];
    return static_cast<int>(o.w.rows) - tile * tile_rows;
  }
  SM90_FN const float* source(const StreamRun& run, int column) const { return p.x + (run.first_row + column) * p.x_stride; }
  SM90_FN StreamOutputRow output_row(int tile_rows, const StreamRun& run, int unit, int column) const {
    int tile;
    const StreamDenseParams::Output& o = p.outputs[output(tile_rows, run, unit, tile)];
    const int first = tile * tile_rows;
    return {o.y + (run.first_row + column) * o.y_stride + first, static_cast<int>(o.w.rows) - first, p.accumulate};
  }
};

// Units: the tokens in passes of `rows`, for each all heads, for each all tiles.
struct StreamHeadsWork {
  static constexpr bool kGated = false;
  static constexpr bool kWaitsFirst = false;
  static constexpr bool kViewsOfRun = true;

  const StreamHeadsParams& p;
  StreamPart part;

  SM90_FN int64_t k() const { return p.w.cols; }
  SM90_FN int tiles(int tile_rows) const { return (static_cast<int>(p.n) + tile_rows - 1) / tile_rows; }

  SM90_FN void start(int tile_rows, int, int& first_unit, int& last_unit, StreamRun& run) const {
    share_units((p.rows + part.rows - 1) / part.rows * p.heads * tiles(tile_rows), part, first_unit, last_unit);
    go_to(tile_rows, first_unit / tiles(tile_rows), run);
  }
  SM90_FN void next(int tile_rows, StreamRun& run) const { go_to(tile_rows, run.end / tiles(tile_rows), run); }
  SM90_FN void go_to(int tile_rows, int index, StreamRun& run) const {
    const int heads = static_cast<int>(p.heads);
    const int left = static_cast<int>(p.rows) - index / heads * part.rows;
    run.key = index % heads;
    run.first_row = index / heads * part.rows;
    run.count = left < part.rows ? left : part.rows;
    run.begin = index * tiles(tile_rows);
    run.end = run.begin + tiles(tile_rows);
  }

  SM90_FN void views(const StreamRun& run, WeightView* views) const { views[0] = p.w.row_slice(run.key * p.head_rows + p.first_row, p.n); }
  SM90_FN int first_row(int tile_rows, const StreamRun& run, int unit) const { return (unit - run.begin) * tile_rows; }
  SM90_FN const float* source(const StreamRun& run, int column) const {
    return p.x + (run.first_row + column) * p.x_token_stride + run.key * p.x_head_stride;
  }
  SM90_FN StreamOutputRow output_row(int tile_rows, const StreamRun& run, int unit, int column) const {
    const int first = first_row(tile_rows, run, unit);
    return {p.y + (run.first_row + column) * p.y_token_stride + run.key * p.y_head_stride + first, static_cast<int>(p.n) - first};
  }
};

}  // namespace ingot::kernels::sm90

#endif
