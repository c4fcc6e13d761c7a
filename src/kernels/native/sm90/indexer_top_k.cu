// Exact top-k of rows of scores, one block a row, in two readings of the row where the single-source kernel needs more. The order is
// that of one 64-bit number, (ordered score, ~position): all are different, so ties need no rule of their own.
//   1. a histogram of the number's top 12 bits finds the bin that the k-th largest lies in (the row is read);
//   2. one bit a position says what lies above that bin, and what lies in it is listed (the row is read again, from L2 as a rule);
//   3. the list alone is narrowed down to the k-th largest, ten or twelve bits at a time;
//   4. the bits are turned into positions, which come out in order.
// Where too many scores share the bin for the list, step 1 is repeated with the next bits.
#include "kernels/native/sm90/indexer.h"
#include "kernels/native/sm90/ptx.h"

namespace ingot::kernels::sm90 {

namespace {

constexpr int kBins = 4096;
constexpr int kAhead = 8;  // scores that a thread has on the way

struct Found {
  uint32_t digit;   // of the k-th largest
  uint32_t wanted;  // how many of those with this digit are in the top k
  uint32_t inside;  // of how many
};

struct TopKShared {
  uint32_t bins[kBins];
  uint64_t list[kTopKList];
  uint32_t warp[32];
  Found found;
  uint32_t listed;
};
static_assert(sizeof(TopKShared) <= kTopKFixedBytes);

// The 64 bits are looked at from the top, so many in each round: the score's 32 in three, then the position's.
SM90_FN int digit_width(int round) { return round % 3 == 0 ? 12 : 10; }

// gpu::ordered_bits without a branch.
SM90_FN uint32_t ordered(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes +0
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return score != score ? 0u : key;
}
SM90_FN uint64_t rank_of(float score, uint32_t position) { return uint64_t{ordered(score)} << 32 | ~position; }

// Sum of the values of the threads before this one, and of all.
template <int kThreads>
SM90_FN uint32_t sum_before(uint32_t value, uint32_t (&warps)[32], uint32_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  uint32_t of_warps = lane < kThreads / 32 ? warps[lane] : 0;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, of_warps, d);
    if (lane >= d) of_warps += other;
  }
  total = __shfl_sync(~0u, of_warps, 31);
  const uint32_t before = __shfl_sync(~0u, of_warps, warp > 0 ? warp - 1 : 0);
  return sum - value + (warp > 0 ? before : 0);
}

template <int kThreads>
struct TopKRow {
  TopKShared& s;
  uint32_t* chosen;  // a bit a position
  uint32_t* maybe;   // the same for kTopKSegment positions
  const float* scores;
  uint32_t count, k;
  // The k-th largest agrees with `prefix` in its bits from `shift` on; `wanted` of the `inside` that do are in the top k.
  uint64_t prefix = 0;
  int shift = 64;
  uint32_t wanted, inside;

  // Calls f(i, score, true) for all i of [begin, end), `begin` a multiple of 32, a warp at 32 neighbours from a multiple of 32. Lanes of
  // the last such 32 that are beyond the end call it with false.
  template <class F>
  SM90_FN void each_score(uint32_t begin, uint32_t end, F&& f) const {
    constexpr uint32_t kSpan = kAhead * kThreads;
    const float* from = scores + begin + threadIdx.x;
    uint32_t i = begin + threadIdx.x;
    for (; i - threadIdx.x + kSpan <= end; i += kSpan, from += kSpan) {
      float v[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) v[j] = from[j * kThreads];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) f(i + j * kThreads, v[j], true);
    }
    float v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) v[j] = i + j * kThreads < end ? from[j * kThreads] : 0.0f;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const uint32_t own = i + j * kThreads;
      if (own / 32 * 32 < end) f(own, v[j], own < end);
    }
  }

  SM90_FN void clear(int width) {
    for (int i = threadIdx.x; i < 1 << width; i += kThreads) s.bins[i] = 0;
    __syncthreads();
  }

  // From the histogram of a digit to a longer prefix.
  SM90_FN void narrow(int width) {
    __syncthreads();
    const int each = (1 << width) / kThreads, low = (1 << width) - (static_cast<int>(threadIdx.x) + 1) * each;
    uint32_t own = 0;
    for (int i = 0; i < each; ++i) own += s.bins[low + i];
    uint32_t unused;
    uint32_t above = sum_before<kThreads>(own, s.warp, unused);
    if (above < wanted && wanted <= above + own) {
      int digit = low + each - 1;
      for (; above + s.bins[digit] < wanted; --digit) above += s.bins[digit];
      s.found = {static_cast<uint32_t>(digit), wanted - above, s.bins[digit]};
    }
    __syncthreads();
    const Found found = s.found;
    shift -= width;
    prefix |= uint64_t{found.digit} << shift;
    wanted = found.wanted;
    inside = found.inside;
  }

  // Bits of what is above the prefix, and of what has it, for positions [begin, end). `rank(i, score)` is in the order of prefix_low.
  template <class Rank, class T>
  SM90_FN void mark(uint32_t begin, uint32_t end, T low, T high, Rank rank) {
    each_score(begin, end, [&](uint32_t i, float v, bool valid) {
      const T r = rank(i, v);
      const uint32_t above = __ballot_sync(~0u, valid && r > high), has = __ballot_sync(~0u, valid && r >= low) & ~above;
      if (threadIdx.x % 32 == 0) {
        chosen[i / 32] = above;
        maybe[(i - begin) / 32] = has;
      }
    });
  }

  SM90_FN void choose() {
    wanted = k;
    inside = count;
    int round = 0;
    clear(12);
    each_score(0, count, [&](uint32_t, float v, bool valid) {
      if (valid) atomicAdd(&s.bins[ordered(v) >> 20], 1u);
    });
    narrow(12);
    while (inside > kTopKList && inside > wanted) {
      const int width = digit_width(++round);
      clear(width);
      each_score(0, count, [&](uint32_t i, float v, bool valid) {
        const uint64_t rank = rank_of(v, i);
        if (valid && ((rank ^ prefix) >> shift) == 0) atomicAdd(&s.bins[(rank >> (shift - width)) & ((1u << width) - 1)], 1u);
      });
      narrow(width);
    }

    const bool all = inside == wanted;  // the whole bin is in
    const uint64_t high = prefix | ((uint64_t{1} << shift) - 1);
    if (threadIdx.x == 0) s.listed = 0;
    for (uint32_t begin = 0; begin < count; begin += kTopKSegment) {
      const uint32_t end = min(count, begin + kTopKSegment);
      if (shift >= 32) {
        mark(begin, end, static_cast<uint32_t>(prefix >> 32), static_cast<uint32_t>(high >> 32),
             [](uint32_t, float v) { return ordered(v); });
      } else {
        mark(begin, end, prefix, high, [](uint32_t i, float v) { return rank_of(v, i); });
      }
      __syncthreads();
      for (uint32_t w = threadIdx.x; w < (end - begin + 31) / 32; w += kThreads) {
        uint32_t bits = maybe[w];
        if (bits == 0) continue;
        if (all) {
          chosen[begin / 32 + w] |= bits;
          continue;
        }
        uint32_t place = atomicAdd(&s.listed, static_cast<uint32_t>(__popc(bits)));
        for (; bits != 0; bits &= bits - 1) {
          const uint32_t i = begin + w * 32 + __ffs(static_cast<int>(bits)) - 1;
          s.list[place++] = rank_of(scores[i], i);
        }
      }
      __syncthreads();
    }
    if (all) return;

    const uint32_t listed = inside;
    while (inside > wanted) {
      const int width = digit_width(++round);
      clear(width);
      for (uint32_t j = threadIdx.x; j < listed; j += kThreads) {
        const uint64_t rank = s.list[j];
        if (((rank ^ prefix) >> shift) == 0) atomicAdd(&s.bins[(rank >> (shift - width)) & ((1u << width) - 1)], 1u);
      }
      narrow(width);
    }
    for (uint32_t j = threadIdx.x; j < listed; j += kThreads) {
      const uint64_t rank = s.list[j];
      const uint32_t i = ~static_cast<uint32_t>(rank);
      if (rank >= prefix) atomicOr(&chosen[i / 32], 1u << i % 32);
    }
    __syncthreads();
  }

  SM90_FN void write(int32_t* out) {
    const uint32_t words = (count + 31) / 32, each = (words + kThreads - 1) / kThreads;
    const uint32_t begin = min(words, threadIdx.x * each), end = min(words, begin + each);
    uint32_t own = 0, unused;
    for (uint32_t w = begin; w < end; ++w) own += __popc(chosen[w]);
    uint32_t place = sum_before<kThreads>(own, s.warp, unused);
    for (uint32_t w = begin; w < end; ++w) {
      for (uint32_t bits = chosen[w]; bits != 0; bits &= bits - 1)
        out[place++] = static_cast<int32_t>(w * 32) + __ffs(static_cast<int>(bits)) - 1;
    }
  }
};

template <int kThreads>
SM90_FN void top_k_row(const TopKParams& p, char* shared) {
  const int64_t row = blockIdx.x;
  int32_t* out = p.indices + row * p.k;
  const int64_t count = static_cast<int64_t>(p.positions[row]) + 1;  // 0 for a padding row at position -1
  if (count <= p.k) {
    for (int64_t i = threadIdx.x; i < p.k; i += kThreads) out[i] = i < count ? static_cast<int32_t>(i) : -1;
    return;
  }
  uint32_t* maybe = reinterpret_cast<uint32_t*>(shared + kTopKFixedBytes);
  TopKRow<kThreads> r{*reinterpret_cast<TopKShared*>(shared), maybe + kTopKSegment / 32,    maybe,
                      p.scores + row * p.score_stride,        static_cast<uint32_t>(count), static_cast<uint32_t>(p.k)};
  r.choose();
  r.write(out);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kTopKFewThreads, 1) ingot_Sm90TopKFew(const __grid_constant__ Sm90TopKParams params) {
  extern __shared__ __align__(16) char top_k_shared[];
  start_after_previous();
  top_k_row<kTopKFewThreads>(params.op, top_k_shared);
}

extern "C" __global__ void __launch_bounds__(kTopKManyThreads, 3) ingot_Sm90TopKMany(const __grid_constant__ Sm90TopKParams params) {
  extern __shared__ __align__(16) char top_k_shared[];
  start_after_previous();
  top_k_row<kTopKManyThreads>(params.op, top_k_shared);
}

}  // namespace ingot::kernels::sm90
