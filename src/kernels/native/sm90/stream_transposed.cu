// The transposed product of stream_matmul.h: y[t,h,:] = sum over the head's rows of w of x[t,h,row] * w[row,:]. Weights are the A operand
// again, with columns of w as its rows and rows of w as its K. A lane has eight neighbouring columns of the four rows that its A operands
// take (2t, 2t + 1, 2t + 8, 2t + 9 of a step of 16), so a pair along K is made of two of its own words and nothing is shuffled.
#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/stream_matmul.h"
#include "kernels/native/sm90/stream_ptx.h"

namespace ingot::kernels::sm90 {

// ---- formats: eight numbers as they lie in memory, and as four words of two bf16; element() says which column a half of a word is.

struct TransposedBf16 {
  static constexpr bool kStepScales = false;
  static constexpr int kPairStep = 1;
  struct Raw {
    uint4 words;
  };
  SM90_FN static Raw load(const WeightView& w, int64_t row, int64_t column) {
    return {*reinterpret_cast<const uint4*>(w.data + (row * w.cols + column) * 2)};
  }
  SM90_FN static void bf16(const Raw& raw, uint32_t (&pairs)[4]) {
    pairs[0] = raw.words.x, pairs[1] = raw.words.y, pairs[2] = raw.words.z, pairs[3] = raw.words.w;
  }
};

struct TransposedFp8 {
  static constexpr bool kStepScales = true;
  static constexpr int kPairStep = 1;
  struct Raw {
    uint2 words;
  };
  SM90_FN static Raw load(const WeightView& w, int64_t row, int64_t column) {
    return {*reinterpret_cast<const uint2*>(w.data + row * w.cols + column)};
  }
  SM90_FN static void bf16(const Raw& raw, uint32_t (&pairs)[4]) {
    pairs[0] = bf16_of_e4m3(static_cast<uint16_t>(raw.words.x));
    pairs[1] = bf16_of_e4m3(static_cast<uint16_t>(raw.words.x >> 16));
    pairs[2] = bf16_of_e4m3(static_cast<uint16_t>(raw.words.y));
    pairs[3] = bf16_of_e4m3(static_cast<uint16_t>(raw.words.y >> 16));
  }
};

struct TransposedMxfp4 {
  static constexpr bool kStepScales = false;
  static constexpr int kPairStep = 4;
  struct Raw {
    uint32_t word, e8m0;
  };
  SM90_FN static Raw load(const WeightView& w, int64_t row, int64_t column) {
    return {*reinterpret_cast<const uint32_t*>(w.data + (row * w.cols + column) / 2), w.scale[(row * w.cols + column) / 32]};
  }
  SM90_FN static void bf16(const Raw& raw, uint32_t (&pairs)[4]) {
    codes_of_mxfp4(raw.word, pairs);
    const uint32_t first = mxfp4_first_factor(raw.e8m0), second = mxfp4_second_factor(raw.e8m0);
    for (int i = 0; i < 4; ++i) pairs[i] = mul_bf16x2(mul_bf16x2(pairs[i], first), second);
  }
};

extern __shared__ uint4 stream_shared[];

// kGroups: of eight tokens, at once.
template <class F, int kGroups>
SM90_FN void stream_transposed(const StreamHeadsParams& p) {
  constexpr int kStep = 16, kAtOnce = 3;  // steps a warp has in registers: all of them at 192 rows a head
  constexpr int kRows = kGroups * kStreamRows;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int64_t column_groups = (p.w.cols + kTransposedColumns - 1) / kTransposedColumns;
  const int64_t head = blockIdx.x % p.heads, block = blockIdx.x / p.heads;
  const int64_t first_column = block % column_groups * kTransposedColumns, column = first_column + g * 8;
  const int64_t token_groups = (p.rows + kRows - 1) / kRows;
  const int64_t group_step = gridDim.x / (p.heads * column_groups);

  // Steps are aligned to 16 rows of the tensor, so that each lies in one block of scales; rows beyond the head's count as zeros.
  const int64_t before = F::kStepScales ? p.w.first_row : 0;
  const int64_t begin = before + head * p.head_rows + p.first_row, end = begin + p.n;
  const int64_t first_step = begin / kStep, last_step = (end + kStep - 1) / kStep;
  const bool resident = last_step - first_step <= kAtOnce * kTransposedWarps;
  const auto row_of = [&](int64_t step, int j) { return step * kStep + t * 2 + j % 2 + j / 2 * 8; };

  typename F::Raw raw[kAtOnce][4];
  const auto load = [&](int64_t from_step) {
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t row = row_of(from_step + s * kTransposedWarps, j);
        raw[s][j] = {};
        if (row >= begin && row < end && column < p.w.cols) raw[s][j] = F::load(p.w, row - before, column);
      }
    }
  };

  allow_next_kernel();
  load(first_step + warp);
  wait_for_previous_kernel();
  const uint32_t sums = shared_address(stream_shared);
  for (int64_t group = block / column_groups; group < token_groups; group += group_step) {
    float acc[kGroups][4][4] = {};
    for (int64_t from = first_step + warp; from < last_step; from += kAtOnce * kTransposedWarps) {
      if (!resident && (from > first_step + warp || group > block / column_groups)) load(from);
      uint32_t b[kGroups][kAtOnce][2];
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const int64_t token = group * kRows + c * kStreamRows + g;
        const float* x = p.x + token * p.x_token_stride + head * p.x_head_stride;
        float numbers[kAtOnce][4];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int64_t row = row_of(from + s * kTransposedWarps, j);
            numbers[s][j] = row >= begin && row < end && token < p.rows ? x[row - begin] : 0.0f;
          }
        }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
          b[c][s][0] = pack_bf16(numbers[s][0], numbers[s][1]), b[c][s][1] = pack_bf16(numbers[s][2], numbers[s][3]);
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        const int64_t step = from + s * kTransposedWarps;
        if (step >= last_step) break;
        uint32_t pairs[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) F::bf16(raw[s][j], pairs[j]);
        float scale = 1.0f;
        if constexpr (F::kStepScales)
          scale = reinterpret_cast<const float*>(p.w.scale)[step * kStep / 128 * ((p.w.cols + 127) / 128) + first_column / 128];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // words' low halves are the columns of A's rows g, high ones of g + 8
          const uint32_t a[4] = {__byte_perm(pairs[0][i], pairs[1][i], 0x5410), __byte_perm(pairs[0][i], pairs[1][i], 0x7632),
                                 __byte_perm(pairs[2][i], pairs[3][i], 0x5410), __byte_perm(pairs[2][i], pairs[3][i], 0x7632)};
#pragma unroll
          for (int c = 0; c < kGroups; ++c) {
            if constexpr (F::kStepScales) {
              float part[4] = {};
              mma_bf16(part, a, b[c][s][0], b[c][s][1]);
              for (int e = 0; e < 4; ++e) acc[c][i][e] = fmaf(scale, part[e], acc[c][i][e]);
            } else {
              mma_bf16(acc[c][i], a, b[c][s][0], b[c][s][1]);
            }
          }
        }
      }
    }
    __syncthreads();  // the last group's sums have been read
    for (int c = 0; c < kGroups; ++c) {
      for (int i = 0; i < 4; ++i)
        store_shared(sums + static_cast<uint32_t>((((c * kTransposedWarps + warp) * 4 + i) * 32 + lane) * 16),
                     uint4{__float_as_uint(acc[c][i][0]), __float_as_uint(acc[c][i][1]), __float_as_uint(acc[c][i][2]),
                           __float_as_uint(acc[c][i][3])});
    }
    __syncthreads();
    for (int i = thread; i < kTransposedColumns * kRows; i += kTransposedWarps * 32) {
      const int c = i % kTransposedColumns, row = i / kTransposedColumns;
      const int64_t token = group * kRows + row;
      if (token >= p.rows || first_column + c >= p.w.cols) continue;
      const int word = F::kPairStep == 4 ? c % 4 : c % 8 / 2, half = F::kPairStep == 4 ? c % 8 / 4 : c % 2;
      const uint32_t at = sums + static_cast<uint32_t>(((row / 8 * kTransposedWarps * 4 + word) * 32 + c / 8 * 4 + row % 8 / 2) * 16 +
                                                       (half * 2 + row % 2) * 4);
      float sum = load_shared_float(at);
      for (int w = 1; w < kTransposedWarps; ++w) sum += load_shared_float(at + static_cast<uint32_t>(w * 4 * 512));
      p.y[token * p.y_token_stride + head * p.y_head_stride + first_column + c] = sum;
    }
  }
}

}  // namespace ingot::kernels::sm90

#define STREAM_TRANSPOSED_KERNEL(NAME, FORMAT, GROUPS)                                                           \
  extern "C" __global__ void __launch_bounds__(ingot::kernels::sm90::kTransposedWarps * 32)                      \
      ingot_Sm90StreamHeadsTransposed##NAME(const __grid_constant__ ingot::kernels::sm90::StreamHeadsParams p) { \
    ingot::kernels::sm90::stream_transposed<ingot::kernels::sm90::Transposed##FORMAT, GROUPS>(p);                \
  }
#define STREAM_TRANSPOSED(FORMAT)             \
  STREAM_TRANSPOSED_KERNEL(FORMAT, FORMAT, 1) \
  STREAM_TRANSPOSED_KERNEL(FORMAT##Several, FORMAT, ingot::kernels::sm90::kStreamSeveralRows / ingot::kernels::sm90::kStreamRows)

STREAM_TRANSPOSED(Mxfp4)
STREAM_TRANSPOSED(Fp8)
STREAM_TRANSPOSED(Bf16)
#undef STREAM_TRANSPOSED
#undef STREAM_TRANSPOSED_KERNEL
