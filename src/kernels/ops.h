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
// The experts' gate and up projections and their activation.
void gated_matmul(gpu::Stream& stream, const GatedMatmulParams& p);
// Products by the heads' own parts of one weight.
void head_matmul(gpu::Stream& stream, const HeadMatmulParams& p);
void swiglu(gpu::Stream& stream, const SwiGluParams& p);
void latent_store(gpu::Stream& stream, const LatentStoreParams& p);
void latent_gather(gpu::Stream& stream, const LatentGatherParams& p);
void index_key_store(gpu::Stream& stream, const IndexKeyStoreParams& p);
void qkv_prepare(gpu::Stream& stream, const QkvPrepareParams& p);
void index_scores(gpu::Stream& stream, const IndexScoresParams& p);
void top_k(gpu::Stream& stream, const TopKParams& p);
void sparse_mla(gpu::Stream& stream, const SparseMlaParams& p);
void expanded_mla(gpu::Stream& stream, const ExpandedMlaParams& p);
void router(gpu::Stream& stream, const RouterParams& p);
void permute(gpu::Stream& stream, const PermuteParams& p);
// The router, then the permutation of what it chose: permutation.experts is choice.experts, and the sizes are the same.
void route(gpu::Stream& stream, const RouterParams& choice, const PermuteParams& permutation);
void combine(gpu::Stream& stream, const CombineParams& p);
void copy_rows(gpu::Stream& stream, const CopyRowsParams& p);
// The die and the chains of drafts, on a GPU alone: the host has samplers of its own (exec/sampler.h).
void adjust_rows(gpu::Stream& stream, const AdjustRowsParams& p);
void sample_rows(gpu::Stream& stream, const SampleRowsParams& p);
void logprob_rows(gpu::Stream& stream, const LogprobRowsParams& p);
void keep_drafts(gpu::Stream& stream, const KeepDraftsParams& p);
void take_drafts(gpu::Stream& stream, const TakeDraftsParams& p);
void extend_lists(gpu::Stream& stream, const ExtendListsParams& p);
void move_rows(gpu::Stream& stream, const MoveRowsParams& p);

// Steps of many rows on a GPU with native kernels for them (DeviceMatmul::fast): products read their input as bf16 in an order of their
// own, which round_rows() makes.
// Whether a product by w over so many rows does, when it is given x_wide.
bool is_wide(const gpu::Stream& stream, const WeightView& w, int64_t rows);
// Whether gated_matmul() would fill y_wide, and not y.
bool gives_wide(const gpu::Stream& stream, const GatedMatmulParams& p);
int64_t wide_cols(int64_t cols);  // numbers in a row of that order
// out: (rows, wide_cols(cols)), of x: (rows, cols).
void round_rows(gpu::Stream& stream, uint16_t* out, const float* x, int64_t x_stride, int64_t rows, int64_t cols);

}  // namespace ingot::kernels
