// What an operation must move and compute, from its params alone: the yardstick of `ingot bench kernels` and `ingot bench shard`. Pure
// functions; they look at no array but a grouped product's first weight, where the host has it.
//
// Bytes: weights with their scales once, activations in and out once, cache rows as often as a row of the batch reads them (a second
// reader may find them in the L2, so a gather may seem faster than memory). Flop: multiply and add are two; what is not a product counts
// as a handful a number. What only the device knows (how many experts were hit, how far rows look back) comes as hints.
#pragma once

#include <span>

#include "gpu/stream.h"
#include "kernels/params.h"

namespace ingot::kernels {

using gpu::OpCost;
using gpu::OpHints;

// Of a weight with its scales.
double weight_bytes(const WeightView& w);

OpCost op_cost(const EmbedParams& p, const OpHints& hints);
OpCost op_cost(const RmsNormParams& p, const OpHints& hints);
OpCost op_cost(const LayerNormParams& p, const OpHints& hints);
OpCost op_cost(const RopeTableParams& p, const OpHints& hints);
OpCost op_cost(const RopeParams& p, const OpHints& hints);
OpCost op_cost(const MatmulParams& p, const OpHints& hints);
OpCost op_cost(const MatmulTransposedParams& p, const OpHints& hints);
OpCost op_cost(const HeadMatmulParams& p, const OpHints& hints);
OpCost op_cost(const GroupedMatmulParams& p, const OpHints& hints);
OpCost op_cost(const GatedMatmulParams& p, const OpHints& hints);
OpCost op_cost(const SwiGluParams& p, const OpHints& hints);
OpCost op_cost(const LatentStoreParams& p, const OpHints& hints);
OpCost op_cost(const LatentGatherParams& p, const OpHints& hints);
OpCost op_cost(const IndexKeyStoreParams& p, const OpHints& hints);
OpCost op_cost(const QkvPrepareParams& p, const OpHints& hints);
OpCost op_cost(const IndexScoresParams& p, const OpHints& hints);
OpCost op_cost(const TopKParams& p, const OpHints& hints);
OpCost op_cost(const SparseMlaParams& p, const OpHints& hints);
OpCost op_cost(const ExpandedMlaParams& p, const OpHints& hints);
OpCost op_cost(const RouterParams& p, const OpHints& hints);
OpCost op_cost(const PermuteParams& p, const OpHints& hints);
OpCost op_cost(const CombineParams& p, const OpHints& hints);
OpCost op_cost(const CopyRowsParams& p, const OpHints& hints);
OpCost op_cost(const AdjustRowsParams& p, const OpHints& hints);  // one reading of the rows: how many are changed, the host does not say
OpCost op_cost(const SampleRowsParams& p, const OpHints& hints);
OpCost op_cost(const LogprobRowsParams& p, const OpHints& hints);
OpCost op_cost(const KeepDraftsParams& p, const OpHints& hints);
OpCost op_cost(const TakeDraftsParams& p, const OpHints& hints);
OpCost op_cost(const ExtendListsParams& p, const OpHints& hints);
OpCost op_cost(const MoveRowsParams& p, const OpHints& hints);

// Of products that are one operation: what they have in common is rows and k.
template <class Params>
OpCost op_cost(std::span<const Params> products, const OpHints& hints) {
  OpCost sum;
  for (const Params& p : products) {
    const OpCost one = op_cost(p, hints);
    sum.bytes += one.bytes;
    sum.flop += one.flop;
    sum.shape = {one.shape.rows, sum.shape.n + one.shape.n, one.shape.k};
  }
  return sum;
}

}  // namespace ingot::kernels
