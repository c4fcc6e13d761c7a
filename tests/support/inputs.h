// Seeded inputs for kernel tests, already rounded to the type they are stored in, so that a reference sees the same numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gpu/numbers.h"
#include "support/canary.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace ingot::testing {

// A random stream whose seed is printed with every failure in its scope.
class SeededRng : public Rng {
 public:
  explicit SeededRng(uint64_t seed) : Rng(seed), trace_(__FILE__, __LINE__, "seed " + std::to_string(seed)) {}

 private:
  ::testing::ScopedTrace trace_;
};

inline std::vector<float> random_floats(Rng& rng, int64_t count, float lo = -1.0f, float hi = 1.0f) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(rng.uniform_float(lo, hi));
  return out;
}

// Floats as an array of f32, bf16 or f8_e4m3.
inline std::vector<uint8_t> encoded(const std::vector<float>& values, tensor::DType type) {
  std::vector<uint8_t> out;
  const auto put = [&out](auto number) {
    uint8_t bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    out.insert(out.end(), bytes, bytes + sizeof number);
  };
  for (const float value : values) {
    if (type == tensor::DType::f32)
      put(value);
    else if (type == tensor::DType::bf16)
      put(gpu::to_bf16(value));
    else
      put(gpu::to_e4m3(value));
  }
  return out;
}

// A weight with its bytes between canaries.
struct OwnedWeight {
  Buffer<uint8_t> data;
  Buffer<uint8_t> scale;
  tensor::WeightView view;
};

// Rows [first_row, first_row + rows) of a random tensor of first_row + rows rows. The first scale of FP8 is 0 and that of MXFP4 is
// byte 0 (2^-127): blocks that hold nothing are ordinary.
inline std::unique_ptr<OwnedWeight> random_weight(Rng& rng, tensor::WeightFormat format, int64_t rows, int64_t cols,
                                                  int64_t first_row = 0) {
  using tensor::WeightFormat;
  tensor::WeightView view{nullptr, nullptr, rows, cols, format == WeightFormat::fp8_block ? first_row : 0, format};
  std::vector<uint8_t> data, scale;
  if (format == WeightFormat::f32 || format == WeightFormat::bf16) {
    const auto type = format == WeightFormat::f32 ? tensor::DType::f32 : tensor::DType::bf16;
    data = encoded(random_floats(rng, rows * cols), type);
  } else {
    for (int64_t i = 0; i < rows * view.row_bytes(); ++i) {
      auto byte = static_cast<uint8_t>(rng.bits());
      if (format == WeightFormat::fp8_block && (byte & 0x7f) == 0x7f) byte = 0x7e;  // NaN codes do not occur in checkpoints
      data.push_back(byte);
    }
  }
  if (format == WeightFormat::fp8_block) {
    std::vector<float> scales = random_floats(rng, (first_row + rows + 127) / 128 * view.scale_cols(), 0.001f, 0.004f);
    if (!scales.empty()) scales[0] = 0.0f;
    scale = encoded(scales, tensor::DType::f32);
  }
  if (format == WeightFormat::mxfp4) {
    for (int64_t i = 0; i < rows * view.scale_cols(); ++i) scale.push_back(static_cast<uint8_t>(i == 0 ? 0 : 122 + rng.below(5)));
  }
  std::unique_ptr<OwnedWeight> owned(new OwnedWeight{Buffer<uint8_t>(data), Buffer<uint8_t>(scale), view});
  owned->view.data = owned->data.data();
  owned->view.scale = scale.empty() ? nullptr : owned->scale.data();
  return owned;
}

// (rows, k) bf16 numbers in rows `stride` apart with NaN between them: who reads past a row spoils its sum.
inline std::vector<float> input_rows(Rng& rng, int64_t rows, int64_t k, int64_t stride) {
  std::vector<float> x(static_cast<size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(m * stride + i)] = gpu::bf16_value(gpu::to_bf16(rng.uniform_float(-1.0f, 1.0f)));
  }
  return x;
}

}  // namespace ingot::testing
