// Scores, softmax and sums of one warp. Part of mla.cu.
//
// Both products have the keys or the latent's numbers as the 16 rows of a matrix instruction and heads as its 8 columns, so 8 heads fill
// it: scores (16 keys x 8 heads) = keys . q^T, sums (16 numbers x 8 heads) += latents^T . weights^T. Of a chunk of 64 keys a warp makes the
// scores of one block over one half of the key's numbers; through shared memory every warp gets all of them, and adds up 64 numbers of the
// latent over all keys of the chunk. Each key lies in shared memory once, as in the cache; both operands come from there by ldmatrix, the
// second one transposed. fp8 numbers are moved as pairs and become f16 in registers: all of e4m3 is in f16.
#pragma once

#include "kernels/native/sm90/mla.h"
#include "kernels/native/sm90/ptx.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

inline constexpr float kMlaNoKey = -__builtin_huge_valf();

SM90_FN float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SM90_FN float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SM90_FN uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// Four e4m3 numbers, the first in the low byte, as f16.
SM90_FN void f16_of_e4m3(uint32_t four, uint32_t& first, uint32_t& second) {
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}"
      : "=r"(first), "=r"(second)
      : "r"(four));
}
SM90_FN void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What sums under the maximum `most` count for under the maximum `greatest`: exact, for maxima are whole numbers.
SM90_FN float share_of(float most, float greatest) { return most == kMlaNoKey ? 0.0f : exp2_of(most - greatest); }

// The softmax of a part of the keys as (greatest, total) of a head: adds `more` behind it. Sums go with it: sum * mine + more_sum * theirs.
struct MlaSoftmax {
  float greatest = kMlaNoKey, total = 0.0f;

  struct Shares {
    float mine, theirs;
  };
  SM90_FN Shares add(const MlaSoftmax& more) {
    const float now = fmaxf(greatest, more.greatest);
    const Shares shares{share_of(greatest, now), share_of(more.greatest, now)};
    greatest = now;
    total = fmaf(more.total, shares.theirs, __fmul_rn(total, shares.mine));
    return shares;
  }
};
SM90_FN float add_share(float sum, float mine, float more, float theirs) { return fmaf(more, theirs, __fmul_rn(sum, mine)); }

// A thread is lane 4 * g + t. Fragments of scores and sums have heads 8 * tile + 2 * t + {0, 1} in their columns, rows g and g + 8; the
// softmax of a thread is that of head 8 * tile + g and keys 4 * t .. 4 * t + 3 of each block, in the order of kept scores.
template <MlaShape kShape>
struct MlaWarp {
  static constexpr bool kWide = kShape.format == LatentFormat::bf16, kScaled = kShape.format == LatentFormat::fp8_scaled;
  static constexpr int kTiles = kShape.tiles;
  static constexpr int kNumberBytes = kWide ? 2 : 1;                    // of the latent
  static constexpr int kLatent = kMlaLatent / 2, kRope = kMlaRope / 2;  // numbers of a half of a key
  static constexpr int kLatentSteps = kLatent / 16, kSteps = kLatentSteps + kRope / 16;
  static constexpr int kLoads = kLatent * kNumberBytes / 32;                    // of 16 keys x 32 bytes
  static constexpr int kGroups = kScaled ? kLatent / tensor::kLatentGroup : 1;  // of a half, with a scale each
  // Sums of scores that are independent of each other, for the matrix unit's latency; with scales, one a group.
  static constexpr int kChains = kScaled ? kGroups : kTiles == 1 ? 4 : 2;
  static constexpr int kNumbers = kMlaLatent / MlaShape::kWarps, kRows = kNumbers / 16;  // that are added up
  // Numbers of a row of 16 that a fragment's rows g and g + 8 are: fp8 pairs are split between them.
  static constexpr int kRowStep = kWide ? 1 : 2, kRowOther = kWide ? 8 : 1;

  int half, block, first_number;
  uint32_t q[kSteps][kTiles][2];
  float unit[kTiles][2];  // of the scores
  // Of the split under way, then of the splits before it.
  float sum[kRows][kTiles][4], all[kRows][kTiles][4];
  MlaSoftmax part[kTiles], whole[kTiles];  // part.total: of this thread's keys

  // `from`: (heads, 576) of the row.
  SM90_FN void start(const float* from, float scale, int warp) {
    half = warp % 2;
    block = warp / 2;
    first_number = warp * kNumbers;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* head = from + (8 * n + g) * kMlaDim;
      float shrink = 1.0f, grow = 1.0f;
      if constexpr (!kWide) find_scale(head, shrink, grow);
      unit[n][0] = scale * 1.44269504f * __shfl_sync(~0u, grow, 8 * t);
      unit[n][1] = scale * 1.44269504f * __shfl_sync(~0u, grow, 8 * t + 4);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const float* at = head + first_of(s);
        if (kWide || (kScaled && s >= kLatentSteps)) {
          const float2 a = *reinterpret_cast<const float2*>(at + 2 * t), b = *reinterpret_cast<const float2*>(at + 2 * t + 8);
          q[s][n][0] = pack_bf16(a.x * shrink, a.y * shrink);
          q[s][n][1] = pack_bf16(b.x * shrink, b.y * shrink);
        } else {  // the order of K that pairs of fp8 have
          const float4 a = *reinterpret_cast<const float4*>(at + 4 * t);
          q[s][n][0] = pack_f16(a.x * shrink, a.y * shrink);
          q[s][n][1] = pack_f16(a.z * shrink, a.w * shrink);
        }
      }
    }
    start_split();
    start_group();
  }
  SM90_FN void start_split() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      part[n] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[r][n][i] = 0.0f;
      }
    }
  }
  SM90_FN void start_group() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      whole[n] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) all[r][n][i] = 0.0f;
      }
    }
  }

  // This half's part of the scores of this warp's block, times log2(e), to shared memory. `at`: the address of key lane % 16;
  // `mask`: a bit for each used key; `scores`, `scales`: this chunk's buffers.
  SM90_FN void score(uint32_t at, uint32_t mask, uint32_t scores, uint32_t scales) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // The order of kept scores within a block: a thread of the second product needs keys 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9.
    const int place = block * kMlaKeys + g / 2 * 4 + g % 2;  // of key g; key g + 8 is two further
    float scale[2][kGroups];
    if constexpr (kScaled) load_scales(at, place, scales, scale);
    float sums[kChains + 1][kTiles][4] = {};
    at += lane / 16 * 16;
    const uint32_t latent = at + half * kLatent * kNumberBytes;
    constexpr int kEach = kLoads / kChains;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int chain = i % kChains, load = chain * kEach + i / kChains;
      uint32_t v[4];
      load_matrices(v, latent + load * 32);
      if constexpr (kWide)
        multiply(sums[chain], v, load);
      else
        multiply_fp8(sums[chain], v, 2 * load);
    }
    const uint32_t rope = at + (kWide ? 1024 : kScaled ? 528 : 512) + half * kRope * (kWide || kScaled ? 2 : 1);
    if constexpr (kWide || kScaled) {
#pragma unroll
      for (int s = kLatentSteps; s < kSteps; ++s) {
        uint32_t v[4];
        load_matrices(v, rope + (s - kLatentSteps) * 32);
        multiply(sums[kChains], v, s);
      }
    } else {
      uint32_t v[4];
      load_matrices(v, rope);
      multiply_fp8(sums[kChains], v, kLatentSteps);
    }
    const bool is_used[2] = {(mask >> g & 1) != 0, (mask >> (g + 8) & 1) != 0};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float s = sums[kChains][n][i];
#pragma unroll
        for (int c = 0; c < kChains; ++c) {
          if constexpr (kScaled)
            s = fmaf(sums[c][n][i], scale[i / 2][c], s);
          else
            s += sums[c][n][i];
        }
        const int head = 8 * n + 2 * t + i % 2;
        store_shared(scores + ((half * kShape.heads() + head) * MlaShape::kScoreStride + place + i / 2 * 2) * 4,
                     is_used[i / 2] ? s * unit[n][i % 2] : kMlaNoKey);
      }
    }
  }

  // Softmax of a chunk and what it adds to the sums. `blocks`: the address of key lane % 16 of each block.
  SM90_FN void add(const uint32_t (&blocks)[kMlaBlocks], uint32_t scores, uint32_t scales) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t weight[kMlaBlocks][kTiles][2];
    float rescale[kTiles];
    bool grown = false;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float s[kMlaBlocks][4], lift[kMlaBlocks][4], now = part[n].greatest;
#pragma unroll
      for (int b = 0; b < kMlaBlocks; ++b) {
        const uint32_t from = scores + ((8 * n + g) * MlaShape::kScoreStride + b * kMlaKeys + 4 * t) * 4;
        unpack(load_shared_4(from), s[b]);
        float other[4];
        unpack(load_shared_4(from + kShape.heads() * MlaShape::kScoreStride * 4), other);
        if constexpr (kScaled) unpack(load_shared_4(scales + (4 * kMlaChunk + b * kMlaKeys + 4 * t) * 4), lift[b]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[b][i] += other[i];
          now = fmaxf(now, kScaled ? s[b][i] + lift[b][i] : s[b][i]);
        }
      }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = ceilf(fmaxf(now, __shfl_xor_sync(~0u, now, 2)));
      rescale[n] = share_of(part[n].greatest, now);
      grown |= now != part[n].greatest;
      part[n].greatest = now;
      const float from = now == kMlaNoKey ? 0.0f : now;
      float total = 0.0f;
#pragma unroll
      for (int b = 0; b < kMlaBlocks; ++b) {
        float w[4], scale[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if constexpr (kScaled) unpack(load_shared_4(scales + (block * kMlaChunk + b * kMlaKeys + 4 * t) * 4), scale);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[i] = exp2_of(s[b][i] - from);
          total += w[i];
          if constexpr (kScaled) w[i] *= scale[i];
        }
        weight[b][n][0] = kWide ? pack_bf16(w[0], w[1]) : pack_f16(w[0], w[1]);
        weight[b][n][1] = kWide ? pack_bf16(w[2], w[3]) : pack_f16(w[2], w[3]);
      }
      part[n].total = fmaf(part[n].total, rescale[n], total);
    }
    if (__any_sync(~0u, grown)) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float factor[2] = {__shfl_sync(~0u, rescale[n], 8 * t), __shfl_sync(~0u, rescale[n], 8 * t + 4)};
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[r][n][i] *= factor[i % 2];
        }
      }
    }
    const uint32_t offset = lane / 16 * 16 + static_cast<uint32_t>(first_number * kNumberBytes);
#pragma unroll
    for (int b = 0; b < kMlaBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kNumbers * kNumberBytes / 32; ++i) {
        uint32_t v[4];
        load_matrices_transposed(v, blocks[b] + offset + i * 32);
        if constexpr (kWide) {
          const uint32_t a[4] = {v[0], v[2], v[1], v[3]};
#pragma unroll
          for (int n = 0; n < kTiles; ++n) mma_bf16(sum[i][n], a, weight[b][n][0], weight[b][n][1]);
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {  // a pair's numbers of two keys, then the other numbers of them
            uint32_t a[4];
            f16_of_e4m3(__byte_perm(v[2 * h], 0, 0x3120), a[0], a[1]);
            f16_of_e4m3(__byte_perm(v[2 * h + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) mma_f16(sum[2 * i + h][n], a, weight[b][n][0], weight[b][n][1]);
          }
        }
      }
    }
  }

  // Adds the split under way to those before it and starts another.
  SM90_FN void end_split() {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      part[n].total += __shfl_xor_sync(~0u, part[n].total, 1);
      part[n].total += __shfl_xor_sync(~0u, part[n].total, 2);
      const MlaSoftmax::Shares shares = whole[n].add(part[n]);
      const float mine[2] = {__shfl_sync(~0u, shares.mine, 8 * t), __shfl_sync(~0u, shares.mine, 8 * t + 4)};
      const float theirs[2] = {__shfl_sync(~0u, shares.theirs, 8 * t), __shfl_sync(~0u, shares.theirs, 8 * t + 4)};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) all[r][n][i] = add_share(all[r][n][i], mine[i % 2], sum[r][n][i], theirs[i % 2]);
      }
    }
    start_split();
  }

  // Calls use(head, number, sum) for this thread's sums of the splits so far; `sum` is a pair of neighbours where kPairs.
  template <class Use>
  SM90_FN void each(const Use& use) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          use(n, i % 2, 8 * n + 2 * t + i % 2, first_number + 16 * r + kRowStep * g + i / 2 * kRowOther, all[r][n][i]);
      }
    }
  }

 private:
  static SM90_FN void unpack(float4 v, float (&to)[4]) {
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
  }

  // The first of the 16 numbers of step s.
  SM90_FN int first_of(int s) const {
    return s < kLatentSteps ? half * kLatent + 16 * s : kMlaLatent + half * kRope + 16 * (s - kLatentSteps);
  }

  // A power of two that brings the greatest number of this half of a head to [1, 2), and what undoes it.
  SM90_FN void find_scale(const float* head, float& shrink, float& grow) const {
    float most = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const float4 a = *reinterpret_cast<const float4*>(head + first_of(s) + 4 * (threadIdx.x % 4));
      most = fmaxf(most, fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const uint32_t exponent = min(max(__float_as_uint(most) >> 23, 1u), 253u);
    shrink = __uint_as_float((254 - exponent) << 23);
    grow = __uint_as_float(exponent << 23);
  }

  // The scales of this half's groups of keys g and g + 8; publishes those of all groups and log2 of the greatest one.
  SM90_FN void load_scales(uint32_t at, int place, uint32_t scales, float (&scale)[2][kGroups]) const {
    constexpr float kLeast = 1.0f / 8192;  // of the format: a lesser one is broken
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float4 all_groups = load_shared_4(__shfl_sync(~0u, at, g + 8 * k) + kMlaLatent);
      scale[k][0] = half == 0 ? all_groups.x : all_groups.z;
      scale[k][1] = half == 0 ? all_groups.y : all_groups.w;
      if (half == 0) {
        const uint32_t to = scales + (place + 2 * k) * 4;
        const float low = t % 2 == 0 ? all_groups.x : all_groups.y, high = t % 2 == 0 ? all_groups.z : all_groups.w;
        store_shared(to + t * kMlaChunk * 4, t < 2 ? low : high);
        if (t == 0) {
          const float most = fmaxf(fmaxf(all_groups.x, all_groups.y), fmaxf(all_groups.z, all_groups.w));
          store_shared(to + 4 * kMlaChunk * 4, log2_of(fmaxf(most, kLeast)));
        }
      }
    }
  }

  SM90_FN void multiply(float (&c)[kTiles][4], const uint32_t (&a)[4], int step) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) mma_bf16(c[n], a, q[step][n][0], q[step][n][1]);
  }
  SM90_FN void multiply_fp8(float (&c)[kTiles][4], const uint32_t (&v)[4], int step) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t a[4];
      f16_of_e4m3(v[2 * h], a[0], a[2]);
      f16_of_e4m3(v[2 * h + 1], a[1], a[3]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma_f16(c[n], a, q[step + h][n][0], q[step + h][n][1]);
    }
  }
};

}  // namespace ingot::kernels::sm90

#endif
