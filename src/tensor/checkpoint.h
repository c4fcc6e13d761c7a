// Checkpoint: the safetensors files of a model folder, mapped read-only, every tensor with its extent checked against the file.
// Opening reads headers only. Immutable afterwards; any thread. Never interprets a tensor: formats are decided in linear.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file_map.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace ingot::tensor {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t bytes = 0;   // product of shape times the size of dtype
  int32_t shard = 0;    // index into shards()

  int64_t elements() const;
};

struct Shard {
  std::filesystem::path path;
  uint64_t file_bytes = 0;
  uint64_t header_bytes = 0;  // the length field's value
  int64_t num_tensors = 0;
};

// "[2048, 6144]"
std::string shape_text(std::span<const int64_t> shape);

class Checkpoint {
 public:
  // Opens model.safetensors.index.json and its shards, or a single model.safetensors. Errors name the file, the tensor, what was
  // expected and what was found: an unreadable or missing shard (with the count of tensors lost), a header that is cut, too long or not
  // JSON, an unknown dtype, a shape that overflows, offsets reversed, overlapping, with holes or beyond the file, an extent that does not
  // match shape and dtype, a tensor that is in two shards or twice in one, an index that does not match its shards.
  static Result<Checkpoint> open(const std::filesystem::path& model_dir);

  Checkpoint() = default;
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const TensorInfo* find(std::string_view name) const;  // null when absent
  std::span<const std::byte> data(const TensorInfo& tensor) const;

 private:
  std::vector<TensorInfo> tensors_;  // sorted by name
  std::vector<Shard> shards_;
  std::vector<FileMap> maps_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // views into tensors_
};

}  // namespace ingot::tensor
