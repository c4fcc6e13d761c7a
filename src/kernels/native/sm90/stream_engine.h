// The body of the kernels of stream_matmul.cu. A block has 16 warps; `slices` of them share a tile of rows of weights, each with its part
// of K, so 16 / slices groups work on tiles of their own. The block's tiles are a range of the launch's list of units (a unit: one tile for
// up to kRows rows of x), neighbours of which mostly have the same rows of x (a run): these lie in shared memory, in bf16, laid out as the
// B operands (stream_multiply.h). A warp copies its own weights into its own ring behind its back, several items (a
// tile's chunk of K) ahead and across units and runs, so memory is kept busy while blocks change x or add up sums.
#pragma once

#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/stream_multiply.h"
#include "kernels/native/sm90/stream_work.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

// Work: which units a block has, where their weights, x and y are (stream_work.h).
template <class Work, class F, int kTiles, int kColumns>
struct StreamBody {
  static constexpr bool kGated = Work::kGated;
  static constexpr int kChunk = stream_chunk(F::kFormat);
  static constexpr int kSlots = F::kPieces * F::kSlotsOfPiece;
  static constexpr int kRowBytes = F::kPieces * 64;             // of a chunk
  static constexpr int kPieceK = kChunk / F::kPieces;           // numbers of a piece of the four lanes of a row
  static constexpr int kTileRows = kTiles * (kGated ? 8 : 16);  // rows of w in a unit; with gates as many of each of both
  static constexpr int kItemBytes = kTiles * 2 * F::kPieces * 512;
  static constexpr int kRows = kColumns * kStreamRows;  // of x, at most
  static constexpr int kStages = stream_stages(F::kFormat, kTiles == 2, kRows);
  static constexpr int kScaleBytes = stream_scale_bytes(F::kFormat, kTiles == 2);  // of an item: a word a row
  static constexpr int kThreads = kStreamWarps * 32;
  static constexpr int kViews = kGated ? 2 : 1;
  static_assert(kStages >= 2 && kItemBytes == stream_item_bytes(F::kFormat, kTiles == 2) && kRows <= 32);

  const Work& work;
  int k, chunks, slices, groups, segment;  // segment: chunks of x in shared memory at once
  int lane, warp, group, slice;
  uint32_t x_shared, ring, scales, sums;  // addresses in shared memory; ring and scales are the warp's, sums the group's
  int first_unit, last_unit;              // the block's: [first, last)
  int row_bytes;
  bool whole_chunks;  // K is a multiple of a chunk

  // Where a warp is in its list of items.
  struct Cursor {
    StreamRun run;
    int unit, chunk;
    WeightView views[kViews];       // of the run, where that has one for all units
    const uint8_t* row[kTiles][2];  // the lane's rows, at its first piece
    const uint8_t* scale;           // of the row whose scale this lane copies
    bool scale_is_word;             // one that can be copied as it lies
  };

  SM90_FN StreamBody(const Work& w, uint32_t shared, int slice_count) : work(w), slices(slice_count) {
    k = static_cast<int>(work.k());
    chunks = (k + kChunk - 1) / kChunk;
    segment = stream_segment(F::kFormat, k);
    row_bytes = static_cast<int>(static_cast<int64_t>(k) * kRowBytes / kChunk);
    whole_chunks = k % kChunk == 0;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    groups = kStreamWarps / slices;
    group = warp / slices;
    slice = warp % slices;
    x_shared = shared;
    const uint32_t rings = x_shared + static_cast<uint32_t>(segment * kSlots * kColumns * 512);
    ring = rings + static_cast<uint32_t>(warp * kStages * kItemBytes);
    const uint32_t all_scales = rings + kStreamWarps * kStages * kItemBytes;
    scales = all_scales + static_cast<uint32_t>(warp * kStages * kScaleBytes);
    sums = all_scales + kStreamWarps * kStages * kScaleBytes + static_cast<uint32_t>(group * slices * kTiles * kColumns * 512);
  }

  SM90_FN void run() {
    Cursor next;
    if constexpr (Work::kWaitsFirst) wait_for_previous_kernel();
    work.start(kTileRows, lane, first_unit, last_unit, next.run);
    if (first_unit >= last_unit) return;
    allow_next_kernel();
    StreamRun now = next.run;
    next.unit = first_unit + group;
    next.chunk = slice;
    if constexpr (Work::kViewsOfRun) work.views(next.run, next.views);
    go_to_unit(next);
    for (int stage = 0; stage < kStages; ++stage) copy_item(next, stage);
    if constexpr (!Work::kWaitsFirst) wait_for_previous_kernel();

    float acc[kTiles][kColumns][4] = {};
    int stage = 0;
    for (;; work.next(kTileRows, now)) {
      const int end = now.end < last_unit ? now.end : last_unit, begin = now.begin > first_unit ? now.begin : first_unit;
      for (int round = begin; round < end; round += groups) {  // a run begins with the first group, or groups would wait for nothing
        const int unit = round + group;
        const bool mine = unit < end;
        for (int at = 0; at < chunks; at += segment) {
          if (round == begin || segment < chunks) {
            __syncthreads();  // nobody reads the last rows any more
            put_rows(now, at);
            __syncthreads();
          }
          if (!mine) continue;
          const int stop = at + segment < chunks ? at + segment : chunks;
          for (int chunk = at + slice; chunk < stop; chunk += slices) {
            wait_copies<kStages - 1>();
            __syncwarp();  // scales were copied by other lanes
            multiply(stage, chunk - at, acc);
            __syncwarp();
            copy_item(next, stage);
            stage = stage + 1 < kStages ? stage + 1 : 0;
          }
        }
        if (mine) finish(now, unit, acc);
      }
      if (now.end >= last_unit) break;
    }
  }

  // ---- copies

  // The pointers of next.unit, which is in next.run or a later one. Nothing when the warp has no more units.
  SM90_FN void go_to_unit(Cursor& next) {
    while (next.unit >= next.run.end) {
      if (next.run.end >= last_unit) {
        next.unit = last_unit;
        return;
      }
      work.next(kTileRows, next.run);
      next.unit = next.run.begin + group;
      if constexpr (Work::kViewsOfRun) work.views(next.run, next.views);
    }
    if (next.unit >= last_unit) return;
    const WeightView(&views)[kViews] = next.views;
    int first;
    if constexpr (Work::kViewsOfRun)
      first = work.first_row(kTileRows, next.run, next.unit);
    else
      first = work.weights(kTileRows, next.run, next.unit, next.views);
    const int g = lane / 4, limit = static_cast<int>(views[0].rows) - 1;
    const auto clamped = [&](int n) { return n < limit ? n : limit; };  // rows that do not exist: any other, their sums are dropped
    for (int m = 0; m < kTiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int n = clamped(kGated ? first + m * 8 + g : first + m * 16 + half * 8 + g);
        next.row[m][half] = views[kGated ? half : 0].data + static_cast<int64_t>(n) * row_bytes + lane % 4 * 16;
      }
    }
    if constexpr (F::kScaleWords) {  // lane l: row l of the unit, in the order tile, half, g
      const int m = lane / 16;
      const bool up = kGated && lane / 8 % 2 == 1;
      const uint8_t* table = up ? views[kViews - 1].scale : views[0].scale;
      const int n = clamped(kGated ? first + m * 8 + lane % 8 : first + lane);
      if constexpr (F::kChunkScales) {
        next.scale = table + ((up ? views[kViews - 1].first_row : views[0].first_row) + n) / 128 * chunks * 4;
        next.scale_is_word = true;
      } else {
        next.scale = table + static_cast<int64_t>(n) * (k / 32);
        next.scale_is_word = whole_chunks && reinterpret_cast<uint64_t>(next.scale) % 4 == 0;
      }
    }
  }

  // Starts the copy of the cursor's item into a stage of the ring, and goes on to the next.
  SM90_FN void copy_item(Cursor& next, int stage) {
    if (next.unit < last_unit) {
      const uint32_t to = ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16);
      if (whole_chunks) {  // without the other branch's selects, which the loop would feel
        copy_rows(next, to, [](int) { return true; });
      } else {
        const int bytes_left = row_bytes - next.chunk * kRowBytes - lane % 4 * 16;
        copy_rows(next, to, [&](int i) { return i * 64 < bytes_left; });
      }
      if constexpr (F::kScaleWords) {
        if (lane < kTiles * 16) {
          const uint32_t scale_to = scales + static_cast<uint32_t>(stage * kScaleBytes + lane * 4);
          const uint8_t* from = next.scale + static_cast<int64_t>(next.chunk) * 4;
          if (next.scale_is_word)
            copy_async_4(scale_to, from);
          else
            copy_scale_bytes(from, k, next.chunk, scale_to);
        }
      }
      next.chunk += slices;
      if (next.chunk >= chunks) {
        next.chunk = slice;
        next.unit += groups;
        go_to_unit(next);
      }
    }
    commit_copies();
  }

  // `exists(i)`: whether this lane's piece i of the chunk does.
  template <class Exists>
  SM90_FN void copy_rows(const Cursor& next, uint32_t to, const Exists& exists) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* from = next.row[m][half] + static_cast<int64_t>(next.chunk) * kRowBytes;
#pragma unroll
        for (int i = 0; i < F::kPieces; ++i)
          copy_async_16(to + static_cast<uint32_t>(((m * 2 + half) * F::kPieces + i) * 512), exists(i) ? from + i * 64 : next.row[m][half],
                        exists(i));
      }
    }
  }

  // ---- x

  // Rows of x, chunks at.. of K, as B operands: slot (chunk, slot of the chunk, lane) of 16 bytes. Columns that the run does not have keep
  // what was there: no other column of the product sees them.
  SM90_FN void put_rows(const StreamRun& run, int at) {
    const int here = chunks - at < segment ? chunks - at : segment;
    const int each = here * kSlots * 4, total = each * run.count;
    const float* mine = lane < run.count ? work.source(run, lane) : nullptr;
    constexpr int kAtOnce = 4;
    for (int base = 0; base < total; base += kThreads * kAtOnce) {
      float v[kAtOnce][8];
      uint32_t to[kAtOnce];
      bool valid[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const int i = base + r * kThreads + static_cast<int>(threadIdx.x);
        valid[r] = i < total;
        const int column = valid[r] ? i / each : 0, part = i % each;
        const float* row = reinterpret_cast<const float*>(__shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(mine), column));
        const int t = part % 4, slot = part / 4 % kSlots, chunk = part / 4 / kSlots;
        const int from = (at + chunk) * kChunk + slot / F::kSlotsOfPiece * kPieceK + t * (kPieceK / 4) + slot % F::kSlotsOfPiece * 8;
        to[r] = x_shared + static_cast<uint32_t>(((part / 4 * kColumns + column / 8) * 32 + column % 8 * 4 + t) * 16);
        load_eight(row + from, valid[r] && from < k, v[r]);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (!valid[r]) continue;
        store_shared(to[r], pack_eight<F>(v[r]));
      }
    }
  }

  // ---- sums

  SM90_FN void multiply(int stage, int chunk_here, float (&acc)[kTiles][kColumns][4]) {
    StreamMultiply<F, kTiles, kColumns>::run(ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16),
                                             x_shared + static_cast<uint32_t>((chunk_here * kSlots * kColumns * 32 + lane) * 16),
                                             scales + static_cast<uint32_t>(stage * kScaleBytes), lane, acc);
  }

  // Adds up the slices' sums of a unit, writes y and clears the sums.
  SM90_FN void finish(const StreamRun& run, int unit, float (&acc)[kTiles][kColumns][4]) {
    if (slices == 1) {
      const int n = lane / 4;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = c * 8 + lane % 4 * 2 + e;
          if (column >= run.count) continue;
          const auto y = work.output_row(kTileRows, run, unit, column);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            if (kGated) {
              y.store(n + m * 8, silu(acc[m][c][e]) * acc[m][c][e + 2]);
            } else {
              y.store(n + m * 16, acc[m][c][e]);
              y.store(n + m * 16 + 8, acc[m][c][e + 2]);
            }
          }
        }
      }
    } else {
      const int threads = slices * 32, thread = slice * 32 + lane;
      sync_threads_of(1 + group, threads);  // the last unit's sums have been read
      for (int m = 0; m < kTiles; ++m) {
        for (int c = 0; c < kColumns; ++c)
          store_shared(sums + static_cast<uint32_t>((((slice * kTiles + m) * kColumns + c) * 32 + lane) * 16),
                       uint4{__float_as_uint(acc[m][c][0]), __float_as_uint(acc[m][c][1]), __float_as_uint(acc[m][c][2]),
                             __float_as_uint(acc[m][c][3])});
      }
      sync_threads_of(1 + group, threads);
      for (int i = thread; i < kTileRows * kRows; i += threads) {
        const int n = i % kTileRows, column = i / kTileRows;
        if (column >= run.count) break;
        const int m = kGated ? n / 8 : n / 16, half = kGated ? 0 : n / 8 % 2;
        const uint32_t at = sums + static_cast<uint32_t>(((m * kColumns + column / 8) * 32 + n % 8 * 4 + column % 8 / 2) * 16 +
                                                         (half * 2 + column % 2) * 4);
        const float sum = sum_of_slices(at);
        work.output_row(kTileRows, run, unit, column).store(n, kGated ? silu(sum) * sum_of_slices(at + 8) : sum);
      }
    }
    for (int m = 0; m < kTiles; ++m) {
      for (int c = 0; c < kColumns; ++c) {
        for (float& a : acc[m][c]) a = 0.0f;
      }
    }
  }
  SM90_FN float sum_of_slices(uint32_t at) const {
    float sum = load_shared_float(at);
    for (int s = 1; s < slices; ++s) sum += load_shared_float(at + static_cast<uint32_t>(s * kTiles * kColumns * 512));
    return sum;
  }
};

}  // namespace ingot::kernels::sm90

#endif
