// One host function an operation: checks shapes, picks the form for this machine, runs it on the stream. The CPU forms are the
// kernels themselves (gpu/cpu.h) except where native/cpu has a faster one that agrees with them. On a GPU all that params point to is
// memory of its own, and what fails is told by Accelerator::finish().
#pragma once

#include <span>

#include "gpu/stream.h"
#include "kernels/params.h"

namespace ingot::kernels {

void embed(gpu::Stream& stream, const EmbedParams& p);
void rms_norm(gpu::Stream& stream, const RmsNormParams& p);
void layer_norm(gpu::Stream& stream, const LayerNormParams& p);
void rope_table(gpu::Stream& stream, const RopeTableParams& p);
void rope(gpu::Stream& stream, const RopeParams& p);
// Lists: independent products in one go; none may read what another writes. A step has many that are too small to be spread alone.
void matmul(gpu::Stream& stream, std::span<const MatmulParams> products);
void matmul_transposed(gpu::Stream& stream, std::span<const MatmulTransposedParams> products);
void grouped_matmul(gpu::Stream& stream, std::span<const GroupedMatmulParams> products);
inline void matmul(gpu::Stream& stream, const MatmulParams& p) { matmul(stream, std::span(&p, 1)); }
inline void matmul_transposed(gpu::Stream& stream, const MatmulTransposedParams& p) { matmul_transposed(stream, std::span(&p, 1)); }
inline void grouped_matmul(gpu::Stream& stream, const GroupedMatmulParams& p) { grouped_matmul(stream, std::span(&p, 1)); }
void swiglu(gpu::Stream& stream, const SwiGluParams& p);
void latent_store(gpu::Stream& stream, const LatentStoreParams& p);
void latent_gather(gpu::Stream& stream, const LatentGatherParams& p);
void index_key_store(gpu::Stream& stream, const IndexKeyStoreParams& p);
void index_scores(gpu::Stream& stream, const IndexScoresParams& p);
void top_k(gpu::Stream& stream, const TopKParams& p);
void sparse_mla(gpu::Stream& stream, const SparseMlaParams& p);
void expanded_mla(gpu::Stream& stream, const ExpandedMlaParams& p);
void router(gpu::Stream& stream, const RouterParams& p);
void permute(gpu::Stream& stream, const PermuteParams& p);
void combine(gpu::Stream& stream, const CombineParams& p);
void copy_rows(gpu::Stream& stream, const CopyRowsParams& p);

}  // namespace ingot::kernels
