// Weights as tile kernels read them: eight neighbours along K at a time, first as they lie in memory and then, exactly, in bf16. What bf16
// cannot hold, FP8's block scales, multiplies the f32 sum of each 128 of K instead. One struct a format, chosen at compile time.
//
// A row is asked for by its index in the view, or is none() (all zeros), for columns of y that do not exist.
#pragma once

#include "gpu/kernel.h"
#include "gpu/mma.h"
#include "gpu/numbers.h"
#include "tensor/weight_view.h"

namespace ingot::kernels {

using gpu::Words;
using tensor::WeightFormat;
using tensor::WeightView;

// Numbers that one thread moves at once.
inline constexpr int kChunk = 8;

// Whole words from and to memory that is aligned to `Align` bytes.
template <int Align, class T>
GPU_FN void load_aligned(T& words, const void* from) {
  __builtin_memcpy(&words, __builtin_assume_aligned(from, Align), sizeof words);
}
template <int Align, class T>
GPU_FN void store_aligned(void* to, const T& words) {
  __builtin_memcpy(__builtin_assume_aligned(to, Align), &words, sizeof words);
}

GPU_FN bool aligned_to(const void* pointer, int64_t row_bytes, int bytes) {
  return ((reinterpret_cast<uint64_t>(pointer) | static_cast<uint64_t>(row_bytes)) & static_cast<uint64_t>(bytes - 1)) == 0;
}

// Two floats that bf16 holds exactly, in one word.
GPU_FN uint32_t exact_bf16_pair(float low, float high) { return gpu::float_bits(low) >> 16 | (gpu::float_bits(high) & 0xffff0000u); }

struct TileBf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kBlockScales = false;
  struct Raw {
    Words<4> words;
  };
  struct Row {
    const uint16_t* data;
  };

  const uint16_t* data;
  int64_t cols;
  bool aligned;

  GPU_FN explicit TileBf16(const WeightView& w)
      : data(static_cast<const uint16_t*>(static_cast<const void*>(w.data))), cols(w.cols), aligned(aligned_to(w.data, w.cols * 2, 16)) {}
  GPU_FN static Row none() { return {nullptr}; }
  GPU_FN Row row(int64_t n) const { return {data + n * cols}; }

  // Numbers k..k+7 of the row; those from `cols` on are zero.
  GPU_FN Raw load(Row row, int64_t k) const {
    Raw raw = {};
    if (row.data == nullptr || k >= cols) return raw;
    if (aligned && k + kChunk <= cols) {
      load_aligned<16>(raw.words, row.data + k);
      return raw;
    }
    for (int i = 0; i < kChunk; ++i) {
      if (k + i < cols) raw.words.v[i / 2] |= static_cast<uint32_t>(row.data[k + i]) << (i % 2 * 16);
    }
    return raw;
  }
  GPU_FN static Words<4> bf16(const Raw& raw) { return raw.words; }
};

struct TileFp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8_block;
  static constexpr bool kBlockScales = true;
  struct Raw {
    Words<2> words;
  };
  struct Row {
    const uint8_t* data;
  };

  const uint8_t* data;
  const float* scale;  // the whole tensor's table
  int64_t cols, first_row;
  bool aligned;

  GPU_FN explicit TileFp8(const WeightView& w)
      : data(w.data),
        scale(static_cast<const float*>(static_cast<const void*>(w.scale))),
        cols(w.cols),
        first_row(w.first_row),
        aligned(aligned_to(w.data, w.cols, 8)) {}
  GPU_FN static Row none() { return {nullptr}; }
  GPU_FN Row row(int64_t n) const { return {data + n * cols}; }

  GPU_FN Raw load(Row row, int64_t k) const {
    Raw raw = {};
    if (row.data == nullptr || k >= cols) return raw;
    if (aligned && k + kChunk <= cols) {
      load_aligned<8>(raw.words, row.data + k);
      return raw;
    }
    for (int i = 0; i < kChunk; ++i) {
      if (k + i < cols) raw.words.v[i / 4] |= static_cast<uint32_t>(row.data[k + i]) << (i % 4 * 8);
    }
    return raw;
  }
  GPU_FN static Words<4> bf16(const Raw& raw) {
    Words<4> out;
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = raw.words.v[i / 2] >> (i % 2 * 16);
      out.v[i] = exact_bf16_pair(gpu::e4m3_value(static_cast<uint8_t>(pair)), gpu::e4m3_value(static_cast<uint8_t>(pair >> 8)));
    }
    return out;
  }
  // The scale of row n's 128-block of K number `block`.
  GPU_FN float block_scale(int64_t n, int64_t block) const { return scale[(first_row + n) / 128 * ((cols + 127) / 128) + block]; }
};

// cols is a multiple of 32. e2m1 times a power of two is a bf16 number, unless it overflows, as it would in f32.
struct TileMxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::mxfp4;
  static constexpr bool kBlockScales = false;
  struct Raw {
    Words<1> words;
    uint8_t scale;
  };
  struct Row {
    const uint8_t* data;
    const uint8_t* scale;
  };

  const uint8_t* data;
  const uint8_t* scale;
  int64_t cols;
  bool aligned;

  GPU_FN explicit TileMxfp4(const WeightView& w) : data(w.data), scale(w.scale), cols(w.cols), aligned(aligned_to(w.data, w.cols / 2, 4)) {}
  GPU_FN static Row none() { return {nullptr, nullptr}; }
  GPU_FN Row row(int64_t n) const { return {data + n * (cols / 2), scale + n * (cols / 32)}; }

  GPU_FN Raw load(Row row, int64_t k) const {
    Raw raw = {};
    if (row.data == nullptr || k >= cols) return raw;
    raw.scale = row.scale[k / 32];
    if (aligned) {
      load_aligned<4>(raw.words, row.data + k / 2);
      return raw;
    }
    for (int i = 0; i < kChunk / 2; ++i) raw.words.v[0] |= static_cast<uint32_t>(row.data[k / 2 + i]) << (i * 8);
    return raw;
  }
  GPU_FN static Words<4> bf16(const Raw& raw) {
    Words<4> out;
    const float factor = gpu::e8m0_value(raw.scale);
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = raw.words.v[0] >> (i * 8);
      out.v[i] = exact_bf16_pair(gpu::e2m1_value(pair) * factor, gpu::e2m1_value(pair >> 4) * factor);
    }
    return out;
  }
};

}  // namespace ingot::kernels
