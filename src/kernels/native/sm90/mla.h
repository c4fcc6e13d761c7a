// Native form for the H200 of absorbed MLA over chosen positions of the paged cache: launch descriptions, no device code.
// Takes the Params of sparse_mla with the same meaning; `mla_supported` says for which of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/params.h"

namespace ingot::kernels::sm90 {

inline constexpr int kMlaLatent = 512, kMlaRope = 64, kMlaDim = kMlaLatent + kMlaRope;
inline constexpr int kMlaKeys = 16;                      // a block of keys: the rows of one matrix instruction
inline constexpr int kMlaBlocks = 4;                     // of a chunk
inline constexpr int kMlaChunk = kMlaBlocks * kMlaKeys;  // places of a list whose softmax is made together
// Chunk c of a row's list belongs to split c % 8. A split's chunks are added up in their order; then splits 0..3 and splits 4..7, in their
// order; then those two. That order, and so the bits, is the same however many thread blocks share a row.
inline constexpr int kMlaSplits = 8;

constexpr int mla_row_bytes(LatentFormat format) { return static_cast<int>(tensor::latent_row_bytes(format, kMlaLatent, kMlaRope)); }
// Between keys in shared memory: an odd number of 16-byte units, so that the eight rows of an 8 x 8 matrix lie in different banks.
constexpr int mla_row_stride(LatentFormat format) {
  return mla_row_bytes(format) / 16 % 2 != 0 ? mla_row_bytes(format) : mla_row_bytes(format) + 16;
}

// A thread block: 8 warps that compute, two to a block of keys of a chunk, and 4 that fetch, one to a block; all blocks of keys go through
// one ring. `cluster` thread blocks, 1, 2 or 8, share the splits of a row of 8 * tiles heads.
struct MlaShape {
  LatentFormat format;
  int tiles, cluster;

  static constexpr int kWarps = 8, kFetchers = kMlaBlocks, kThreads = 32 * (kWarps + kFetchers);
  static constexpr int kMostShared = 227 * 1024;
  // Scores, twice: (2, halves of the key, heads, kScoreStride) of f32; the stride keeps 16-byte reads free of conflicts.
  static constexpr int kScoreStride = kMlaChunk + 16;
  // With scales, twice: (2, 4 groups and their greatest's logarithm, 64 keys) of f32.
  static constexpr int kScaleRows = 5;
  // What a thread block hands to its cluster, over the ring: (heads, kSumStride) of f32.
  static constexpr int kSumStride = kMlaLatent + 4;

  constexpr int heads() const { return 8 * tiles; }
  constexpr int splits() const { return kMlaSplits / cluster; }  // of a thread block
  constexpr int slot_bytes() const { return kMlaKeys * mla_row_stride(format); }
  constexpr int score_bytes() const { return 2 * 2 * heads() * kScoreStride * 4; }
  constexpr int scale_bytes() const { return format == LatentFormat::fp8_scaled ? 2 * kScaleRows * kMlaChunk * 4 : 0; }
  constexpr int stats_bytes() const { return 2 * heads() * 4; }
  // Blocks of keys in the ring: what fits.
  constexpr int slots() const { return (kMostShared - score_bytes() - scale_bytes() - stats_bytes() - 1024) / slot_bytes(); }
  // Barriers that chunks are done with take turns.
  constexpr int turns() const { return (slots() + kMlaBlocks - 1) / kMlaBlocks; }

  constexpr int scores_at() const { return slots() * slot_bytes(); }
  constexpr int scales_at() const { return scores_at() + score_bytes(); }
  constexpr int stats_at() const { return scales_at() + scale_bytes(); }  // greatest, total: (2, heads) of f32
  constexpr int full_at() const { return stats_at() + stats_bytes(); }
  constexpr int done_at() const { return full_at() + 8 * slots(); }
  constexpr int masks_at() const { return done_at() + 8 * turns(); }
  constexpr int shared_bytes() const { return masks_at() + 4 * slots(); }
};

inline constexpr int kMlaMultiprocessors = 132;  // of an H200; with another number the kernels are right all the same

// out[t,h] = softmax over the keys of (scale * q . key) times their latents. q is rounded to bf16, or to f16 after scaling each half of a
// head by a power of two where the cache is fp8 (whose numbers f16 has exactly); scores, their softmax and all sums are f32; weights are
// rounded to bf16 or f16 for the second product. A row without any key gives zeros. Chunks of 64 places in a row's list that are all unused
// cost nothing. The bits of a row depend on its own q, list and keys (without a list, on its number of positions) and on whether
// the number of heads is a multiple of 16, on nothing else.
struct Sm90MlaParams {
  SparseMlaParams op;

  int tiles() const { return op.heads % 16 == 0 ? 2 : 1; }
  int64_t rows() const { return op.num_tokens * (op.heads / (8 * tiles())); }
  // As many thread blocks a row as keep the multiprocessors busy.
  int cluster() const { return rows() <= kMlaMultiprocessors / 8 ? 8 : rows() <= kMlaMultiprocessors / 2 ? 2 : 1; }
  MlaShape shape() const { return {op.cache_format, tiles(), cluster()}; }
  Grid grid() const { return {cluster() == 1 ? std::min<int64_t>(rows(), kMlaMultiprocessors) : rows() * cluster(), MlaShape::kThreads}; }
  size_t shared_bytes() const { return static_cast<size_t>(shape().shared_bytes()); }
  // The kernel; Few is compiled for clusters of 8, Some for clusters of 2.
  const char* entry() const {
    static constexpr const char* kNames[3][3][2] = {{{"ingot_Sm90MlaManyBf16x8", "ingot_Sm90MlaManyBf16x16"},
                                                     {"ingot_Sm90MlaSomeBf16x8", "ingot_Sm90MlaSomeBf16x16"},
                                                     {"ingot_Sm90MlaFewBf16x8", "ingot_Sm90MlaFewBf16x16"}},
                                                    {{"ingot_Sm90MlaManyFp8x8", "ingot_Sm90MlaManyFp8x16"},
                                                     {"ingot_Sm90MlaSomeFp8x8", "ingot_Sm90MlaSomeFp8x16"},
                                                     {"ingot_Sm90MlaFewFp8x8", "ingot_Sm90MlaFewFp8x16"}},
                                                    {{"ingot_Sm90MlaManyScaledx8", "ingot_Sm90MlaManyScaledx16"},
                                                     {"ingot_Sm90MlaSomeScaledx8", "ingot_Sm90MlaSomeScaledx16"},
                                                     {"ingot_Sm90MlaFewScaledx8", "ingot_Sm90MlaFewScaledx16"}}};
    const int format = op.cache_format == LatentFormat::bf16 ? 0 : op.cache_format == LatentFormat::fp8 ? 1 : 2;
    return kNames[format][cluster() == 8 ? 2 : cluster() - 1][tiles() - 1];
  }
};

// 512 + 64 numbers a key, any multiple of 8 heads (in passes of 16 or 8 over the keys), bf16 or fp8 caches; q, out and the cache aligned
// to 16 bytes. Any page size and number of rows.
inline bool mla_supported(const SparseMlaParams& p) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return p.latent_dim == kMlaLatent && p.rope_dim == kMlaRope && p.heads > 0 && p.heads % 8 == 0 && p.cache_format != LatentFormat::f32 &&
         aligned(p.cache) && aligned(p.q) && aligned(p.out) && p.topk < (int64_t{1} << 30);
}

}  // namespace ingot::kernels::sm90
