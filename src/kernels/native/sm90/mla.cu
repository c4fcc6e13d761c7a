// Absorbed MLA over chosen positions: see mla.h for what holds, mla_keys.h for the keys' way, mla_team.h for the arithmetic.
#include "kernels/native/sm90/mla.h"
#include "kernels/native/sm90/mla_keys.h"
#include "kernels/native/sm90/mla_team.h"
#include "kernels/native/sm90/ptx.h"

namespace ingot::kernels::sm90 {

namespace {

SM90_FN void add_shares(float4& sum, const MlaSoftmax::Shares& shares, float4 more) {
  sum.x = add_share(sum.x, shares.mine, more.x, shares.theirs);
  sum.y = add_share(sum.y, shares.mine, more.y, shares.theirs);
  sum.z = add_share(sum.z, shares.mine, more.z, shares.theirs);
  sum.w = add_share(sum.w, shares.mine, more.w, shares.theirs);
}
SM90_FN float inverse_of(float total) { return total == 0.0f ? 0.0f : 1.0f / total; }

extern __shared__ __align__(128) uint8_t shared[];

template <MlaShape kShape>
struct MlaBlock {
  using Warp = MlaWarp<kShape>;
  static constexpr int kHeads = kShape.heads(), kTiles = kShape.tiles, kCluster = kShape.cluster;
  static constexpr int kWorkers = 32 * MlaShape::kWarps;
  static constexpr int kGroupSplits = kMlaSplits / 2;

  // Where the warps that compute are in the ring, and in the pairs of buffers.
  struct Place {
    MlaTurn<kShape> turn;  // of this warp's block of the next chunk
    int done = 0, buffer = 0;
  };

  static SM90_FN void run(const SparseMlaParams& p) {
    const uint32_t base = shared_address(shared);
    const int warp = threadIdx.x / 32, rank = static_cast<int>(blockIdx.x % kCluster);
    if (threadIdx.x < kShape.slots()) init_barrier(base + kShape.full_at() + 8 * threadIdx.x, 1);
    if (threadIdx.x < kShape.turns()) init_barrier(base + kShape.done_at() + 8 * threadIdx.x, MlaShape::kWarps);
    fence_barrier_init();
    __syncthreads();
    wait_for_previous_kernel();
    const int first_row = static_cast<int>(blockIdx.x) / kCluster;
    if (warp >= MlaShape::kWarps) {
      if constexpr (kTiles == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
      MlaFetcher<kShape>(p, base, warp - MlaShape::kWarps, rank).run(first_row);
    } else {
      if constexpr (kTiles == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
      work(p, base, warp, rank, first_row);
    }
    if constexpr (kCluster > 1) {
      cluster_arrive();
      cluster_wait();
      gather(p.out + int64_t{first_row} * kHeads * kMlaLatent, base, rank);
      cluster_arrive();  // nobody leaves while others read from it
      cluster_wait();
    }
  }

  static SM90_FN void work(const SparseMlaParams& p, uint32_t base, int warp, int rank, int first_row) {
    const int passes = static_cast<int>(p.heads) / kHeads, rows = static_cast<int>(p.num_tokens) * passes;
    Place at{MlaTurn<kShape>(warp / 2)};
    for (int row = first_row; row < rows; row += static_cast<int>(gridDim.x)) {
      float* out = p.out + int64_t{row} * kHeads * kMlaLatent;
      const int chunks = mla_chunks(p, row / passes);
      Warp w;
      w.start(p.q + int64_t{row} * kHeads * kMlaDim, p.scale, warp);
      if constexpr (kCluster == 1) prefetch_q(p, row + static_cast<int>(gridDim.x), rows);
      MlaSoftmax low[kTiles];  // of splits 0..3, whose sums wait in `out`
      for (int split = rank * kShape.splits(); split < (rank + 1) * kShape.splits(); ++split) {
        if (kCluster == 1 && split == kGroupSplits) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) low[n] = w.whole[n];
          w.each([&](int, int, int head, int number, float sum) { out[head * kMlaLatent + number] = sum; });
          w.start_group();
        }
        for (int chunk = split; chunk < chunks; chunk += kMlaSplits) add_chunk(w, base, at);
        w.end_split();
      }
      if constexpr (kCluster == 1) {
        write(w, low, out);
      } else {
        hand_over(w, base, warp);
        break;
      }
    }
  }

  static SM90_FN void add_chunk(Warp& w, uint32_t base, Place& at) {
    const int lane = threadIdx.x % 32;
    const int slot = at.turn.slot;
    wait_barrier(base + kShape.full_at() + 8 * slot, at.turn.phase);
    at.turn.next();
    const uint32_t mask = load_shared_word(base + kShape.masks_at() + 4 * slot);
    const bool empty = mask == kMlaEmptyChunk;
    const uint32_t scores = base + kShape.scores_at() + at.buffer * (kShape.score_bytes() / 2);
    const uint32_t scales = base + kShape.scales_at() + at.buffer * (kShape.scale_bytes() / 2);
    const uint32_t key = lane % 16 * mla_row_stride(kShape.format);
    if (!empty) w.score(base + slot * kShape.slot_bytes() + key, mask, scores, scales);
    // Also: all blocks of the chunk are there, for each has been waited for by some warp. An empty chunk needs that as well: a warp that
    // ran on alone could meet a place of the ring that is still two rounds behind, and a phase tells only odd from even rounds.
    sync_threads_of(1, kWorkers);
    if (!empty) {
      at.buffer ^= 1;
      uint32_t blocks[kMlaBlocks];
#pragma unroll
      for (int b = 0; b < kMlaBlocks; ++b) {
        int s = slot - w.block + b;
        if (s < 0) s += kShape.slots();
        if (s >= kShape.slots()) s -= kShape.slots();
        blocks[b] = base + s * kShape.slot_bytes() + key;
      }
      w.add(blocks, scores, scales);
    }
    __syncwarp();
    if (lane == 0) arrive(base + kShape.done_at() + 8 * at.done);
    if (++at.done == kShape.turns()) at.done = 0;
  }

  // Into L2, while this row is worked on.
  static SM90_FN void prefetch_q(const SparseMlaParams& p, int row, int rows) {
    constexpr int kLines = kHeads * kMlaDim * 4 / 128;
    if (row >= rows) return;
    const char* q = reinterpret_cast<const char*>(p.q + int64_t{row} * kHeads * kMlaDim);
    for (int i = threadIdx.x; i < kLines; i += kWorkers) asm volatile("prefetch.global.L2 [%0];" ::"l"(q + 128 * i));
  }

  // The end of a row that is this thread block's alone.
  static SM90_FN void write(Warp& w, MlaSoftmax (&low)[kTiles], float* out) {
    const int t = threadIdx.x % 4;
    float mine[kTiles][2], theirs[kTiles][2], inverse[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const MlaSoftmax::Shares shares = low[n].add(w.whole[n]);
      const float one = inverse_of(low[n].total);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        mine[n][h] = __shfl_sync(~0u, shares.mine, 8 * t + 4 * h);
        theirs[n][h] = __shfl_sync(~0u, shares.theirs, 8 * t + 4 * h);
        inverse[n][h] = __shfl_sync(~0u, one, 8 * t + 4 * h);
      }
    }
    w.each([&](int n, int h, int head, int number, float sum) {
      float* to = out + head * kMlaLatent + number;
      *to = add_share(*to, mine[n][h], sum, theirs[n][h]) * inverse[n][h];
    });
  }

  // This thread block's splits of the row, to shared memory.
  static SM90_FN void hand_over(Warp& w, uint32_t base, int warp) {
    const int lane = threadIdx.x % 32;
    float* sums = reinterpret_cast<float*>(shared);
    float* stats = reinterpret_cast<float*>(shared + kShape.stats_at());
    static_cast<void>(base);
    sync_threads_of(1, kWorkers);  // all are done with the ring
    if (warp == 0 && lane % 4 == 0) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        stats[8 * n + lane / 4] = w.whole[n].greatest;
        stats[kHeads + 8 * n + lane / 4] = w.whole[n].total;
      }
    }
    w.each([&](int, int, int head, int number, float sum) { sums[head * MlaShape::kSumStride + number] = sum; });
  }

  // Adds up what the blocks of the cluster have, each block its part of the row's heads and numbers.
  static SM90_FN void gather(float* out, uint32_t base, int rank) {
    constexpr int kEach = kHeads * kMlaLatent / 4 / kCluster, kParts = kCluster / 2;  // parts of a group of splits
    for (int i = rank * kEach + static_cast<int>(threadIdx.x); i < (rank + 1) * kEach; i += MlaShape::kThreads) {
      const int head = i / (kMlaLatent / 4), number = i % (kMlaLatent / 4) * 4;
      MlaSoftmax part[kCluster];
      float4 sum[kCluster];
#pragma unroll
      for (int b = 0; b < kCluster; ++b) {
        part[b].greatest = load_cluster(address_in_block(base + kShape.stats_at() + head * 4, b));
        part[b].total = load_cluster(address_in_block(base + kShape.stats_at() + (kHeads + head) * 4, b));
        sum[b] = load_cluster_4(address_in_block(base + (head * MlaShape::kSumStride + number) * 4, b));
      }
#pragma unroll
      for (int group = 0; group < 2; ++group) {
#pragma unroll
        for (int b = 1; b < kParts; ++b)
          add_shares(sum[group * kParts], part[group * kParts].add(part[group * kParts + b]), sum[group * kParts + b]);
      }
      add_shares(sum[0], part[0].add(part[kParts]), sum[kParts]);
      const float inverse = inverse_of(part[0].total);
      *reinterpret_cast<float4*>(out + head * kMlaLatent + number) =
          float4{sum[0].x * inverse, sum[0].y * inverse, sum[0].z * inverse, sum[0].w * inverse};
    }
  }
};

}  // namespace

#define INGOT_MLA_KERNEL(Few, Name, kFormat, kTiles, kCluster, cluster)       \
  extern "C" __global__ void cluster __launch_bounds__(MlaShape::kThreads, 1) \
      ingot_Sm90Mla##Few##Name(const __grid_constant__ SparseMlaParams p) {   \
    MlaBlock<MlaShape{LatentFormat::kFormat, kTiles, kCluster}>::run(p);      \
  }
#define INGOT_MLA_KERNELS(Name, kFormat, kTiles)                              \
  INGOT_MLA_KERNEL(Many, Name, kFormat, kTiles, 1, )                          \
  INGOT_MLA_KERNEL(Some, Name, kFormat, kTiles, 2, __cluster_dims__(2, 1, 1)) \
  INGOT_MLA_KERNEL(Few, Name, kFormat, kTiles, 8, __cluster_dims__(8, 1, 1))

INGOT_MLA_KERNELS(Bf16x8, bf16, 1)
INGOT_MLA_KERNELS(Bf16x16, bf16, 2)
INGOT_MLA_KERNELS(Fp8x8, fp8, 1)
INGOT_MLA_KERNELS(Fp8x16, fp8, 2)
INGOT_MLA_KERNELS(Scaledx8, fp8_scaled, 1)
INGOT_MLA_KERNELS(Scaledx16, fp8_scaled, 2)

#undef INGOT_MLA_KERNELS
#undef INGOT_MLA_KERNEL

}  // namespace ingot::kernels::sm90
