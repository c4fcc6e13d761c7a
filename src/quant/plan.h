// Plan: every byte that the output will have, decided from headers before a weight is read: which tensors, in which shard, at which offset,
// from which rows of the source. The same source and recipe give the same plan, which is what makes a resumed run bit-identical.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/recipe.h"
#include "tensor/checkpoint.h"

namespace ingot::quant {

struct OutputTensor {
  std::string name;  // empty: none
  tensor::DType dtype = tensor::DType::u8;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // of the first byte, from the start of the shard's file
};

// What is written from one tensor of the source: a packed module (weight and scales, never in different shards) or a plain copy.
struct Unit {
  const tensor::TensorInfo* source = nullptr;        // of the checkpoint, which must outlive the plan
  const tensor::TensorInfo* source_scale = nullptr;  // FP8 blocks of a module that is packed anew
  int32_t module = -1;                               // index into the modules; -1: a copy
  tensor::WeightFormat from = tensor::WeightFormat::bf16, to = tensor::WeightFormat::bf16;  // of a module
  int64_t rows = 0, cols = 0;                                                               // of a module
  OutputTensor weight, scale;

  bool packed() const { return module >= 0; }
  uint64_t bytes_in() const { return source->bytes + (source_scale == nullptr ? 0 : source_scale->bytes); }
  uint64_t bytes_out() const { return weight.bytes + scale.bytes; }
};

// The piece that one thread converts at a time: rows of a packed module, bytes of a copy.
struct Band {
  uint32_t unit = 0;
  int64_t begin = 0, count = 0;
};

struct PlannedShard {
  std::string file;                     // "model-00001-of-00088.safetensors"
  std::string header;                   // the length field and the JSON: all bytes before the data
  uint64_t bytes = 0;                   // of the file
  size_t first_unit = 0, end_unit = 0;  // [first, end) of Plan::units
};

struct Plan {
  std::vector<Unit> units;  // in the order of the source's bytes, so that reading is sequential
  std::vector<PlannedShard> shards;
  uint64_t bytes_in = 0, bytes_out = 0;  // of tensors
};

// shard_bytes: tensors of a shard take at most so much, unless one unit alone is larger. Errors: a source that already has a tensor of
// the name that a module's scales will have.
Result<Plan> make_plan(const tensor::Checkpoint& checkpoint, const std::vector<Module>& modules, const Recipe& recipe,
                       uint64_t shard_bytes);

// Where the output of a band lies, from the start of its tensors. A copy has no scales.
struct BandPlace {
  uint64_t weight_begin = 0, weight_bytes = 0, scale_begin = 0, scale_bytes = 0;
};
BandPlace place_of(const Unit& unit, const Band& band);

// Of one unit or of the units of one shard. Bands of a unit are in order.
void append_bands(const Plan& plan, size_t unit, std::vector<Band>& out);
std::vector<Band> bands_of(const Plan& plan, const PlannedShard& shard);

// Largest input and output of a band in bytes, for buffers and the estimate of memory.
struct BandBytes {
  uint64_t in = 0, out = 0;
};
BandBytes largest_band(const Plan& plan);

}  // namespace ingot::quant
