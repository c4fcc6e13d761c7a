// Writes real safetensors checkpoints for tests: sharded, with an index, either with data or sparse (true headers over a hole).
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "tensor/dtype.h"
#include "tensor/linear.h"
#include "tensor/quantize.h"

namespace ingot::test_support {

struct TensorToWrite {
  std::string name;
  tensor::DType dtype = tensor::DType::f32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;  // empty: the bytes are a hole in the file (zeros)

  uint64_t bytes() const {
    uint64_t n = tensor::dtype_bytes(dtype);
    for (int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
};

// The weight (and scale) tensors of a packed linear, named as checkpoints name them.
inline std::vector<TensorToWrite> linear_tensors(const std::string& module, const tensor::PackedWeight& w) {
  using tensor::DType;
  using tensor::WeightFormat;
  switch (w.format) {
    case WeightFormat::bf16: return {{module + ".weight", DType::bf16, {w.rows, w.cols}, w.data}};
    case WeightFormat::f32: return {{module + ".weight", DType::f32, {w.rows, w.cols}, w.data}};
    case WeightFormat::fp8_block:
      return {{module + ".weight", DType::f8_e4m3, {w.rows, w.cols}, w.data},
              {module + ".weight_scale_inv", DType::f32, {(w.rows + 127) / 128, (w.cols + 127) / 128}, w.scale}};
    case WeightFormat::mxfp4:
      return {{module + ".weight", DType::u8, {w.rows, w.cols / 2}, w.data},
              {module + ".weight_scale", DType::u8, {w.rows, w.cols / 32}, w.scale}};
  }
  return {};
}

inline void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const auto& t : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[)", t.name, tensor::dtype_name(t.dtype));
    for (size_t i = 0; i < t.shape.size(); ++i) header += (i == 0 ? "" : ",") + std::to_string(t.shape[i]);
    header += fmt::format("],\"data_offsets\":[{},{}]}}", at, at + t.bytes());
    at += t.bytes();
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header;
  uint64_t position = 8 + length;
  for (const auto& t : tensors) {
    if (!t.data.empty()) {
      INGOT_CHECK(t.data.size() == t.bytes(), "{}: {} bytes of data for {}", t.name, t.data.size(), t.bytes());
      out.seekp(static_cast<std::streamoff>(position));
      out.write(reinterpret_cast<const char*>(t.data.data()), static_cast<std::streamsize>(t.data.size()));
    }
    position += t.bytes();
  }
  out.close();
  INGOT_CHECK(out.good(), "cannot write {}", path.string());
  std::filesystem::resize_file(path, position);
}

// Writes shards model-0000k-of-0000n.safetensors of at most `shard_bytes` each (a tensor is never split) and the index.
inline int write_checkpoint(const std::filesystem::path& dir, const std::vector<TensorToWrite>& tensors, uint64_t shard_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  uint64_t used = 0;
  for (const auto& t : tensors) {
    if (used > 0 && used + t.bytes() > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(t);
    used += t.bytes();
  }
  std::filesystem::create_directories(dir);
  std::ofstream index(dir / "model.safetensors.index.json");
  index << "{\"metadata\":{},\"weight_map\":{";
  bool first = true;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(dir / name, shards[i]);
    for (const auto& t : shards[i]) {
      index << (first ? "" : ",") << '"' << t.name << "\":\"" << name << '"';
      first = false;
    }
  }
  index << "}}";
  return static_cast<int>(shards.size());
}

// A folder under the system's temporary one, removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ingot_test_XXXXXX").string();
    INGOT_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ingot::test_support
