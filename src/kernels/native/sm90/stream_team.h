// The body of the kernels of stream_team.cu, for more than kStreamRows rows of x: weights are read once for up to kStreamTeamRows of them.
// A team is a cluster of blocks that share a unit of work, 128 / slices tiles of 16 rows of weights, with a warp for each tile and slice.
// The blocks have slices of their own, so each needs no more than its part of K of the rows of x, which lies in its shared memory until
// the rows change. At the end of a unit the slices' sums go to the block that owns the tile, which adds them up in order.
//
// Chunks, slices and the order of all sums are those of stream_engine.h, and so are the bits.
#pragma once

#include "kernels/native/sm90/stream_multiply.h"
#include "kernels/native/sm90/stream_work.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

template <class Work, class F>  // of weights that have no gates
struct StreamTeamBody {
  static constexpr int kChunk = stream_chunk(F::kFormat);
  static constexpr int kSlots = F::kPieces * F::kSlotsOfPiece;
  static constexpr int kRowBytes = F::kPieces * 64;    // of a chunk
  static constexpr int kPieceK = kChunk / F::kPieces;  // numbers of a piece of the four lanes of a row
  static constexpr int kTileRows = 16;                 // rows of w in a tile
  static constexpr int kItemBytes = 2 * F::kPieces * 512;
  static constexpr int kScaleBytes = F::kScaleWords ? 64 : 0;  // of an item: a word a row
  static constexpr int kStages = kStreamTeamRingBytes / (kItemBytes + kScaleBytes);
  static constexpr int kThreads = kStreamWarps * 32;
  static constexpr int kGroups = kStreamTeamRows / 8;  // of eight rows of x
  static constexpr int kRoundGroups = 4;               // of which sums are exchanged at once
  static_assert(kStages >= 3);
  static_assert(kStreamWarps * kRoundGroups * 512 == kStreamTeamSumBytes);

  const Work& work;
  int k, chunks, slices, per_slice;  // per_slice: chunks of a slice, at most
  int sharers, slices_here;          // blocks that have slices of the same tiles; slices of this block
  int unit_rows, owned;              // rows of w in a unit; tiles of a unit whose sums a block adds up
  int lane, warp, rank, tile, slice;
  uint32_t x_shared, ring, scales, sums;  // addresses in shared memory; ring and scales are the warp's
  int first_unit, last_unit;              // the team's: [first, last)
  int64_t row_bytes;

  // Where a warp is in its list of items.
  struct Cursor {
    StreamRun run;
    int unit, chunk;
    const uint8_t* row[2];  // the lane's rows, at its first piece
    const uint8_t* scale;   // of the row whose scale this lane copies
  };

  SM90_FN StreamTeamBody(const Work& w, uint32_t shared, int slice_count) : work(w), slices(slice_count) {
    k = static_cast<int>(work.k());
    chunks = (k + kChunk - 1) / kChunk;
    per_slice = (chunks + slices - 1) / slices;
    row_bytes = static_cast<int64_t>(k) * kRowBytes / kChunk;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    rank = static_cast<int>(blockIdx.x) % kStreamTeamBlocks;
    sharers = slices < kStreamTeamBlocks ? slices : kStreamTeamBlocks;
    slices_here = slices / sharers;
    const int tiles_here = kStreamWarps / slices_here;
    tile = rank / sharers * kStreamWarps + warp % tiles_here;
    slice = rank % sharers * slices_here + warp / tiles_here;
    owned = kStreamWarps / slices;
    unit_rows = owned * kStreamTeamBlocks * kTileRows;
    x_shared = shared;
    ring = x_shared + kStreamTeamXBytes + static_cast<uint32_t>(warp * kStreamTeamRingBytes);
    scales = ring + kStages * kItemBytes;
    sums = x_shared + kStreamTeamXBytes + kStreamWarps * kStreamTeamRingBytes;
  }

  SM90_FN void run() {
    Cursor next;
    if constexpr (Work::kWaitsFirst) wait_for_previous_kernel();
    work.start(unit_rows, lane, first_unit, last_unit, next.run);
    if (first_unit >= last_unit) return;  // the same in all blocks of a team
    if (slices > 1) cluster_arrive();
    allow_next_kernel();
    StreamRun now = next.run;
    next.unit = first_unit;
    next.chunk = slice;
    go_to_unit(next);
    for (int stage = 0; stage < kStages; ++stage) copy_item(next, stage);
    if constexpr (!Work::kWaitsFirst) wait_for_previous_kernel();

    int stage = 0;
    for (;; work.next(unit_rows, now)) {
      const int end = now.end < last_unit ? now.end : last_unit, begin = now.begin > first_unit ? now.begin : first_unit;
      const int groups = now.count > 32 ? 8 : now.count > 16 ? 4 : 2;
      const int fitting = kStreamTeamXBytes / (slices_here * groups * kSlots * 512);
      const int segment = per_slice < fitting ? per_slice : fitting;  // chunks of x of a slice in shared memory at once
      for (int unit = begin; unit < end; ++unit) {
        if (unit == begin && segment == per_slice) change_rows<4>(now, groups, segment, 0, per_slice);
        float acc[1][kGroups][4] = {};
        const bool mine = tile * kTileRows < work.rows_from(unit_rows, now, unit);
        for (int at = 0; at < per_slice; at += segment) {
          const int stop = at + segment < per_slice ? at + segment : per_slice;
          if (segment < per_slice) change_rows<1>(now, groups, segment, at, stop);
          if (!mine) continue;
          for (int i = at; i < stop && i * slices + slice < chunks; ++i) {
            wait_copies<kStages - 1>();
            __syncwarp();  // scales were copied by other lanes
            multiply(stage, groups, x_shared + static_cast<uint32_t>(((slice % slices_here * segment + i - at) * kSlots * groups) * 512),
                     acc);
            __syncwarp();
            copy_item(next, stage);
            stage = stage + 1 < kStages ? stage + 1 : 0;
          }
        }
        if (slices > 1)
          exchange(now, unit, groups, mine, acc);
        else if (mine)
          store(now, unit, acc);
      }
      if (now.end >= last_unit) break;
    }
    if (slices > 1) cluster_wait();  // nobody writes to this block, or reads what it wrote, any more
  }

  // ---- copies

  // The pointers of the warp's tile of next.unit, or of the first unit after it that has such a tile.
  SM90_FN void go_to_unit(Cursor& next) {
    for (; next.unit < last_unit; ++next.unit) {
      while (next.unit >= next.run.end) work.next(unit_rows, next.run);
      if (tile * kTileRows < work.rows_from(unit_rows, next.run, next.unit)) break;
    }
    if (next.unit >= last_unit) return;
    WeightView view;
    const int first = work.weights(unit_rows, next.run, next.unit, &view) + tile * kTileRows;
    const int g = lane / 4, limit = static_cast<int>(view.rows) - 1;
    const auto clamped = [&](int n) { return n < limit ? n : limit; };  // rows that do not exist: any other, their sums are dropped
    for (int half = 0; half < 2; ++half) {
      const int n = clamped(first + half * 8 + g);
      next.row[half] = view.data + n * row_bytes + lane % 4 * 16;
    }
    if constexpr (F::kScaleWords) {  // lane l: row l of the tile, in the order half, g
      const int64_t n = clamped(first + lane % 16);
      next.scale = view.scale + (F::kChunkScales ? (view.first_row + n) / 128 * chunks * 4 : n * (k / 32));
    }
  }

  // Starts the copy of the cursor's item into a stage of the ring, and goes on to the next.
  SM90_FN void copy_item(Cursor& next, int stage) {
    if (next.unit < last_unit) {
      const uint32_t to = ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16);
      const int64_t offset = static_cast<int64_t>(next.chunk) * kRowBytes;
      for (int i = 0; i < F::kPieces; ++i) {
        const bool exists = offset + i * 64 + lane % 4 * 16 < row_bytes;
        for (int half = 0; half < 2; ++half) {
          const uint8_t* from = next.row[half];
          copy_async_16(to + static_cast<uint32_t>((half * F::kPieces + i) * 512), exists ? from + offset + i * 64 : from, exists);
        }
      }
      if constexpr (F::kScaleWords) {
        if (lane < 16)
          copy_scales<F>(next.scale + static_cast<int64_t>(next.chunk) * 4, k, next.chunk,
                         scales + static_cast<uint32_t>(stage * kScaleBytes + lane * 4));
      }
      next.chunk += slices;
      if (next.chunk >= chunks) {
        next.chunk = slice;
        ++next.unit;
        go_to_unit(next);
      }
    }
    commit_copies();
  }

  // ---- x

  // Rows of x, the block's chunks with numbers [at, stop) in their slices, as B operands: chunks slice by slice, each of slots, each of
  // groups of eight rows. Columns that the run does not have keep what was there: no other column of the product sees them.
  // kAtOnce: how many a thread loads at a time, which takes eight registers each.
  template <int kAtOnce>
  SM90_FN void change_rows(const StreamRun& run, int groups, int segment, int at, int stop) {
    const int here = stop - at, each = slices_here * here * kSlots * 4, total = each * run.count;
    const float* low = lane < run.count ? work.source(run, lane) : nullptr;
    const float* high = lane + 32 < run.count ? work.source(run, lane + 32) : nullptr;
    const int first_slice = slice - slice % slices_here;
    __syncthreads();  // nobody reads the last rows any more
    for (int base = 0; base < total; base += kThreads * kAtOnce) {
      float v[kAtOnce][8];
      uint32_t to[kAtOnce];
      bool valid[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const int i = base + r * kThreads + static_cast<int>(threadIdx.x);
        valid[r] = i < total;
        const int column = valid[r] ? i / each : 0, part = i % each;
        const uint64_t of_low = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(low), column % 32);
        const uint64_t of_high = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(high), column % 32);
        const float* row = reinterpret_cast<const float*>(column < 32 ? of_low : of_high);
        const int t = part % 4, slot = part / 4 % kSlots, index = part / 4 / kSlots;
        const int of_slice = index >= here ? 1 : 0, in_slice = index - of_slice * here;
        const int chunk = (at + in_slice) * slices + first_slice + of_slice;
        const int from = chunk * kChunk + slot / F::kSlotsOfPiece * kPieceK + t * (kPieceK / 4) + slot % F::kSlotsOfPiece * 8;
        to[r] = x_shared + static_cast<uint32_t>((((of_slice * segment + in_slice) * kSlots + slot) * groups + column / 8) * 512 +
                                                 (column % 8 * 4 + t) * 16);
        load_eight(row + from, valid[r] && from < k, v[r]);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (valid[r]) store_shared(to[r], pack_eight<F>(v[r]));
      }
    }
    __syncthreads();
  }

  // ---- sums

  SM90_FN void multiply(int stage, int groups, uint32_t x, float (&acc)[1][kGroups][4]) {
    const uint32_t from = ring + static_cast<uint32_t>(stage * kItemBytes + lane * 16);
    const uint32_t scale = scales + static_cast<uint32_t>(stage * kScaleBytes);
    x += static_cast<uint32_t>(lane * 16);
    if (groups == 8)
      StreamMultiply<F, 1, 8>::run(from, x, scale, lane, acc);
    else if (groups == 4)
      StreamMultiply<F, 1, 4>::run(from, x, scale, lane, acc);
    else
      StreamMultiply<F, 1, 2>::run(from, x, scale, lane, acc);
  }

  // Sends the warp's sums to the owners of their tiles, adds up those of this block's tiles and writes y.
  SM90_FN void exchange(const StreamRun& run, int unit, int groups, bool mine, const float (&acc)[1][kGroups][4]) {
    const uint32_t there =
        address_in_block(sums, tile / owned) + static_cast<uint32_t>((slice * owned + tile % owned) * kRoundGroups * 512 + lane * 16);
#pragma unroll
    for (int from = 0; from < kGroups; from += kRoundGroups) {
      if (from >= groups) break;
      cluster_wait();  // the last sums have been read
#pragma unroll
      for (int c = 0; c < kRoundGroups; ++c) {
        if (mine && from + c < groups) store_cluster(there + static_cast<uint32_t>(c * 512), acc[0][from + c]);
      }
      cluster_arrive();
      cluster_wait();
      for (int i = static_cast<int>(threadIdx.x); i < owned * kRoundGroups * 32; i += kThreads) {
        const int c = i / 32 % kRoundGroups, t = i / 32 / kRoundGroups;
        if (from + c >= groups) continue;
        const uint32_t at = sums + static_cast<uint32_t>(i * 16);
        float sum[4];
        for (int s = 0; s < slices; ++s) {
          const uint4 v = load_shared_16(at + static_cast<uint32_t>(s * owned * kRoundGroups * 512));
          const float part[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
          for (int e = 0; e < 4; ++e) sum[e] = s == 0 ? part[e] : sum[e] + part[e];
        }
        store_fragment(run, unit, rank * owned + t, from + c, sum);
      }
      cluster_arrive();
    }
  }

  SM90_FN void store(const StreamRun& run, int unit, const float (&acc)[1][kGroups][4]) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) store_fragment(run, unit, tile, c, acc[0][c]);
  }
  // The lane's four sums of a tile and a group of rows of x.
  SM90_FN void store_fragment(const StreamRun& run, int unit, int in_tile, int group, const float (&sum)[4]) {
    const int n = in_tile * kTileRows + lane / 4;
    for (int e = 0; e < 2; ++e) {
      const int column = group * 8 + lane % 4 * 2 + e;
      if (column >= run.count) continue;
      const StreamOutputRow y = work.output_row(unit_rows, run, unit, column);
      y.store(n, sum[e]);
      y.store(n + 8, sum[e + 2]);
    }
  }
};

}  // namespace ingot::kernels::sm90

#endif
