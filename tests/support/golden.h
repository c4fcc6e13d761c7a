// Golden vectors of the demo model (tests/golden/model): one safetensors file a prompt.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file_map.h"
#include "support/source_dir.h"
#include "tensor/safetensors.h"

namespace ingot::test_support {

struct Golden {
  FileMap map;
  std::vector<tensor::TensorInfo> tensors;

  explicit Golden(const std::string& name) {
    const std::string path = (source_dir() / "tests/golden/model" / (name + ".safetensors")).string();
    map = FileMap::open(path).value();
    tensors = tensor::parse_safetensors(map.bytes(), path).value();
  }
  const tensor::TensorInfo& info(const std::string& name) const {
    for (const auto& t : tensors)
      if (t.name == name) return t;
    INGOT_CHECK(false, "no golden tensor {}", name);
  }
  template <class T>
  std::vector<T> as(const std::string& name) const {
    const auto& t = info(name);
    std::vector<T> v(t.bytes / sizeof(T));
    std::memcpy(v.data(), map.bytes().data() + t.offset, t.bytes);
    return v;
  }
  // Whatever integer type it is stored in.
  std::vector<int32_t> integers(const std::string& name) const {
    if (info(name).dtype == tensor::DType::i32) return as<int32_t>(name);
    std::vector<int32_t> v;
    for (const int64_t i : as<int64_t>(name)) v.push_back(static_cast<int32_t>(i));
    return v;
  }
};

}  // namespace ingot::test_support
