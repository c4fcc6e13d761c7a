// The router: a warp a token, which has all scores in registers and takes the best of them k times.
// The sort by expert: each warp has some neighbouring pairs. It counts them by expert in shared memory; the counts of the warps and
// blocks before, and of the experts before, give the row of its first pair of each expert; it then walks through its pairs, 32 at a time.
#include "gpu/numbers.h"
#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/route.h"

namespace ingot::kernels::sm90 {

namespace {

constexpr int kOwn = kRouteExperts / 32;  // experts of a lane: lane + 32 j
constexpr int kAhead = 8;                 // pairs that a lane has on the way
constexpr int kParts = 4;                 // threads that share the counts of an expert
constexpr int32_t kNone = -1;

// ---- the router ----

struct Choice {
  int32_t expert;
  float weight;
};

SM90_FN void load_bias(const RouterParams& p, float (&bias)[kOwn]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) bias[j] = lane + 32 * j < p.num_experts ? p.bias[lane + 32 * j] : 0.0f;
}

// What rank `lane` gets, for lanes below k. `scores` is shared memory of the warp.
SM90_FN Choice choose(const RouterParams& p, int64_t token, const float (&bias)[kOwn], float* scores) {
  const int lane = threadIdx.x % 32;
  const int experts = static_cast<int>(p.num_experts), k = static_cast<int>(p.k);
  const float* logits = p.logits + token * p.num_experts;
  float logit[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) logit[j] = lane + 32 * j < experts ? logits[lane + 32 * j] : 0.0f;
  uint32_t keys[kOwn];  // 0: taken, or no expert
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const float score = 1.0f / (1.0f + expf(-logit[j]));
    scores[lane + 32 * j] = score;
    keys[j] = lane + 32 * j < experts ? gpu::ordered_bits(score + bias[j]) + 1u : 0u;  // the greatest of ordered_bits is infinity's
  }
  __syncwarp();
  Choice own = {0, 0.0f};
  float sum = 0.0f;
  for (int rank = 0; rank < k; ++rank) {
    uint32_t best[kOwn];
    int at[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) best[j] = keys[j], at[j] = j;
#pragma unroll
    for (int half = 1; half < kOwn; half *= 2) {
#pragma unroll
      for (int j = 0; j < kOwn; j += 2 * half) {
        const bool second = best[j + half] > best[j];  // of equals the first
        best[j] = second ? best[j + half] : best[j];
        at[j] = second ? at[j + half] : at[j];
      }
    }
    const uint32_t greatest = __reduce_max_sync(~0u, best[0]);
    const uint32_t expert = __reduce_min_sync(~0u, best[0] == greatest ? static_cast<uint32_t>(lane + 32 * at[0]) : ~0u);
    const float score = scores[expert];
    sum += score;
    if (rank == lane) own = {static_cast<int32_t>(expert), score};
#pragma unroll
    for (int j = 0; j < kOwn; ++j) keys[j] = expert == static_cast<uint32_t>(lane + 32 * j) ? 0u : keys[j];
  }
  own.weight = (p.normalize ? own.weight / (sum + 1e-20f) : own.weight) * p.scale;
  __syncwarp();  // all have read the scores
  return own;
}

SM90_FN void store_choice(const RouterParams& p, int64_t token, const Choice& choice) {
  const int lane = threadIdx.x % 32;
  if (lane >= p.k) return;
  p.experts[token * p.k + lane] = choice.expert;
  p.weights[token * p.k + lane] = choice.weight;
}

// ---- the sort ----

template <int kWarps>
struct SortShared {
  union {
    int32_t rows[kWarps][kRouteExperts];  // of each warp: its pairs of an expert, then the row of the next of them
    float scores[kWarps][kRouteExperts];  // of the router, before
  };
  int32_t part[kParts][kRouteExperts];  // pairs of some warps
  int32_t all[kRouteExperts];           // of the block: read by the others of its cluster
  int32_t first[kRouteExperts];         // row of the block's first pair
  int32_t sums[kRouteExperts / 32];
};

// Pairs i0, i0 + 32 ... of those below `last`; kNone beyond.
template <class Experts>
SM90_FN void load_pairs(const Experts& experts, int32_t i0, int32_t last, int32_t (&expert)[kAhead]) {
#pragma unroll
  for (int j = 0; j < kAhead; ++j) expert[j] = i0 + 32 * j < last ? experts[i0 + 32 * j] : kNone;
}

// Sorts pairs first .. last - 1, which are those of this block; experts[i] is the expert of pair i. Every thread of the cluster must come.
template <int kBlocks, int kWarps, class Experts>
SM90_FN void sort_pairs(SortShared<kWarps>& s, const PermuteParams& p, const Experts& experts, int32_t first, int32_t last) {
  constexpr int kEach = kWarps / kParts, kThreads = kWarps * 32;
  static_assert(kThreads % kRouteExperts == 0 || kRouteExperts % kThreads == 0);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int rank = kBlocks == 1 ? 0 : cluster_rank();
  int32_t* rows = s.rows[warp];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) rows[lane + 32 * j] = 0;
  __syncwarp();
  const int32_t each = (last - first + kThreads - 1) / kThreads * 32;  // pairs of a warp
  const int32_t own_first = first + warp * each, own_last = own_first + each < last ? own_first + each : last;
  for (int32_t i = own_first; i < own_last; i += 32 * kAhead) {
    int32_t expert[kAhead];
    load_pairs(experts, i + lane, own_last, expert);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (expert[j] != kNone) atomicAdd(&rows[expert[j]], 1);
    }
  }
  __syncthreads();

  for (int column = thread; column < kParts * kRouteExperts; column += kThreads) {
    const int part = column / kRouteExperts, e = column % kRouteExperts;
    int32_t sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += s.rows[part * kEach + j][e];
    s.part[part][e] = sum;
  }
  __syncthreads();
  static_assert(kThreads >= kRouteExperts);  // from here to the next barrier an expert a thread
  int32_t before = 0, all = 0;               // pairs of the expert in the blocks before, and in all
  if (thread < kRouteExperts) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) all += s.part[part][thread];
    s.all[thread] = all;
  }
  if constexpr (kBlocks > 1) {
    cluster_arrive();
    cluster_wait();
    if (thread < kRouteExperts) {
      int32_t counts[kBlocks];
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) counts[r] = load_of_block(&s.all[thread], r);
      all = 0;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) {
        before += r < rank ? counts[r] : 0;
        all += counts[r];
      }
    }
    cluster_arrive();  // that the others are read; a block stays until all have come
  }
  int32_t until = all;  // pairs of the warp's experts up to this one
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int32_t other = __shfl_up_sync(~0u, until, d);
    until += lane >= d ? other : 0;
  }
  if (thread < kRouteExperts && lane == 31) s.sums[warp] = until;
  __syncthreads();
  if (thread < kRouteExperts) {
    int32_t start = until - all;
#pragma unroll
    for (int w = 0; w < kRouteExperts / 32; ++w) start += w < warp ? s.sums[w] : 0;
    s.first[thread] = start + before;
    if (rank == 0 && thread < p.num_experts) p.offsets[thread] = start;
  }
  if (rank == 0 && thread == 0) p.offsets[p.num_experts] = static_cast<int32_t>(p.num_tokens * p.k);
  __syncthreads();
  for (int column = thread; column < kParts * kRouteExperts; column += kThreads) {
    const int part = column / kRouteExperts, e = column % kRouteExperts;
    int32_t row = s.first[e];
#pragma unroll
    for (int q = 0; q < kParts; ++q) row += q < part ? s.part[q][e] : 0;
    int32_t counts[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) counts[j] = s.rows[part * kEach + j][e];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      s.rows[part * kEach + j][e] = row;
      row += counts[j];
    }
  }
  __syncthreads();

  for (int32_t i0 = own_first; i0 < own_last; i0 += 32 * kAhead) {
    int32_t expert[kAhead];
    load_pairs(experts, i0 + lane, own_last, expert);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int32_t i = i0 + 32 * j + lane;
      if (i - lane >= own_last) break;
      const bool there = expert[j] != kNone;
      uint32_t same = __ballot_sync(~0u, there);  // lanes of the same expert
#pragma unroll
      for (int bit = 1; bit < kRouteExperts; bit *= 2) {
        const uint32_t set = __ballot_sync(~0u, (expert[j] & bit) != 0);
        same &= (expert[j] & bit) != 0 ? set : ~set;
      }
      const int lanes_before = __popc(same & ((1u << lane) - 1u));
      const int32_t next = there ? rows[expert[j]] : 0;
      __syncwarp();  // all have read what one of them moves on
      if (there && lanes_before == 0) rows[expert[j]] = next + __popc(same);
      __syncwarp();
      if (there) {
        p.order[next + lanes_before] = i;
        p.inverse[i] = next + lanes_before;
      }
    }
  }
  if constexpr (kBlocks > 1) cluster_wait();
}

template <int kBlocks, int kWarps>
SM90_FN void permute(SortShared<kWarps>& s, const PermuteParams& p) {
  const auto pairs = static_cast<int32_t>(p.num_tokens * p.k);
  const int32_t each = (pairs + kBlocks - 1) / kBlocks, first = each * (kBlocks == 1 ? 0 : cluster_rank());
  sort_pairs<kBlocks, kWarps>(s, p, p.experts, first < pairs ? first : pairs, first + each < pairs ? first + each : pairs);
}

// Choices of the block's tokens by pair.
struct Chosen {
  const int32_t* experts;  // shared memory
  int32_t first;
  SM90_FN int32_t operator[](int32_t i) const { return experts[i - first]; }
};

template <int kBlocks, int kWarps, int kTokens>
SM90_FN void route(SortShared<kWarps>& s, int32_t (&chosen)[kTokens * kRouteChoices], const Sm90RouteParams& p) {
  const auto tokens = static_cast<int32_t>(p.router.num_tokens), k = static_cast<int32_t>(p.router.k);
  const int32_t each = (tokens + kBlocks - 1) / kBlocks;
  const int32_t begin = each * (kBlocks == 1 ? 0 : cluster_rank());
  const int32_t first = begin < tokens ? begin : tokens, last = begin + each < tokens ? begin + each : tokens;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (first + warp < last) {
    float bias[kOwn];
    load_bias(p.router, bias);
    for (int32_t token = first + warp; token < last; token += kWarps) {
      const Choice choice = choose(p.router, token, bias, s.scores[warp]);
      store_choice(p.router, token, choice);
      if (lane < k) chosen[(token - first) * k + lane] = choice.expert;
    }
  }
  __syncthreads();
  sort_pairs<kBlocks, kWarps>(s, p.permute, Chosen{chosen, first * k}, first * k, last * k);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kRouterWarps * 32) ingot_Sm90Router(const __grid_constant__ Sm90RouterParams p) {
  __shared__ float scores[kRouterWarps][kRouteExperts];
  start_after_previous();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouterWarps + threadIdx.x / 32;
  if (token >= p.op.num_tokens) return;  // a whole warp, and there is no barrier of the block
  float bias[kOwn];
  load_bias(p.op, bias);
  store_choice(p.op, token, choose(p.op, token, bias, scores[threadIdx.x / 32]));
}

extern "C" __global__ void __cluster_dims__(kSortBlocks, 1, 1) __launch_bounds__(kSortWarps * 32)
    ingot_Sm90Permute(const __grid_constant__ Sm90PermuteParams p) {
  __shared__ SortShared<kSortWarps> s;
  start_after_previous();
  permute<kSortBlocks>(s, p.op);
}

extern "C" __global__ void __launch_bounds__(kRouteFewWarps * 32) ingot_Sm90RouteFew(const __grid_constant__ Sm90RouteParams p) {
  __shared__ SortShared<kRouteFewWarps> s;
  __shared__ int32_t chosen[Sm90RouteParams::kFewTokens * kRouteChoices];
  start_after_previous();
  route<1, kRouteFewWarps, Sm90RouteParams::kFewTokens>(s, chosen, p);
}

extern "C" __global__ void __cluster_dims__(kSortBlocks, 1, 1) __launch_bounds__(kSortWarps * 32)
    ingot_Sm90RouteMany(const __grid_constant__ Sm90RouteParams p) {
  __shared__ SortShared<kSortWarps> s;
  __shared__ int32_t chosen[kSortWarps * kRouteChoices];
  start_after_previous();
  route<kSortBlocks, kSortWarps, kSortWarps>(s, chosen, p);
}

}  // namespace ingot::kernels::sm90
