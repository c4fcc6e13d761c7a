// The experts' products on matrix instructions, in the emulator, plain and gated.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/grouped_matmul.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

constexpr Tolerance kSum{4e-6, 1e-10};  // as in tile_matmul_test.cc

struct Experts {
  std::vector<std::unique_ptr<OwnedWeight>> owned;
  std::vector<WeightView> views;
  Experts(Rng& rng, WeightFormat format, int64_t count, int64_t n, int64_t k) {
    for (int64_t e = 0; e < count; ++e) views.push_back(owned.emplace_back(random_weight(rng, format, n, k))->view);
  }
};

std::vector<float> bf16_rows(Rng& rng, int64_t rows, int64_t k, int64_t stride) {
  std::vector<float> x(static_cast<size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(m * stride + i)] = gpu::bf16_value(gpu::to_bf16(rng.uniform_float(-1.0f, 1.0f)));
  }
  return x;
}

template <class K>
void emulate(const typename K::Params& p, Buffer<float>& y) {
  constexpr int kLanes = K::Product::Instruction::lanes;
  y.restore();
  const auto result = gpu::emu::launch<K, kLanes>(p);
  ASSERT_TRUE(result.has_value()) << result.error().text();
  expect_alive(y, "the first schedule");
  emulate_all<K, kLanes>(p, all_bytes(y), y);
}

// 16 tokens with 3 slots each. Expert 0 and 2 got nothing, expert 1 three rows, expert 3 more than a small tile, expert 4 one.
constexpr int64_t kTokens = 16, kSlots = 3, kRows = kTokens * kSlots, kExperts = 5;
std::vector<int32_t> some_order() {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < kRows; ++i) order.push_back(static_cast<int32_t>(i * 7 % kRows));
  return order;
}
const std::vector<int32_t> kOffsets = {0, 0, 3, 3, 47, 48};

template <class I, TileSize Size, class Weight>
void every_expert() {
  SeededRng rng(7);
  const int64_t n = 70, k = 160;
  const Experts up(rng, Weight::kFormat, kExperts, n, k), gate(rng, Weight::kFormat, kExperts, n, k);
  Buffer<int32_t> offsets(kOffsets), order(some_order());
  Buffer<float> x(bf16_rows(rng, kTokens, k, k + 1));
  Buffer<float> y(kRows * (n + 3)), gated(kRows * (n + 3));
  const GroupedMatmulParams p{y.data(), n + 3, x.data(), k + 1, order.data(), kSlots, offsets.data(), up.views.data(), kRows, kExperts, n};
  emulate<TileGroupedMatmul<I, Size, Weight>>({p}, y);
  const std::vector<double> expected = ref::grouped_matmul(p);
  EXPECT_TRUE(all_close(expected, strided(y, kRows, n + 3, n), kSum));
  EXPECT_TRUE(gaps_untouched(y, n + 3, n));

  // An element has the bits of the dense kernel.
  Buffer<float> alone(n);
  const int64_t row = 5, token = order[row] / kSlots;
  using Dense = TileMatmul<I, TileSize::small, Weight>;
  ASSERT_TRUE((gpu::emu::launch<Dense, I::lanes>({{alone.data(), n, x.data() + token * (k + 1), k + 1, up.views[3], 1, false}})));
  EXPECT_EQ(std::memcmp(alone.data(), y.data() + row * (n + 3), static_cast<size_t>(n) * 4), 0) << "row 5 is of expert 3";

  GroupedMatmulParams q = p;
  q.y = gated.data();
  emulate<TileGatedMatmul<I, Size, Weight>>({{q}, gate.views.data()}, gated);
  GroupedMatmulParams of_gate = p;
  of_gate.weights = gate.views.data();
  const std::vector<double> gates = ref::grouped_matmul(of_gate);
  std::vector<double> product;
  for (size_t i = 0; i < gates.size(); ++i) product.push_back(gates[i] / (1.0 + std::exp(-gates[i])) * expected[i]);
  // The f32 error of the gate is stretched by the slope of silu, at most 1.1, and by up.
  EXPECT_TRUE(all_close(product, strided(gated, kRows, n + 3, n), {1e-5, 1e-10}));
  EXPECT_TRUE(gaps_untouched(gated, n + 3, n));
}

TEST(TileGroupedMatmul, Bf16WithUnchosenAndCrowdedExperts) {
  every_expert<gpu::MmaSyncBf16, TileSize::small, TileBf16>();
  every_expert<gpu::MmaSyncBf16, TileSize::medium, TileBf16>();
  every_expert<gpu::MfmaBf16K16, TileSize::small, TileBf16>();
}
TEST(TileGroupedMatmul, Fp8WithUnchosenAndCrowdedExperts) {
  every_expert<gpu::MmaSyncBf16, TileSize::small, TileFp8>();
  every_expert<gpu::MfmaBf16K32, TileSize::medium, TileFp8>();
  every_expert<gpu::MfmaBf16K16, TileSize::small, TileFp8>();
}
TEST(TileGroupedMatmul, Mxfp4WithUnchosenAndCrowdedExperts) {
  every_expert<gpu::MmaSyncBf16, TileSize::small, TileMxfp4>();
  every_expert<gpu::MmaSyncBf16, TileSize::large, TileMxfp4>();
  every_expert<gpu::MfmaBf16K32, TileSize::small, TileMxfp4>();
  every_expert<gpu::MfmaBf16K16, TileSize::large, TileMxfp4>();
}

TEST(TileGroupedMatmul, WithoutAnOrderRowsAreTheirOwnSource) {
  SeededRng rng(8);
  const Experts experts(rng, WeightFormat::bf16, 3, 33, 64);
  Buffer<int32_t> offsets(std::vector<int32_t>{0, 1, 1, 4});
  Buffer<float> x(bf16_rows(rng, 4, 64, 64)), y(4 * 33);
  using K = TileGroupedMatmul<gpu::MfmaBf16K16, TileSize::small, TileBf16>;
  const K::Params p{{y.data(), 33, x.data(), 64, nullptr, 1, offsets.data(), experts.views.data(), 4, 3, 33}};
  emulate<K>(p, y);
  EXPECT_TRUE(all_close(ref::grouped_matmul(p), strided(y, 4, 33, 33), kSum));
}

TEST(TileGroupedMatmul, AnEmptyBatchTouchesNothing) {
  SeededRng rng(9);
  const Experts experts(rng, WeightFormat::mxfp4, 2, 40, 32);
  Buffer<int32_t> offsets(std::vector<int32_t>{0, 0, 0});
  Buffer<float> y(0);
  using K = TileGroupedMatmul<gpu::MmaSyncBf16, TileSize::small, TileMxfp4>;
  emulate<K>({{y.data(), 40, nullptr, 32, nullptr, 1, offsets.data(), experts.views.data(), 0, 2, 40}}, y);
}

}  // namespace
}  // namespace ingot::kernels
