// The body of the kernels of stream_matmul.cu. A block has 16 warps; `slices` of them share a tile of rows of weights, each with its part
// of K, so 16 / slices groups work on tiles of their own. The block's tiles are a range of the launch's list of units (a unit: one tile for
// up to eight rows of x), neighbours of which mostly have the same rows of x (a run): these lie in shared memory, in bf16, laid out as the
// B operands (stream_multiply.h). A warp copies its own weights into its own ring behind its back, several items (a
// tile's chunk of K) ahead and across units and runs, so memory is kept busy while blocks change x or add up sums.
#pragma once

#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/stream_multiply.h"
#include "kernels/native/sm90/stream_work.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

// Work: which units a block has, where their weights, x and y are (stream_work.h).
template <class Work, class F, int kTiles>
struct StreamBody {
  static constexpr bool kGated = Work::kGated;
  static constexpr int kChunk = stream_chunk(F::kFormat);
  static constexpr int kSlots = F::kPieces * F::kSlotsOfPiece;
  static constexpr int kRowBytes = F::kPieces * 64;             // of a chunk
  static constexpr int kPieceK = kChunk / F::kPieces;           // numbers of a piece of the four lanes of a row
  static constexpr int kTileRows = kTiles * (kGated ? 8 : 16);  // rows of w in a unit; with gates as many of each of both
  static constexpr int kItemBytes = kTiles * 2 * F::kPieces * 512;
  static constexpr int kStages = kStreamRingBytes / kItemBytes;
  static constexpr int kScaleBytes = kTiles * 64;  // of an item: a word a row
  static constexpr int kThreads = kStreamWarps * 32;
  static_assert(kStages >= 2 && kStages * kScaleBytes <= 6 * 64);

  const Work& work;
  int k, chunks, slices, groups, segment;  // segment: chunks of x in shared memory at once
  int lane, warp, group, slice;
  uint32_t x_shared, ring, scales, sums;  // addresses in shared memory; ring and scales are the warp's, sums the group's
  int first_unit, last_unit;              // the block's: [first, last)
  int64_t row_bytes;

  // Where a warp is in its list of items.
  struct Cursor {
    StreamRun run;
    int unit, chunk;
    const uint8_t* row[kTiles][2];  // the lane's rows, at its first piece
    const uint8_t* scale;           // of the row whose scale this lane copies
  };

  SM90_FN StreamBody(const Work& w, uint32_t shared, int slice_count) : work(w), slices(slice_count) {
    k = static_cast<int>(work.k());
    chunks = (k + kChunk - 1) / kChunk;
    segment = stream_segment(F::kFormat, k);
    row_bytes = static_cast<int64_t>(k) * kRowBytes / kChunk;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    groups = kStreamWarps / slices;
    group = warp / slices;
    slice = warp % slices;
    x_shared = shared;
    const uint32_t rings = x_shared + static_cast<uint32_t>(segment * kSlots * 512);
    ring = rings + static_cast<uint32_t>(warp * kStreamRingBytes);
    const uint32_t all_scales = rings + kStreamWarps * kStreamRingBytes;
    scales = all_scales + static_cast<uint32_t>(warp * 6 * 64);
    sums = all_scales + kStreamWarps * 6 * 64 + static_cast<uint32_t>(group * slices * kTiles * 512);
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
    go_to_unit(next);
    for (int stage = 0; stage < kStages; ++stage) copy_item(next, stage);
    if constexpr (!Work::kWaitsFirst) wait_for_previous_kernel();

    float acc[kTiles][1][4] = {};
    int stage = 0;
    for (;; work.next(kTileRows, now)) {
      const int end = now.end < last_unit ? now.end : last_unit, begin = now.begin > first_unit ? now.begin : first_unit;
      const int first_round = (begin - first_unit) / groups, last_round = (end - 1 - first_unit) / groups;
      for (int round = first_round; round <= last_round; ++round) {
        const int unit = first_unit + round * groups + group;
        const bool mine = unit >= begin && unit < end;
        for (int at = 0; at < chunks; at += segment) {
          if (round == first_round || segment < chunks) {
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
    if (next.unit >= last_unit) return;
    while (next.unit >= next.run.end) work.next(kTileRows, next.run);
    WeightView views[kGated ? 2 : 1];
    const int first = work.weights(kTileRows, next.run, next.unit, views);
    const int g = lane / 4, limit = static_cast<int>(views[0].rows) - 1;
    const auto clamped = [&](int n) { return n < limit ? n : limit; };  // rows that do not exist: any other, their sums are dropped
    for (int m = 0; m < kTiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int n = clamped(kGated ? first + m * 8 + g : first + m * 16 + half * 8 + g);
        next.row[m][half] = views[kGated ? half : 0].data + n * row_bytes + lane % 4 * 16;
      }
    }
    if constexpr (F::kScaleWords) {  // lane l: row l of the unit, in the order tile, half, g
      const int m = lane / 16;
      const bool up = kGated && lane / 8 % 2 == 1;
      const uint8_t* table = up ? views[kGated ? 1 : 0].scale : views[0].scale;
      const int64_t n = clamped(kGated ? first + m * 8 + lane % 8 : first + lane);
      const int64_t before = up ? views[kGated ? 1 : 0].first_row : views[0].first_row;
      next.scale = table + (F::kChunkScales ? (before + n) / 128 * chunks * 4 : n * (k / 32));
    }
  }

  // Starts the copy of the cursor's item into a stage of the ring, and goes on to the next.
  SM90_FN void copy_item(Cursor& next, int stage) {
    if (next.unit < last_unit) {
      const uint32_t to = ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16);
      const int64_t offset = static_cast<int64_t>(next.chunk) * kRowBytes;
      for (int i = 0; i < F::kPieces; ++i) {
        const bool exists = offset + i * 64 + lane % 4 * 16 < row_bytes;
        for (int m = 0; m < kTiles; ++m) {
          for (int half = 0; half < 2; ++half) {
            const uint8_t* from = next.row[m][half];
            copy_async_16(to + static_cast<uint32_t>(((m * 2 + half) * F::kPieces + i) * 512), exists ? from + offset + i * 64 : from,
                          exists);
          }
        }
      }
      if constexpr (F::kScaleWords) {
        if (lane < kTiles * 16)
          copy_scales<F>(next.scale + static_cast<int64_t>(next.chunk) * 4, k, next.chunk,
                         scales + static_cast<uint32_t>(stage * kScaleBytes + lane * 4));
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
        to[r] = x_shared + static_cast<uint32_t>((part / 4 * 32 + column * 4 + t) * 16);
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

  SM90_FN void multiply(int stage, int chunk_here, float (&acc)[kTiles][1][4]) {
    StreamMultiply<F, kTiles, 1>::run(ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16),
                                      x_shared + static_cast<uint32_t>((chunk_here * kSlots * 32 + lane) * 16),
                                      scales + static_cast<uint32_t>(stage * kScaleBytes), lane, acc);
  }

  // Adds up the slices' sums of a unit, writes y and clears the sums.
  SM90_FN void finish(const StreamRun& run, int unit, float (&acc)[kTiles][1][4]) {
    if (slices == 1) {
      for (int m = 0; m < kTiles; ++m) {
        for (int e = 0; e < 2; ++e) {
          const int column = lane % 4 * 2 + e, n = m * (kGated ? 8 : 16) + lane / 4;
          if (column >= run.count) continue;
          if (kGated) {
            work.store(kTileRows, run, unit, n, column, silu(acc[m][0][e]) * acc[m][0][e + 2]);
          } else {
            work.store(kTileRows, run, unit, n, column, acc[m][0][e]);
            work.store(kTileRows, run, unit, n + 8, column, acc[m][0][e + 2]);
          }
        }
      }
    } else {
      const int threads = slices * 32, thread = slice * 32 + lane;
      sync_threads_of(1 + group, threads);  // the last unit's sums have been read
      for (int m = 0; m < kTiles; ++m)
        store_shared(sums + static_cast<uint32_t>(((slice * kTiles + m) * 32 + lane) * 16),
                     uint4{__float_as_uint(acc[m][0][0]), __float_as_uint(acc[m][0][1]), __float_as_uint(acc[m][0][2]),
                           __float_as_uint(acc[m][0][3])});
      sync_threads_of(1 + group, threads);
      for (int i = thread; i < kTileRows * kStreamRows; i += threads) {
        const int n = i % kTileRows, column = i / kTileRows;
        if (column >= run.count) break;
        const int m = kGated ? n / 8 : n / 16, half = kGated ? 0 : n / 8 % 2;
        const uint32_t at = sums + static_cast<uint32_t>((m * 32 + n % 8 * 4 + column / 2) * 16 + (half * 2 + column % 2) * 4);
        const float sum = sum_of_slices(at);
        work.store(kTileRows, run, unit, n, column, kGated ? silu(sum) * sum_of_slices(at + 8) : sum);
      }
    }
    for (int m = 0; m < kTiles; ++m) {
      for (float& a : acc[m][0]) a = 0.0f;
    }
  }
  SM90_FN float sum_of_slices(uint32_t at) const {
    float sum = load_shared_float(at);
    for (int s = 1; s < slices; ++s) sum += load_shared_float(at + static_cast<uint32_t>(s * kTiles * 512));
    return sum;
  }
};

}  // namespace ingot::kernels::sm90

#endif
