// The CPU's own forms of the operations that dominate a step: AVX2 and FMA, weights read straight from the mapped checkpoint.
// Called by ops.cc only. Same Params and same meaning as the kernels; tested against them and against the references.
// Every row's bits depend on that row alone: not on the other rows, the number of threads, or how the work is cut.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "kernels/params.h"

namespace ingot::kernels::native {

void rms_norm(ThreadPool& pool, const RmsNormParams& p);
void rope(ThreadPool& pool, const RopeParams& p);
// Any number of independent products as one loop over the pool: starting a loop takes about as long as a small product itself.
void matmul(ThreadPool& pool, std::span<const MatmulParams> products);
void matmul_transposed(ThreadPool& pool, std::span<const MatmulTransposedParams> products);
void grouped_matmul(ThreadPool& pool, std::span<const GroupedMatmulParams> products);
inline void matmul(ThreadPool& pool, const MatmulParams& p) { matmul(pool, std::span(&p, 1)); }
inline void matmul_transposed(ThreadPool& pool, const MatmulTransposedParams& p) { matmul_transposed(pool, std::span(&p, 1)); }
inline void grouped_matmul(ThreadPool& pool, const GroupedMatmulParams& p) { grouped_matmul(pool, std::span(&p, 1)); }
void swiglu(ThreadPool& pool, const SwiGluParams& p);
void index_scores(ThreadPool& pool, const IndexScoresParams& p);
void top_k(ThreadPool& pool, const TopKParams& p);
void sparse_mla(ThreadPool& pool, const SparseMlaParams& p);
void expanded_mla(ThreadPool& pool, const ExpandedMlaParams& p);
void combine(ThreadPool& pool, const CombineParams& p);

}  // namespace ingot::kernels::native
