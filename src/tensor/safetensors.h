// The header of one safetensors file: an 8-byte little-endian length, then JSON {"name": {"dtype", "shape", "data_offsets"}, ...}.
// Source of the format: the safetensors README (huggingface/safetensors). Used by Checkpoint alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace ingot::tensor {

// The length field may not say more; the format's own limit.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Parses and checks the header of `file` (the whole mapped file). `path` is used in errors. Fills name, dtype, shape, offset and bytes.
Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, const std::string& path);

// (tensor name, file name) pairs of model.safetensors.index.json, in file order.
Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view text, const std::string& path);

}  // namespace ingot::tensor
