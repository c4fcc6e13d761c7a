// Native forms for the H200 of the indexer's kernels (scores, top-k) and of the sort by expert: launch descriptions, no device code.
// Each takes the Params of its single-source kernel with the same meaning, and `*_supported` says for which of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"

namespace ingot::kernels::sm90 {

// ---- scores: ingot_Sm90IndexScores ----

inline constexpr int kScoreHeads = 32, kScoreDim = 128;
inline constexpr int kScoreRows = 16;   // of one sequence, neighbours in the batch, that share one reading of the keys
inline constexpr int kScoreTile = 64;   // keys
inline constexpr int kScoreStages = 3;  // tiles on the way to each of the two warpgroups
inline constexpr int kScoreThreads = 256;

// One persistent block a multiprocessor. Each finds its share of (rows, keys) on the device from positions and seq_of_token, so the
// launch depends on nothing but num_tokens, and any mixture of lengths is spread evenly. Neighbouring rows of one sequence are put
// together, up to 16, without help from the host; rows of one sequence that are not neighbours read the keys again.
// bf16 operands (q is rounded to nearest even), f32 sums. The bits of a score depend on its q row, its weights and its key alone:
// whatever the batch, the same instructions in the same order compute it.
struct Sm90IndexScoresParams {
  IndexScoresParams op;
  int64_t multiprocessors;
  Grid grid() const { return {multiprocessors, kScoreThreads}; }
  size_t shared_bytes() const;
};

// 32 heads of 128 numbers, keys in bf16 whose rows are aligned to 16 bytes, q aligned to 16 bytes. Any page size, any number of rows.
inline bool index_scores_supported(const IndexScoresParams& p) {
  return p.heads == kScoreHeads && p.dim == kScoreDim && p.cache_dtype == DType::bf16 && reinterpret_cast<uintptr_t>(p.cache) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.q) % 16 == 0 && p.num_tokens < (int64_t{1} << 30);
}

// What a block's share of the work consists of: some tiles of keys for some rows of one sequence.
struct ScoreSegment {
  int32_t first_row, rows;
  int32_t tile_begin, tile_end;
  int32_t last;  // the greatest position that any of the rows sees
  int32_t seq;
};

// The shared memory of the scores, in order.
inline constexpr int kScoreSegments = 32;  // a block works through its share in lists of so many
inline constexpr size_t kScoreQueryBytes = size_t{kScoreRows} * kScoreHeads * kScoreDim * 2;
inline constexpr size_t kScoreRingBytes = size_t{kScoreStages} * 2 * kScoreTile * kScoreDim * 2;
inline constexpr size_t kScoreRingAt = kScoreQueryBytes;
inline constexpr size_t kScoreWeightsAt = kScoreRingAt + kScoreRingBytes;
inline constexpr size_t kScoreLastsAt = kScoreWeightsAt + size_t{kScoreRows} * kScoreHeads * 4;
inline constexpr size_t kScoreSegmentsAt = kScoreLastsAt + size_t{kScoreRows} * 4;
inline constexpr size_t kScoreScanAt = kScoreSegmentsAt + kScoreSegments * sizeof(ScoreSegment);
inline constexpr size_t kScoreSharedBytes = kScoreScanAt + 16 * 8;
static_assert(kScoreSharedBytes <= 227 << 10);
inline size_t Sm90IndexScoresParams::shared_bytes() const { return kScoreSharedBytes; }

// ---- top-k: ingot_Sm90TopKFew (up to a row a multiprocessor), ingot_Sm90TopKMany ----

inline constexpr int kTopKFewThreads = 1024, kTopKManyThreads = 512;
inline constexpr uint32_t kTopKList = 2048;      // scores that may share the first digits of the k-th largest without one more reading
inline constexpr uint32_t kTopKSegment = 65536;  // positions that are looked through at a time
inline constexpr size_t kTopKFixedBytes = 4096 * 4 + kTopKList * 8 + 256;

// One block a row. Exact: the same positions as the single-source kernel, whatever the scores. A row of at most k positions does not
// read scores. `few` of num_tokens says which of the two entry points: they give the same.
struct Sm90TopKParams {
  TopKParams op;
  bool few() const { return op.num_tokens <= 132; }
  Grid grid() const { return {op.num_tokens, few() ? kTopKFewThreads : kTopKManyThreads}; }
  size_t shared_bytes() const {
    const auto positions = static_cast<size_t>(op.score_stride);
    return kTopKFixedBytes + kTopKSegment / 8 + (positions + 31) / 32 * 4;
  }
};

// Rows of up to about 1.5 million scores: a bit for each of score_stride must fit in shared memory.
inline bool top_k_supported(const TopKParams& p) { return p.k > 0 && Sm90TopKParams{p}.shared_bytes() <= 227 << 10; }

}  // namespace ingot::kernels::sm90
