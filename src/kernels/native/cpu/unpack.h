// Stored numbers to f32 rows in a scratch buffer, exactly: weights of every format, and rows of the paged caches.
// Used only inside native/cpu.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/latent_format.h"
#include "tensor/weight_view.h"

namespace ingot::kernels::native {

// dst[r * dst_stride + c] = w[row + r, col + c] for r < rows, c < cols. For mxfp4 `col` and `cols` are multiples of 32.
// The value of fp8_block is f32(e4m3 * scale), rounded once; the other formats are exact.
void unpack_weight(const tensor::WeightView& w, int64_t row, int64_t rows, int64_t col, int64_t cols, float* dst, int64_t dst_stride);

// dst[0..count) = src[0..count) of type f32, bf16 or f8_e4m3.
void unpack_row(const void* src, tensor::DType dtype, int64_t count, float* dst);

// dst[0..latent_dim + rope_dim) = the numbers of a row of the latent cache.
void unpack_latent(const void* src, tensor::LatentFormat format, int64_t latent_dim, int64_t rope_dim, float* dst);

// A buffer of at least `floats` f32, 64-byte aligned, owned by the calling thread; `slot` tells buffers in use at once apart.
// It keeps its size between calls, so that a step allocates nothing once it is warm. Contents are unspecified.
enum class Scratch : uint8_t { weights, keys, values, scores, bits };
float* scratch(Scratch slot, int64_t floats);

}  // namespace ingot::kernels::native
