// The kernels that treat each row alone: embedding, norms, RoPE, SwiGLU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/copy_rows.kernel.h"
#include "kernels/embed.kernel.h"
#include "kernels/layer_norm.kernel.h"
#include "kernels/ref/copy_rows.h"
#include "kernels/ref/embed.h"
#include "kernels/ref/layer_norm.h"
#include "kernels/ref/rms_norm.h"
#include "kernels/ref/rope.h"
#include "kernels/ref/rope_table.h"
#include "kernels/ref/swiglu.h"
#include "kernels/rms_norm.kernel.h"
#include "kernels/rope.kernel.h"
#include "kernels/rope_table.kernel.h"
#include "kernels/swiglu.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;
using tensor::WeightFormat;

// A handful of f32 roundings on the way, each 2^-24.
constexpr Tolerance kF32{1e-6, 1e-11};

TEST(Embed, RowsOfTheTableWidened) {
  SeededRng rng(1);
  for (const auto format : {WeightFormat::bf16, WeightFormat::f32}) {
    for (const int64_t hidden : {1, 31, 300}) {
      const auto table = random_weight(rng, format, 11, hidden);
      for (const std::vector<int32_t>& ids : {std::vector<int32_t>{}, {10}, {0, 10, 3, 3, 7}}) {
        Buffer<int32_t> tokens(ids);
        Buffer<float> out(tokens.size() * hidden);
        const EmbedParams p{out.data(), tokens.data(), table->view, tokens.size()};
        run_everywhere<Embed>(p, out);
        EXPECT_TRUE(all_close(ref::embed(p), strided(out, tokens.size(), hidden, hidden), {0.0}));
      }
    }
  }
}

// Numbers are copied as bits: -1, as lists of positions are padded with, is a NaN of a float.
TEST(CopyRows, InOrderOrByAListBitForBit) {
  SeededRng rng(21);
  for (const int64_t count : {1, 127, 128, 300}) {
    for (const int64_t rows : {0, 1, 5}) {
      std::vector<int32_t> numbers;
      for (int64_t i = 0; i < 5 * (count + 2); ++i) numbers.push_back(i % 7 == 0 ? -1 : static_cast<int32_t>(rng.bits()));
      Buffer<int32_t> from(numbers), list(std::vector<int32_t>{4, 0, 0, 2, 4});
      for (const int32_t* source_rows : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(list.data())}) {
        Buffer<uint32_t> to(rows * (count + 3));
        const CopyRowsParams p{to.data(), count + 3, from.data(), count + 2, rows, count, source_rows};
        run_everywhere<CopyRows>(p, to);
        const auto expected = ref::copy_rows(p);
        for (int64_t i = 0; i < rows * count; ++i)
          ASSERT_EQ(to[i / count * (count + 3) + i % count], expected[static_cast<size_t>(i)]) << rows << " x " << count << " at " << i;
        EXPECT_TRUE(gaps_untouched(to, count + 3, count));
        EXPECT_TRUE(from.unchanged());
      }
    }
  }
}

TEST(RmsNorm, EveryWidthAndStride) {
  SeededRng rng(2);
  for (const auto type : {DType::bf16, DType::f32}) {
    for (const int64_t dim : {1, 7, 255, 256, 257, 613}) {
      for (const int64_t rows : {0, 1, 5}) {
        Buffer<uint8_t> weight(encoded(random_floats(rng, dim), type));
        Buffer<float> x(random_floats(rng, rows * (dim + 3), -4.0f, 4.0f));
        Buffer<float> y(rows * (dim + 1));
        const RmsNormParams p{y.data(), dim + 1, x.data(), dim + 3, weight.data(), type, rows, dim, 1e-5f};
        run_everywhere<RmsNorm>(p, y);
        EXPECT_TRUE(all_close(ref::rms_norm(p), strided(y, rows, dim + 1, dim), kF32)) << rows << " x " << dim;
        EXPECT_TRUE(gaps_untouched(y, dim + 1, dim));
        EXPECT_TRUE(x.unchanged());
      }
    }
  }
}

TEST(RmsNorm, InPlace) {
  SeededRng rng(3);
  Buffer<float> weight(random_floats(rng, 613));
  Buffer<float> x(random_floats(rng, 2 * 613));
  const RmsNormParams p{x.data(), 613, x.data(), 613, weight.data(), DType::f32, 2, 613, 1e-5f};
  const std::vector<double> expected = ref::rms_norm(p);
  run_everywhere<RmsNorm>(p, x);
  EXPECT_TRUE(all_close(expected, strided(x, 2, 613, 613), kF32));
}

TEST(RmsNorm, ARowOfZerosStaysZeroAndANaNStaysInItsRow) {
  Buffer<float> weight(std::vector<float>(64, 2.0f));
  std::vector<float> rows(3 * 64, 0.0f);
  rows[64 + 5] = std::nanf("");
  for (size_t i = 128; i < 192; ++i) rows[i] = 1e17f;  // squares near the end of f32
  Buffer<float> x(rows);
  Buffer<float> y(3 * 64);
  const RmsNormParams p{y.data(), 64, x.data(), 64, weight.data(), DType::f32, 3, 64, 1e-5f};
  run_everywhere<RmsNorm>(p, y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_TRUE(std::isnan(y[64]));
  EXPECT_NEAR(y[128], 2.0f, 1e-5f);
}

TEST(LayerNorm, EveryWidthAndStride) {
  SeededRng rng(4);
  for (const auto type : {DType::bf16, DType::f32}) {
    for (const int64_t dim : {1, 5, 127, 128, 129, 311}) {
      for (const int64_t rows : {0, 1, 4}) {
        Buffer<uint8_t> weight(encoded(random_floats(rng, dim), type)), bias(encoded(random_floats(rng, dim), type));
        Buffer<float> x(random_floats(rng, rows * (dim + 2)));
        Buffer<float> y(rows * (dim + 5));
        const LayerNormParams p{y.data(), dim + 5, x.data(), dim + 2, weight.data(), bias.data(), type, rows, dim, 1e-6f};
        run_everywhere<LayerNorm>(p, y);
        EXPECT_TRUE(all_close(ref::layer_norm(p), strided(y, rows, dim + 5, dim), kF32)) << rows << " x " << dim;
        EXPECT_TRUE(gaps_untouched(y, dim + 5, dim));
      }
    }
  }
}

// The mean of squares minus the square of the mean would lose all digits here.
TEST(LayerNorm, ALargeMeanDoesNotCancelTheVariance) {
  SeededRng rng(5);
  Buffer<float> weight(std::vector<float>(128, 1.0f)), bias(std::vector<float>(128, 0.0f));
  Buffer<float> x(random_floats(rng, 128, 4000.0f, 4001.0f));
  Buffer<float> y(128);
  const LayerNormParams p{y.data(), 128, x.data(), 128, weight.data(), bias.data(), DType::f32, 1, 128, 1e-6f};
  run_everywhere<LayerNorm>(p, y);
  // The mean of 4000 is known to about 2^-12 in f32 whatever is done: 2^-12 of a spread of 1.
  EXPECT_TRUE(all_close(ref::layer_norm(p), strided(y, 1, 128, 128), {3e-4, 1e-6}));
}

TEST(RopeTable, AnglesOfSmallAndLargePositions) {
  for (const int64_t rope_dim : {2, 6, 64}) {
    std::vector<float> frequencies;
    for (int64_t j = 0; j < rope_dim / 2; ++j)
      frequencies.push_back(static_cast<float>(std::pow(8e6, -2.0 * static_cast<double>(j) / static_cast<double>(rope_dim))));
    Buffer<float> inv_freq(frequencies);
    for (const std::vector<int32_t>& list : {std::vector<int32_t>{}, {0}, {0, 1, 4095, 262144, 1048575}}) {
      Buffer<int32_t> positions(list);
      Buffer<float> out(positions.size() * rope_dim);
      const RopeTableParams p{out.data(), positions.data(), inv_freq.data(), positions.size(), rope_dim};
      run_everywhere<RopeTable>(p, out);
      EXPECT_TRUE(all_close(ref::rope_table(p), strided(out, positions.size(), rope_dim, rope_dim), {1e-6, 1e-11, 1.0})) << rope_dim;
    }
  }
}

TEST(Rope, BothPairingsRotateTheirPartOfEachHeadAlone) {
  SeededRng rng(6);
  for (const bool interleave : {true, false}) {
    for (const int64_t rope_dim : {2, 10, 64}) {
      for (const int64_t tokens : {0, 1, 3}) {
        const int64_t heads = 3, offset = 5, head_stride = offset + rope_dim + 2, token_stride = heads * head_stride + 7;
        Buffer<float> table(random_floats(rng, tokens * rope_dim));
        Buffer<float> x(random_floats(rng, tokens * token_stride));
        const RopeParams p{x.data(), token_stride, head_stride, offset, table.data(), tokens, heads, rope_dim, interleave};
        const std::vector<double> expected = ref::rope(p);
        run_everywhere<Rope>(p, x);
        std::vector<double> actual;
        for (int64_t i = 0; i < x.size(); ++i) {
          const int64_t in_token = i % token_stride, in_head = in_token % head_stride - offset;
          if (in_token < heads * head_stride && in_head >= 0 && in_head < rope_dim)
            actual.push_back(x[i]);
          else
            EXPECT_TRUE(x.untouched(i)) << "element " << in_token << " of a token, outside the rotated part";
        }
        EXPECT_TRUE(all_close(expected, actual, kF32)) << interleave << " " << rope_dim;
      }
    }
  }
}

// The rotated part of a query is also a part of its absorbed form, which lies elsewhere.
TEST(Rope, TheRotatedNumbersToASecondPlace) {
  SeededRng rng(8);
  for (const bool interleave : {true, false}) {
    for (const int64_t rope_dim : {2, 10, 64}) {
      for (const int64_t tokens : {0, 1, 3}) {
        const int64_t heads = 5, head_stride = rope_dim + 4, token_stride = heads * head_stride;
        const int64_t copy_head_stride = rope_dim + 9, copy_token_stride = heads * copy_head_stride + 2;
        Buffer<float> table(random_floats(rng, tokens * rope_dim)), x(random_floats(rng, tokens * token_stride));
        Buffer<float> copy(tokens * copy_token_stride);
        const RopeParams p{x.data(), token_stride, head_stride, 4,           table.data(),      tokens,
                           heads,    rope_dim,     interleave,  copy.data(), copy_token_stride, copy_head_stride};
        const std::vector<double> expected = ref::rope(p);
        run_everywhere<Rope>(p, x, copy);
        std::vector<double> actual, copied;
        for (int64_t i = 0; i < x.size(); ++i) {
          if (i % head_stride >= 4) actual.push_back(x[i]);
        }
        for (int64_t i = 0; i < copy.size(); ++i) {
          const int64_t in_token = i % copy_token_stride;
          if (in_token < heads * copy_head_stride && in_token % copy_head_stride < rope_dim)
            copied.push_back(copy[i]);
          else
            EXPECT_TRUE(copy.untouched(i)) << "element " << in_token << " of a token, outside the copy";
        }
        EXPECT_TRUE(all_close(expected, actual, kF32)) << interleave << " " << rope_dim;
        EXPECT_EQ(actual, copied) << interleave << " " << rope_dim;
      }
    }
  }
}

TEST(SwiGlu, EveryWidthAndStrideAndSaturatedGates) {
  SeededRng rng(7);
  for (const int64_t dim : {1, 255, 257, 613}) {
    for (const int64_t rows : {0, 1, 3}) {
      std::vector<float> gates = random_floats(rng, rows * (dim + 4), -8.0f, 8.0f);
      if (rows > 0) gates[0] = -200.0f;
      if (rows > 1) gates[static_cast<size_t>(dim + 4)] = 200.0f;
      Buffer<float> gate(gates), up(random_floats(rng, rows * (dim + 4)));
      Buffer<float> y(rows * (dim + 1));
      const SwiGluParams p{y.data(), dim + 1, gate.data(), up.data(), dim + 4, rows, dim};
      run_everywhere<SwiGlu>(p, y);
      EXPECT_TRUE(all_close(ref::swiglu(p), strided(y, rows, dim + 1, dim), {1e-6, 1e-11, 8.0})) << rows << " x " << dim;
      EXPECT_TRUE(gaps_untouched(y, dim + 1, dim));
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
