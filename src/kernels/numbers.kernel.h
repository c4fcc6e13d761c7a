// How kernels read and write arrays whose type is known only at run time: the type is looked at once, and the body is compiled for
// each. Used by the other *.kernel.h files.
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace ingot::kernels {

struct F32Numbers {
  const float* data;
  GPU_FN float operator[](int64_t i) const { return data[i]; }
};
struct Bf16Numbers {
  const uint16_t* data;
  GPU_FN float operator[](int64_t i) const { return gpu::bf16_value(data[i]); }
};
struct E4m3Numbers {
  const uint8_t* data;
  GPU_FN float operator[](int64_t i) const { return gpu::e4m3_value(data[i]); }
};

// body(numbers) with numbers[i] the i-th float of `data`, which is f32, bf16 or f8_e4m3 (scale 1).
template <class Body>
GPU_FN void with_numbers(const void* data, tensor::DType type, Body body) {
  if (type == tensor::DType::f32)
    body(F32Numbers{static_cast<const float*>(data)});
  else if (type == tensor::DType::bf16)
    body(Bf16Numbers{static_cast<const uint16_t*>(data)});
  else
    body(E4m3Numbers{static_cast<const uint8_t*>(data)});
}

// data[i] = value, rounded to f32, bf16 or f8_e4m3 (scale 1, saturating).
GPU_FN void store_number(void* data, tensor::DType type, int64_t i, float value) {
  if (type == tensor::DType::f32)
    static_cast<float*>(data)[i] = value;
  else if (type == tensor::DType::bf16)
    static_cast<uint16_t*>(data)[i] = gpu::to_bf16(value);
  else
    static_cast<uint8_t*>(data)[i] = gpu::to_e4m3(value);
}

// A weight in one of its formats: row(n)[k] is the element as a float.
struct F32Weight {
  const float* data;
  int64_t cols;
  GPU_FN F32Numbers row(int64_t n) const { return {data + n * cols}; }
};
struct Bf16Weight {
  const uint16_t* data;
  int64_t cols;
  GPU_FN Bf16Numbers row(int64_t n) const { return {data + n * cols}; }
};
struct Fp8Weight {
  struct Row {
    const uint8_t* data;
    const float* scale;
    GPU_FN float operator[](int64_t k) const { return gpu::e4m3_value(data[k]) * scale[k / 128]; }
  };
  const uint8_t* data;
  const float* scale;  // the whole tensor's table
  int64_t cols, first_row;
  GPU_FN Row row(int64_t n) const { return {data + n * cols, scale + (first_row + n) / 128 * ((cols + 127) / 128)}; }
};
struct Mxfp4Weight {
  struct Row {
    const uint8_t* data;
    const uint8_t* scale;
    GPU_FN float operator[](int64_t k) const {
      const uint32_t code = static_cast<uint32_t>(data[k / 2]) >> (k % 2 * 4);
      return gpu::e2m1_value(code) * gpu::e8m0_value(scale[k / 32]);
    }
  };
  const uint8_t* data;
  const uint8_t* scale;
  int64_t cols;
  GPU_FN Row row(int64_t n) const { return {data + n * (cols / 2), scale + n * (cols / 32)}; }
};

// body(weight) with one of the four above.
template <class Body>
GPU_FN void with_weight(const tensor::WeightView& w, Body body) {
  const void* data = w.data;
  if (w.format == tensor::WeightFormat::f32)
    body(F32Weight{static_cast<const float*>(data), w.cols});
  else if (w.format == tensor::WeightFormat::bf16)
    body(Bf16Weight{static_cast<const uint16_t*>(data), w.cols});
  else if (w.format == tensor::WeightFormat::fp8_block)
    body(Fp8Weight{w.data, static_cast<const float*>(static_cast<const void*>(w.scale)), w.cols, w.first_row});
  else
    body(Mxfp4Weight{w.data, w.scale, w.cols});
}

}  // namespace ingot::kernels
