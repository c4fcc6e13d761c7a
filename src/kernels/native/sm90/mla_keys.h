// The warps that fetch: from a row's list to its keys in shared memory. Part of mla.cu.
#pragma once

#include "kernels/native/sm90/mla.h"
#include "kernels/native/sm90/ptx.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

inline constexpr uint32_t kMlaEmptyChunk = 1u << 16;  // in place of a block's mask: no place of its chunk is used

// Chunks of 64 places of row `token`'s list.
SM90_FN int mla_chunks(const SparseMlaParams& p, int64_t token) {
  const int64_t count = p.indices == nullptr ? int64_t{p.where.positions[token]} + 1 : p.topk;
  return static_cast<int>((count + kMlaChunk - 1) / kMlaChunk);
}

// Where a warp is in the ring: block `kFirst` of each chunk.
template <MlaShape kShape>
struct MlaTurn {
  int slot;
  uint32_t phase = 0;

  SM90_FN explicit MlaTurn(int first) : slot(first) {}
  SM90_FN void next() {
    slot += kMlaBlocks;
    if (slot >= kShape.slots()) {
      slot -= kShape.slots();
      phase ^= 1;
    }
  }
};

// One warp, which brings block `part` of every chunk. It works on up to four chunks of a split at once, a batch: two dependent reads stand
// before a copy (list, page table), and each is under way one batch before it is needed.
template <MlaShape kShape>
struct MlaFetcher {
  static constexpr int kBatch = 4, kBytes = mla_row_bytes(kShape.format), kStride = mla_row_stride(kShape.format);

  // A batch: chunks `chunk`, `chunk` + 8, ... of `split`.
  struct Cursor {
    int row = 0;
    int split = 0, chunk = 0, chunks = 0;
  };

  const SparseMlaParams& p;
  uint32_t base;
  int part, first_split;
  int rows, passes;
  MlaTurn<kShape> turn;
  int chunk_number = 0, done = 0;
  uint32_t done_phase = 0;

  int32_t index[kBatch][2];  // places lane and 32 + lane of each chunk of the batch read last; -1: none
  uint32_t used[kBatch][2];  // of the batch looked up last: bits of those that are used
  int32_t page[2];           // lanes 0..15: chunks 0 and 2, the others: 1 and 3; place 16 * part + lane % 16
  uint32_t within[2];

  SM90_FN MlaFetcher(const SparseMlaParams& params, uint32_t shared_base, int part_of_chunk, int rank)
      : p(params),
        base(shared_base),
        part(part_of_chunk),
        first_split(rank * kShape.splits()),
        passes(static_cast<int>(params.heads) / kShape.heads()),
        turn(part_of_chunk) {
    rows = static_cast<int>(p.num_tokens) * passes;
  }

  SM90_FN bool valid(const Cursor& c) const { return c.row < rows; }
  // To the first batch at or after `c`.
  SM90_FN void settle(Cursor& c) const {
    while (c.row < rows) {
      if (c.chunk < c.chunks) return;
      if (++c.split < first_split + kShape.splits()) {
        c.chunk = c.split;
        continue;
      }
      start_row(c, kShape.cluster == 1 ? c.row + static_cast<int>(gridDim.x) : rows);
    }
  }
  SM90_FN void start_row(Cursor& c, int row) const {
    c.row = row;
    c.split = c.chunk = first_split;
    if (row < rows) c.chunks = mla_chunks(p, row / passes);
  }

  SM90_FN void read(const Cursor& c) {
    const int lane = threadIdx.x % 32;
    const bool here = valid(c);
    const int64_t token = c.row / passes;
    const int32_t* list = p.indices == nullptr || !here ? nullptr : p.indices + token * p.topk;
    const int count = !here ? 0 : p.indices == nullptr ? p.where.positions[token] + 1 : static_cast<int>(p.topk);
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int place = (c.chunk + s * kMlaSplits) * kMlaChunk + 32 * h + lane;
        index[s][h] = place >= count ? -1 : list == nullptr ? place : list[place];
      }
    }
  }

  SM90_FN void look_up(const Cursor& c) {
    const int lane = threadIdx.x % 32, from = part % 2 * 16 + lane % 16;
    int32_t first[kBatch];  // a used place of each chunk
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) used[s][h] = __ballot_sync(~0u, index[s][h] >= 0);
      first[s] = __shfl_sync(~0u, used[s][0] != 0 ? index[s][0] : index[s][1], __ffs(used[s][0] != 0 ? used[s][0] : used[s][1]) - 1);
    }
    const int32_t* pages = valid(c) ? p.where.page_table + p.where.seq_of_token[c.row / passes] * p.where.max_pages : nullptr;
    const uint32_t page_size = static_cast<uint32_t>(p.where.page_size);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int32_t low = __shfl_sync(~0u, part / 2 == 0 ? index[2 * u][0] : index[2 * u][1], from);
      const int32_t high = __shfl_sync(~0u, part / 2 == 0 ? index[2 * u + 1][0] : index[2 * u + 1][1], from);
      int32_t mine = lane < 16 ? low : high;
      // An unused place gets the key of a used one of its chunk: its weight is 0, but 0 * NaN is NaN.
      if (mine < 0) mine = lane < 16 ? first[2 * u] : first[2 * u + 1];
      page[u] = 0;
      within[u] = 0;
      if (mine >= 0) {
        const uint32_t whole = static_cast<uint32_t>(mine) / page_size;
        within[u] = static_cast<uint32_t>(mine) - whole * page_size;
        page[u] = pages[whole];
      }
    }
  }

  // Brings this warp's block of the next chunk: lanes 16 * half.. have its keys' places in the cache, `bits` are those used of the chunk.
  SM90_FN void issue(const uint32_t (&bits)[2], int half, int64_t slot) {
    const int lane = threadIdx.x % 32;
    constexpr int kSlots = kShape.slots();
    const int lead = (kSlots - part + kMlaBlocks - 1) / kMlaBlocks;
    if (chunk_number >= lead) {  // whose chunk had this place of the ring: all are done with it
      wait_barrier(base + kShape.done_at() + 8 * done, done_phase);
      if (++done == kShape.turns()) {
        done = 0;
        done_phase ^= 1;
      }
    }
    ++chunk_number;
    const uint32_t full = base + kShape.full_at() + 8 * turn.slot, mask_at = base + kShape.masks_at() + 4 * turn.slot;
    const uint32_t to = base + turn.slot * kShape.slot_bytes();
    turn.next();
    if ((bits[0] | bits[1]) == 0) {
      if (lane == 0) {
        store_shared(mask_at, kMlaEmptyChunk);
        arrive(full);
      }
      return;
    }
    if (lane == 0) {
      store_shared(mask_at, (part / 2 == 0 ? bits[0] : bits[1]) >> (16 * (part % 2)) & 0xffffu);
      arrive_expecting(full, kMlaKeys * kBytes);
    }
    __syncwarp();
    if (lane / 16 == half) copy_bulk(to + lane % 16 * kStride, static_cast<const uint8_t*>(p.cache) + slot * kBytes, kBytes, full);
    __syncwarp();
  }

  SM90_FN void run(int first_row) {
    Cursor next, after;
    start_row(next, first_row);
    settle(next);
    read(next);
    look_up(next);
    after = next;
    step(after);
    read(after);
    while (valid(next)) {
      const Cursor now = next;
      uint32_t bits[kBatch][2];
      int64_t slot[2];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        bits[s][0] = used[s][0];
        bits[s][1] = used[s][1];
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) slot[u] = static_cast<int64_t>(page[u]) * p.where.page_size + within[u];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (now.chunk + s * kMlaSplits < now.chunks) issue(bits[s], s % 2, slot[s / 2]);
        if (s == 0) {
          next = after;
          look_up(next);
          step(after);
          read(after);
        }
      }
    }
  }
  SM90_FN void step(Cursor& c) const {
    c.chunk += kBatch * kMlaSplits;
    settle(c);
  }
};

}  // namespace ingot::kernels::sm90

#endif
