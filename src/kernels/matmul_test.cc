// The products: plain, transposed and grouped by expert, in every weight format.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/grouped_matmul.kernel.h"
#include "kernels/head_matmul.kernel.h"
#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/ref/grouped_matmul.h"
#include "kernels/ref/matmul.h"
#include "kernels/ref/matmul_transposed.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;
using tensor::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4};

// Decoding is exact in bf16, f32 and MXFP4 and one rounding in FP8; what is left is the f32 sum, K / 64 + 6 roundings deep, of terms
// whose magnitudes add up to a few times the result.
constexpr Tolerance kSum{4e-6, 1e-10};

TEST(Matmul, EveryFormatAndOddShapes) {
  SeededRng rng(1);
  struct Shape {
    int64_t m, n, k;
  };
  for (const auto format : kFormats) {
    for (const Shape s : {Shape{0, 5, 64}, {1, 1, 32}, {1, 67, 96}, {3, 64, 160}, {5, 130, 320}, {2, 3, 1}, {2, 65, 131}}) {
      if (format == WeightFormat::mxfp4 && s.k % 32 != 0) continue;
      const auto w = random_weight(rng, format, s.n, s.k, 100);  // rows 100.. of an FP8 tensor: the scale row changes at 28
      Buffer<float> x(random_floats(rng, s.m * (s.k + 3)));
      Buffer<float> y(s.m * (s.n + 2));
      const MatmulParams p{y.data(), s.n + 2, x.data(), s.k + 3, w->view, s.m, false};
      run_everywhere<Matmul>(p, y);
      EXPECT_TRUE(all_close(ref::matmul(p), strided(y, s.m, s.n + 2, s.n), kSum))
          << static_cast<int>(format) << ": " << s.m << " " << s.n << " " << s.k;
      EXPECT_TRUE(gaps_untouched(y, s.n + 2, s.n));
      EXPECT_TRUE(w->data.unchanged() && w->scale.unchanged() && x.unchanged());
    }
  }
}

TEST(Matmul, Accumulates) {
  SeededRng rng(2);
  const auto w = random_weight(rng, WeightFormat::bf16, 70, 96);
  Buffer<float> x(random_floats(rng, 2 * 96)), y(random_floats(rng, 2 * 70, 5.0f, 9.0f));
  const MatmulParams p{y.data(), 70, x.data(), 96, w->view, 2, true};
  const std::vector<double> expected = ref::matmul(p);
  run_everywhere<Matmul>(p, y);
  EXPECT_TRUE(all_close(expected, strided(y, 2, 70, 70), kSum));
}

// Report O3: non-finite numbers for M <= 4. Also batch invariance: a row's bits do not depend on its neighbours.
TEST(Matmul, EveryRowCountFrom1To9GivesTheBitsOfARowAlone) {
  SeededRng rng(3);
  for (const auto format : kFormats) {
    const auto w = random_weight(rng, format, 37, 160);
    Buffer<float> x(random_floats(rng, 9 * 160));
    for (int64_t rows = 1; rows <= 9; ++rows) {
      Buffer<float> y(rows * 37), alone(37);
      const MatmulParams p{y.data(), 37, x.data(), 160, w->view, rows, false};
      run_everywhere<Matmul>(p, y);
      EXPECT_TRUE(all_close(ref::matmul(p), strided(y, rows, 37, 37), kSum)) << rows;
      const MatmulParams last{alone.data(), 37, x.data() + (rows - 1) * 160, 160, w->view, 1, false};
      run_once<Matmul>(last);
      EXPECT_EQ(std::memcmp(alone.data(), y.data() + (rows - 1) * 37, 37 * 4), 0) << "row " << rows - 1 << " of " << rows;
    }
  }
}

TEST(Matmul, AWeightWhoseScalesAreZeroGivesZeros) {
  SeededRng rng(4);
  Buffer<uint8_t> data(std::vector<uint8_t>(5 * 64, 0x7e)), scale(std::vector<uint8_t>(4, 0));
  Buffer<float> x(random_floats(rng, 64)), y(5);
  const MatmulParams p{y.data(), 5, x.data(), 64, {data.data(), scale.data(), 5, 64, 0, WeightFormat::fp8_block}, 1, false};
  run_everywhere<Matmul>(p, y);
  for (int64_t n = 0; n < 5; ++n) EXPECT_EQ(y[n], 0.0f);
}

// Report O1: scale byte 0 is 2^-127 and not 0: 2^120 times it is 2^-7.
TEST(Matmul, ScaleByteZeroIsTheSmallestPowerAndNotZero) {
  Buffer<uint8_t> data(std::vector<uint8_t>(16, 0x22)), scale(std::vector<uint8_t>(1, 0));  // code 2 is 1.0
  std::vector<float> values(32, 0.0f);
  values[3] = 0x1p120f;
  Buffer<float> x(values), y(1);
  const MatmulParams p{y.data(), 1, x.data(), 32, {data.data(), scale.data(), 1, 32, 0, WeightFormat::mxfp4}, 1, false};
  run_everywhere<Matmul>(p, y);
  EXPECT_EQ(y[0], 0x1p-7f);
}

TEST(Matmul, ARowSliceOfAWeightIsThoseRows) {
  SeededRng rng(5);
  for (const auto format : kFormats) {
    const auto w = random_weight(rng, format, 300, 64);
    Buffer<float> x(random_floats(rng, 64)), all(300), part(50);
    run_once<Matmul>({all.data(), 300, x.data(), 64, w->view, 1, false});
    const MatmulParams p{part.data(), 50, x.data(), 64, w->view.row_slice(201, 50), 1, false};
    run_everywhere<Matmul>(p, part);
    EXPECT_EQ(std::memcmp(part.data(), all.data() + 201, 50 * 4), 0) << static_cast<int>(format);
  }
}

TEST(MatmulTransposed, EveryFormatAndOddShapes) {
  SeededRng rng(6);
  struct Shape {
    int64_t m, n, k;
  };
  for (const auto format : kFormats) {
    for (const Shape s : {Shape{0, 5, 64}, {1, 1, 32}, {1, 67, 96}, {3, 192, 64}, {4, 130, 160}, {2, 3, 1}, {2, 65, 131}}) {
      if (format == WeightFormat::mxfp4 && s.k % 32 != 0) continue;
      const auto w = random_weight(rng, format, s.n, s.k, 100);
      Buffer<float> x(random_floats(rng, s.m * (s.n + 3)));
      Buffer<float> y(s.m * (s.k + 2));
      const MatmulTransposedParams p{y.data(), s.k + 2, x.data(), s.n + 3, w->view, s.m};
      run_everywhere<MatmulTransposed>(p, y);
      // One sum in rising order, n roundings deep.
      EXPECT_TRUE(all_close(ref::matmul_transposed(p), strided(y, s.m, s.k + 2, s.k), {2e-5, 1e-10}))
          << static_cast<int>(format) << ": " << s.m << " " << s.n << " " << s.k;
      EXPECT_TRUE(gaps_untouched(y, s.k + 2, s.k));
      for (int64_t m = 0; m < s.m; ++m) {
        Buffer<float> alone(s.k);
        run_once<MatmulTransposed>({alone.data(), s.k, x.data() + m * (s.n + 3), s.n + 3, w->view, 1});
        EXPECT_EQ(std::memcmp(alone.data(), y.data() + m * (s.k + 2), static_cast<size_t>(s.k) * 4), 0) << "row " << m;
      }
    }
  }
}

// Each head has the bits of a product by its own rows alone, and what lies between its numbers is left alone.
TEST(HeadMatmul, EveryHeadIsTheProductByItsOwnRows) {
  SeededRng rng(10);
  const int64_t heads = 3, rows_per_head = 75, k = 96, rows = 4;
  for (const auto format : kFormats) {
    const auto w = random_weight(rng, format, heads * rows_per_head, k);
    for (const bool transposed : {false, true}) {
      const int64_t first_row = transposed ? 0 : 33, n = transposed ? 33 : 42, in = transposed ? n : k, out = transposed ? k : n;
      Buffer<float> x(random_floats(rng, rows * heads * (in + 1))), y(rows * heads * (out + 2));
      const HeadMatmulParams p{y.data(), heads * (out + 2), out + 2,   x.data(), heads * (in + 1), in + 1, w->view, rows,
                               heads,    rows_per_head,     first_row, n,        transposed};
      run_everywhere<HeadMatmul>(p, y);
      EXPECT_TRUE(gaps_untouched(y, out + 2, out));
      for (int64_t h = 0; h < heads; ++h) {
        Buffer<float> alone(rows * out);
        const tensor::WeightView own = w->view.row_slice(h * rows_per_head + first_row, n);
        if (transposed)
          run_once<MatmulTransposed>({alone.data(), out, x.data() + h * (in + 1), heads * (in + 1), own, rows});
        else
          run_once<Matmul>({alone.data(), out, x.data() + h * (in + 1), heads * (in + 1), own, rows, false});
        for (int64_t m = 0; m < rows; ++m) {
          EXPECT_EQ(std::memcmp(alone.data() + m * out, y.data() + (m * heads + h) * (out + 2), static_cast<size_t>(out) * 4), 0)
              << static_cast<int>(format) << (transposed ? " transposed" : "") << ", head " << h << ", row " << m;
        }
      }
    }
  }
}

struct Experts {
  std::vector<std::unique_ptr<OwnedWeight>> owned;
  Buffer<tensor::WeightView> views;
  Experts(Rng& rng, WeightFormat format, int64_t count, int64_t n, int64_t k) : views(make(owned, rng, format, count, n, k)) {}

 private:
  static std::vector<tensor::WeightView> make(std::vector<std::unique_ptr<OwnedWeight>>& owned, Rng& rng, WeightFormat format,
                                              int64_t count, int64_t n, int64_t k) {
    std::vector<tensor::WeightView> views;
    for (int64_t e = 0; e < count; ++e) views.push_back(owned.emplace_back(random_weight(rng, format, n, k))->view);
    return views;
  }
};

TEST(GroupedMatmul, EveryFormatWithUnchosenAndCrowdedExperts) {
  SeededRng rng(7);
  const int64_t n = 70, k = 96;
  for (const auto format : kFormats) {
    const Experts experts(rng, format, 5, n, k);
    Buffer<int32_t> offsets(std::vector<int32_t>{0, 0, 3, 3, 8, 9});
    Buffer<int32_t> order(std::vector<int32_t>{2, 5, 8, 0, 1, 3, 6, 7, 4});  // 3 tokens with 3 slots each
    Buffer<float> x(random_floats(rng, 3 * (k + 1)));
    Buffer<float> y(9 * (n + 3));
    const GroupedMatmulParams p{y.data(), n + 3, x.data(), k + 1, order.data(), 3, offsets.data(), experts.views.data(), 9, 5, n};
    run_everywhere<GroupedMatmul>(p, y);
    EXPECT_TRUE(all_close(ref::grouped_matmul(p), strided(y, 9, n + 3, n), kSum)) << static_cast<int>(format);
    EXPECT_TRUE(gaps_untouched(y, n + 3, n));

    Buffer<float> alone(n);
    run_once<Matmul>({alone.data(), n, x.data() + (k + 1), k + 1, experts.views[3], 1, false});
    EXPECT_EQ(std::memcmp(alone.data(), y.data() + 5 * (n + 3), static_cast<size_t>(n) * 4), 0) << "row 5 is token 1 by expert 3";
  }
}

TEST(GroupedMatmul, WithoutAnOrderRowsAreTheirOwnSource) {
  SeededRng rng(8);
  const Experts experts(rng, WeightFormat::bf16, 3, 33, 64);
  Buffer<int32_t> offsets(std::vector<int32_t>{0, 1, 1, 4});
  Buffer<float> x(random_floats(rng, 4 * 64)), y(4 * 33);
  const GroupedMatmulParams p{y.data(), 33, x.data(), 64, nullptr, 1, offsets.data(), experts.views.data(), 4, 3, 33};
  run_everywhere<GroupedMatmul>(p, y);
  EXPECT_TRUE(all_close(ref::grouped_matmul(p), strided(y, 4, 33, 33), kSum));
}

TEST(GroupedMatmul, AnEmptyBatchTouchesNothing) {
  SeededRng rng(9);
  const Experts experts(rng, WeightFormat::mxfp4, 2, 40, 32);
  Buffer<int32_t> offsets(std::vector<int32_t>{0, 0, 0});
  Buffer<float> y(0);
  run_everywhere<GroupedMatmul>({y.data(), 40, nullptr, 32, nullptr, 1, offsets.data(), experts.views.data(), 0, 2, 40}, y);
}

}  // namespace
}  // namespace ingot::kernels
