// The operations of ops.h by the kernels of native/sm90. Each puts its operation on the queue, or says false (0) and does nothing: then it
// is not one of theirs, or native kernels are not wanted (DeviceMatmul::fast) or not there.
#pragma once

#include <span>

#include "gpu/stream.h"
#include "kernels/params.h"

namespace ingot::kernels::sm90 {

// How many products, from the first one on.
size_t matmul(gpu::Stream& stream, std::span<const MatmulParams> products);
bool grouped_matmul(gpu::Stream& stream, const GroupedMatmulParams& p);
bool gated_matmul(gpu::Stream& stream, const GatedMatmulParams& p);
bool head_matmul(gpu::Stream& stream, const HeadMatmulParams& p);
bool combine(gpu::Stream& stream, const CombineParams& p);
bool index_scores(gpu::Stream& stream, const IndexScoresParams& p);
bool top_k(gpu::Stream& stream, const TopKParams& p);
bool router(gpu::Stream& stream, const RouterParams& p);
bool permute(gpu::Stream& stream, const PermuteParams& p);
bool route(gpu::Stream& stream, const RouterParams& choice, const PermuteParams& permutation);
bool sparse_mla(gpu::Stream& stream, const SparseMlaParams& p);

}  // namespace ingot::kernels::sm90
