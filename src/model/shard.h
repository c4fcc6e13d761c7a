// How a model is cut for tensor parallelism: which part of every tensor a rank has, and what the rest of the program takes for its
// config. Pure functions over configs and weight tables; the sums between ranks are collective.h. Why each tensor is cut or not:
// docs/shard.md.
//
//   q_b, kv_b, o                              by heads (o by its input columns)
//   gate, up, down of every MLP and expert    by the intermediate dimension (down by its input columns)
//   lm_head (and MTP's head)                  by vocabulary rows
//   MTP's eh_proj                             by its input columns
//   embedding, q_a, kv_a, indexer, router, norms    whole on every rank
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/weights.h"
#include "spec/model_config.h"

namespace ingot::model {

// The config that rank's kernels see: heads / tp, intermediate sizes / tp, and the vocabulary rows of its part of the head as
// vocab_size (token ids are still those of the whole vocabulary, which the embedding table has).
// Errors: a dimension that tp does not divide, by name.
Result<spec::ModelConfig> shard_config(const spec::ModelConfig& config, int tp);

struct ShardedWeights {
  Weights weights;  // views into the bound checkpoint where a part's rows are contiguous, else into `owned`
  std::vector<std::unique_ptr<uint8_t[]>> owned;
  size_t owned_bytes = 0;
};

// Rank `rank`'s part of weights bound on the host, which must outlive it. Reads the checkpoint's bytes of the columns that are cut.
// Errors: what shard_config refuses; a cut through a quantisation block that a part of its own could not express (MXFP4: a part that is
// not a multiple of 32 columns; FP8: a part whose blocks of 128 columns would span two of the tensor's), naming the tensor.
Result<ShardedWeights> shard_weights(const Weights& weights, const spec::ModelConfig& config, int tp, int rank);

}  // namespace ingot::model
