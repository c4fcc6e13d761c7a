// The tile kernels on a GPU, all of them: odd shapes against sums in double, and the same bits in every size and company. The tests in
// the emulator (tile_matmul_test.cc, tile_grouped_matmul_test.cc) ask more; here it is the device's own instruction that answers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/ref/grouped_matmul.h"
#include "kernels/ref/matmul.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

// Operands are exact in bf16. The matrix units of a GPU add the products of one instruction with some bits less than f32 has, and cut
// instead of rounding.
constexpr Tolerance kSum{2e-5, 1e-9};

class TilesOnTheGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_under_test == nullptr) GTEST_SKIP() << "needs --device";
  }
};

template <class Params>
void run_tile(DeviceKernel kernel, const Params& p) {
  device_under_test->launch(kernel, p);
  const auto result = device_under_test->finish();
  ASSERT_TRUE(result.has_value()) << result.error().text();
}

template <class Params>
void odd_shapes(DeviceKernel kernel, WeightFormat format) {
  SeededRng rng(1);
  struct Shape {
    int64_t m, n, k;
  };
  for (const Shape s :
       {Shape{0, 5, 64}, {1, 1, 32}, {1, 67, 96}, {3, 64, 160}, {17, 130, 320}, {65, 33, 224}, {129, 257, 1056}, {2, 3, 1}, {2, 65, 131}}) {
    if (format == WeightFormat::mxfp4 && s.k % 32 != 0) continue;
    for (const int64_t gap : {0, 3}) {
      const auto w = random_weight(rng, format, s.n, s.k, 100);
      Buffer<float> x(input_rows(rng, s.m, s.k, s.k + gap)), y(s.m * (s.n + 2));
      const Params p{{y.data(), s.n + 2, x.data(), s.k + gap, w->view, s.m, false}};
      run_tile(kernel, p);
      EXPECT_TRUE(all_close(ref::matmul(p), strided(y, s.m, s.n + 2, s.n), kSum)) << s.m << " " << s.n << " " << s.k;
      EXPECT_TRUE(gaps_untouched(y, s.n + 2, s.n));
      EXPECT_TRUE(y.canaries_alive() && w->data.unchanged() && w->scale.unchanged() && x.unchanged());
    }
  }
}

// visit(kernel, weight format, a type_identity of its Params on this device) for every tile kernel made from one template.
#define INGOT_VISIT_TILE(K, Format, Size, size)                                                                    \
  {                                                                                                                \
    SCOPED_TRACE(#K " " #Format " " #Size);                                                                        \
    if (device_under_test->info().lanes == 32)                                                                     \
      visit(kDevice##K##Format##Size, Tile##Format::kFormat, std::type_identity<K##Params<TileSize::size, 32>>{}); \
    else                                                                                                           \
      visit(kDevice##K##Format##Size, Tile##Format::kFormat, std::type_identity<K##Params<TileSize::size, 64>>{}); \
  }
template <class Visit>
void each_matmul(Visit visit) {
  INGOT_TILES_OF_FORMATS(INGOT_VISIT_TILE, TileMatmul)
}
template <class Visit>
void each_head_matmul(Visit visit) {
  INGOT_TILES_OF_FORMATS(INGOT_VISIT_TILE, TileHeadMatmul)
}
template <class Visit>
void each_grouped_matmul(Visit visit) {
  INGOT_TILES_OF_FORMATS(INGOT_VISIT_TILE, TileGroupedMatmul)
}
template <class Visit>
void each_gated_matmul(Visit visit){INGOT_TILES_OF_FORMATS(INGOT_VISIT_TILE, TileGatedMatmul)}

TEST_F(TilesOnTheGpu, MatmulOfOddShapes) {
  each_matmul(
      []<class Params>(DeviceKernel kernel, WeightFormat format, std::type_identity<Params>) { odd_shapes<Params>(kernel, format); });
}

TEST_F(TilesOnTheGpu, EveryHeadIsTheProductByItsOwnRows) {
  SeededRng rng(5);
  const int64_t heads = 3, rows_per_head = 75, first_row = 33, n = 42, k = 96, rows = 19;
  each_head_matmul([&]<class Params>(DeviceKernel kernel, WeightFormat format, std::type_identity<Params>) {
    const auto w = random_weight(rng, format, heads * rows_per_head, k);
    Buffer<float> x(input_rows(rng, rows * heads, k, k)), y(rows * heads * (n + 2));
    const HeadMatmulParams p{y.data(), heads * (n + 2), n + 2,         x.data(),  heads * k, k,    w->view,
                             rows,     heads,           rows_per_head, first_row, n,         false};
    run_tile(kernel, Params{p});
    EXPECT_TRUE(gaps_untouched(y, n + 2, n));
    EXPECT_TRUE(y.canaries_alive());
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> own;
      for (int64_t m = 0; m < rows; ++m) {
        const float* row = y.data() + (m * heads + h) * (n + 2);
        own.insert(own.end(), row, row + n);
      }
      EXPECT_TRUE(all_close(ref::matmul(p.product(h)), own, kSum)) << "head " << h;
    }
  });
}

// The first `rows` rows of x w^T, as bytes.
template <class Params>
std::vector<uint8_t> product_of(DeviceKernel kernel, const Buffer<float>& x, const WeightView& w, int64_t rows) {
  Buffer<float> y(rows * w.rows);
  run_tile(kernel, Params{{y.data(), w.rows, x.data(), w.cols, w, rows, false}});
  return all_bytes(y);
}

// Batch invariance: the tile size, the number of rows and a row's place among them change no bit.
TEST_F(TilesOnTheGpu, ARowHasItsBitsInEverySizeAndCompany) {
  for (const auto format : {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
    SeededRng rng(3);
    const int64_t n = 37, k = 416, rows = 130;
    const auto w = random_weight(rng, format, n, k, 100);
    const Buffer<float> x(input_rows(rng, rows, k, k));
    std::vector<uint8_t> all;
    each_matmul([&]<class Params>(DeviceKernel kernel, WeightFormat of, std::type_identity<Params>) {
      if (of != format) return;
      if (all.empty()) all = product_of<Params>(kernel, x, w->view, rows);
      for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 65, 127, 128, 129, 130}) {
        const std::vector<uint8_t> expected(all.begin(), all.begin() + m * n * 4);
        EXPECT_EQ(product_of<Params>(kernel, x, w->view, m), expected) << m;
      }
    });
  }
}

// Five experts over 16 tokens with 3 slots each: 0 and 2 got nothing, 1 three rows, 3 more than a small tile, 4 one.
struct Experts {
  static constexpr int64_t kTokens = 16, kSlots = 3, kRows = kTokens * kSlots, kExperts = 5, kN = 70, kK = 160;
  std::vector<std::unique_ptr<OwnedWeight>> owned;
  Buffer<WeightView> up, gate;
  Buffer<int32_t> offsets, order;
  Buffer<float> x, y;
  GroupedMatmulParams p;

  Experts(Rng& rng, WeightFormat format)
      : up(weights(rng, format)),
        gate(weights(rng, format)),
        offsets(std::vector<int32_t>{0, 0, 3, 3, 47, 48}),
        order(some_order()),
        x(input_rows(rng, kTokens, kK, kK + 1)),
        y(kRows * (kN + 3)),
        p{y.data(), kN + 3, x.data(), kK + 1, order.data(), kSlots, offsets.data(), up.data(), kRows, kExperts, kN} {}

  std::vector<double> actual() const { return strided(y, kRows, kN + 3, kN); }

 private:
  std::vector<WeightView> weights(Rng& rng, WeightFormat format) {
    std::vector<WeightView> views;
    for (int64_t e = 0; e < kExperts; ++e) views.push_back(owned.emplace_back(random_weight(rng, format, kN, kK))->view);
    return views;
  }
  static std::vector<int32_t> some_order() {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < kRows; ++i) out.push_back(static_cast<int32_t>(i * 7 % kRows));
    return out;
  }
};

TEST_F(TilesOnTheGpu, GroupedMatmulWithUnchosenAndCrowdedExperts) {
  each_grouped_matmul([]<class Params>(DeviceKernel kernel, WeightFormat format, std::type_identity<Params>) {
    SeededRng rng(7);
    Experts experts(rng, format);
    run_tile(kernel, Params{experts.p});
    EXPECT_TRUE(all_close(ref::grouped_matmul(experts.p), experts.actual(), kSum));
    EXPECT_TRUE(gaps_untouched(experts.y, Experts::kN + 3, Experts::kN));
    EXPECT_TRUE(experts.y.canaries_alive());
  });
}

TEST_F(TilesOnTheGpu, GatedMatmulWithUnchosenAndCrowdedExperts) {
  each_gated_matmul([]<class Params>(DeviceKernel kernel, WeightFormat format, std::type_identity<Params>) {
    SeededRng rng(7);
    Experts experts(rng, format);
    run_tile(kernel, Params{{experts.p}, experts.gate.data()});
    GroupedMatmulParams of_gate = experts.p;
    of_gate.weights = experts.gate.data();
    const std::vector<double> gates = ref::grouped_matmul(of_gate);
    std::vector<double> expected = ref::grouped_matmul(experts.p);
    for (size_t i = 0; i < gates.size(); ++i) expected[i] *= gates[i] / (1.0 + std::exp(-gates[i]));
    // The gate's error is stretched by the slope of silu, at most 1.1, and by up.
    EXPECT_TRUE(all_close(expected, experts.actual(), {4e-5, 1e-9}));
    EXPECT_TRUE(gaps_untouched(experts.y, Experts::kN + 3, Experts::kN));
    EXPECT_TRUE(experts.y.canaries_alive());
  });
}

}  // namespace
}  // namespace ingot::kernels
