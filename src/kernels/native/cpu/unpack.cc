#include "kernels/native/cpu/unpack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "kernels/native/cpu/simd.h"

namespace ingot::kernels::native {
namespace {

using tensor::DType;
using tensor::LatentFormat;
using tensor::WeightFormat;
using tensor::WeightView;

void widen_bf16(const uint16_t* src, int64_t count, float* dst) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(dst + i, load8(src + i));
  if (i < count) store_part(dst + i, load_part(src + i, count - i), count - i);
}

// Any alignment of src. Scale 1 is exact, so caches and weights share this.
void widen_scaled_e4m3(const uint8_t* src, int64_t count, float scale, float* dst) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src + i));
    _mm256_storeu_ps(dst + i, _mm256_mul_ps(widen_e4m3(bytes), set8(scale)));
  }
  if (i < count) {
    uint8_t padded[16] = {};
    std::memcpy(padded, src + i, static_cast<size_t>(count - i));
    const F32x8 v = _mm256_mul_ps(widen_e4m3(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(padded))), set8(scale));
    store_part(dst + i, v, count - i);
  }
}

// One group: 16 bytes, 32 codes, low nibble first, times 2^(scale - 127).
void widen_mxfp4_group(const uint8_t* src, uint8_t scale, float* dst) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
  const __m128i nibble = _mm_set1_epi8(0x0f);
  const __m128i even = _mm_and_si128(bytes, nibble);
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  const __m128i codes[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
  const F32x8 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const F32x8 factor = set8(tensor::e8m0_to_f32(scale));
  for (int half = 0; half < 2; ++half) {
    for (int part = 0; part < 2; ++part) {
      const __m256i code = _mm256_cvtepu8_epi32(part == 0 ? codes[half] : _mm_srli_si128(codes[half], 8));
      const F32x8 value = _mm256_permutevar8x32_ps(magnitudes, code);  // looks at the low three bits only
      const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 3), 31);
      _mm256_storeu_ps(dst + half * 16 + part * 8, _mm256_mul_ps(_mm256_xor_ps(value, _mm256_castsi256_ps(sign)), factor));
    }
  }
}

struct Buffer {
  std::unique_ptr<float, void (*)(void*)> data{nullptr, std::free};
  int64_t capacity = 0;
};

}  // namespace

void unpack_weight(const WeightView& w, int64_t row, int64_t rows, int64_t col, int64_t cols, float* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* src = w.data + (row + r) * w.row_bytes();
    float* out = dst + r * dst_stride;
    switch (w.format) {
      case WeightFormat::bf16: widen_bf16(reinterpret_cast<const uint16_t*>(src) + col, cols, out); break;
      case WeightFormat::f32: std::memcpy(out, reinterpret_cast<const float*>(src) + col, static_cast<size_t>(cols) * sizeof(float)); break;
      case WeightFormat::fp8_block: {
        const uint8_t* scales = w.scale + (w.first_row + row + r) / 128 * w.scale_cols() * 4;
        for (int64_t c = 0; c < cols;) {
          const int64_t block = (col + c) / 128;
          const int64_t end = std::min(cols, (block + 1) * 128 - col);
          float scale;  // by copy: a tensor in a file may start at any byte
          std::memcpy(&scale, scales + block * 4, sizeof scale);
          widen_scaled_e4m3(src + col + c, end - c, scale, out + c);
          c = end;
        }
        break;
      }
      case WeightFormat::mxfp4: {
        const uint8_t* scales = w.scale + (row + r) * w.scale_cols();
        for (int64_t c = 0; c < cols; c += 32) widen_mxfp4_group(src + (col + c) / 2, scales[(col + c) / 32], out + c);
        break;
      }
    }
  }
}

void unpack_row(const void* src, DType dtype, int64_t count, float* dst) {
  switch (dtype) {
    case DType::f32: std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float)); return;
    case DType::bf16: widen_bf16(static_cast<const uint16_t*>(src), count, dst); return;
    case DType::f8_e4m3: widen_scaled_e4m3(static_cast<const uint8_t*>(src), count, 1.0f, dst); return;
    default: INGOT_CHECK(false, "cache type {} has no rows to read", tensor::dtype_name(dtype));
  }
}

void unpack_latent(const void* src, LatentFormat format, int64_t latent_dim, int64_t rope_dim, float* dst) {
  switch (format) {
    case LatentFormat::f32: return unpack_row(src, DType::f32, latent_dim + rope_dim, dst);
    case LatentFormat::bf16: return unpack_row(src, DType::bf16, latent_dim + rope_dim, dst);
    case LatentFormat::fp8: return unpack_row(src, DType::f8_e4m3, latent_dim + rope_dim, dst);
    case LatentFormat::fp8_scaled: break;
  }
  const auto* row = static_cast<const uint8_t*>(src);
  const uint8_t* scales = row + latent_dim;
  const int64_t groups = tensor::latent_groups(latent_dim);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * tensor::kLatentGroup;
    float scale;
    std::memcpy(&scale, scales + 4 * group, sizeof scale);
    widen_scaled_e4m3(row + first, std::min(tensor::kLatentGroup, latent_dim - first), scale, dst + first);
  }
  widen_bf16(reinterpret_cast<const uint16_t*>(scales + 4 * groups), rope_dim, dst + latent_dim);
}

float* scratch(Scratch slot, int64_t floats) {
  thread_local Buffer buffers[5];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (buffer.capacity < floats) {
    const int64_t capacity = (std::max(floats, 2 * buffer.capacity) + 15) / 16 * 16;
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(capacity) * sizeof(float))));
    INGOT_CHECK(buffer.data != nullptr, "no memory for {} floats of kernel scratch", capacity);
    buffer.capacity = capacity;
  }
  return buffer.data.get();
}

}  // namespace ingot::kernels::native
