// The dense product on matrix instructions, in the emulator: with NVIDIA's and both of AMD's bf16 instructions, in every tile size and
// weight format. All orders of threads must give the same bits; the reference is in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/matmul.h"
#include "kernels/tile_matmul.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

// Operands are exact in bf16; what is left are the roundings of the f32 sum, one an instruction (and one an FP8 block), of terms whose
// magnitudes add up to a few times the result.
constexpr Tolerance kSum{4e-6, 1e-10};

template <class I, TileSize Size, class Weight>
struct Case {
  using Instruction = I;
  static constexpr TileSize kSize = Size;
  using Format = Weight;
  using Kernel = TileMatmul<I, Size, Weight>;
};

template <class I>
using CasesOf =
    ::testing::Types<Case<I, TileSize::small, TileBf16>, Case<I, TileSize::small, TileFp8>, Case<I, TileSize::small, TileMxfp4>,
                     Case<I, TileSize::medium, TileBf16>, Case<I, TileSize::medium, TileFp8>, Case<I, TileSize::medium, TileMxfp4>,
                     Case<I, TileSize::large, TileBf16>, Case<I, TileSize::large, TileFp8>, Case<I, TileSize::large, TileMxfp4>>;

// y by K under every schedule, which must agree.
template <class K, int Lanes>
void emulate(const typename K::Params& p, Buffer<float>& y) {
  y.restore();
  const auto result = gpu::emu::launch<K, Lanes>(p);
  ASSERT_TRUE(result.has_value()) << result.error().text();
  expect_alive(y, "the first schedule");
  emulate_all<K, Lanes>(p, all_bytes(y), y);
}

template <class K>
void launch_once(const typename K::Params& p) {
  const auto result = gpu::emu::launch<K, K::Product::Instruction::lanes>(p);
  ASSERT_TRUE(result.has_value()) << result.error().text();
}

template <class C>
class TileMatmulTest : public ::testing::Test {};
template <class C>
class TileMatmulAmd942Test : public TileMatmulTest<C> {};
template <class C>
class TileMatmulAmd950Test : public TileMatmulTest<C> {};

template <class C>
void odd_shapes() {
  using K = typename C::Kernel;
  SeededRng rng(1);
  struct Shape {
    int64_t m, n, k, gap;  // gap: between rows of x; with some they are aligned for vector loads, with others not
  };
  for (const Shape s : {Shape{0, 5, 64, 0},
                        {1, 1, 32, 0},
                        {1, 67, 96, 4},
                        {3, 64, 160, 1},
                        {17, 130, 320, 0},
                        {65, 33, 224, 3},
                        {2, 3, 1, 0},
                        {2, 65, 131, 1}}) {
    if (C::Format::kFormat == WeightFormat::mxfp4 && s.k % 32 != 0) continue;
    const auto w = random_weight(rng, C::Format::kFormat, s.n, s.k, 100);  // the scale row of FP8 changes at 28
    Buffer<float> x(input_rows(rng, s.m, s.k, s.k + s.gap));
    Buffer<float> y(s.m * (s.n + 2));
    const typename K::Params p{{y.data(), s.n + 2, x.data(), s.k + s.gap, w->view, s.m, false}};
    emulate<K, C::Instruction::lanes>(p, y);
    EXPECT_TRUE(all_close(ref::matmul(p), strided(y, s.m, s.n + 2, s.n), kSum)) << s.m << " " << s.n << " " << s.k;
    EXPECT_TRUE(gaps_untouched(y, s.n + 2, s.n));
    EXPECT_TRUE(w->data.unchanged() && w->scale.unchanged() && x.unchanged());
  }
}

TYPED_TEST_SUITE(TileMatmulTest, CasesOf<gpu::MmaSyncBf16>);
TYPED_TEST(TileMatmulTest, OddShapes) { odd_shapes<TypeParam>(); }
TYPED_TEST_SUITE(TileMatmulAmd942Test, CasesOf<gpu::MfmaBf16K16>);
TYPED_TEST(TileMatmulAmd942Test, OddShapes) { odd_shapes<TypeParam>(); }
TYPED_TEST_SUITE(TileMatmulAmd950Test, CasesOf<gpu::MfmaBf16K32>);
TYPED_TEST(TileMatmulAmd950Test, OddShapes) { odd_shapes<TypeParam>(); }

// One size's results for the first `rows` rows, as bytes.
template <class I, TileSize Size, class Weight>
std::vector<uint8_t> rows_in_size(const Buffer<float>& x, const WeightView& w, int64_t rows) {
  Buffer<float> y(rows * w.rows);
  launch_once<TileMatmul<I, Size, Weight>>({{y.data(), w.rows, x.data(), w.cols, w, rows, false}});
  return all_bytes(y);
}

template <class I, class Weight>
void same_bits_everywhere() {
  SeededRng rng(3);
  const int64_t n = 37, k = 416, rows = 130;
  const auto w = random_weight(rng, Weight::kFormat, n, k, 100);
  const Buffer<float> x(input_rows(rng, rows, k, k));
  const std::vector<uint8_t> all = rows_in_size<I, TileSize::large, Weight>(x, w->view, rows);
  for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 65, 127, 128, 129}) {
    const std::vector<uint8_t> expected(all.begin(), all.begin() + m * n * 4);
    EXPECT_EQ((rows_in_size<I, TileSize::large, Weight>(x, w->view, m)), expected) << m;
    EXPECT_EQ((rows_in_size<I, TileSize::medium, Weight>(x, w->view, m)), expected) << m;
    EXPECT_EQ((rows_in_size<I, TileSize::small, Weight>(x, w->view, m)), expected) << m;
  }
  // The same row at every place of a tile.
  std::vector<float> copies;
  for (int64_t m = 0; m < 70; ++m) copies.insert(copies.end(), x.data() + 3 * k, x.data() + 4 * k);
  const std::vector<uint8_t> same = rows_in_size<I, TileSize::medium, Weight>(Buffer<float>(copies), w->view, 70);
  for (int64_t m = 0; m < 70; ++m) EXPECT_EQ(std::memcmp(&same[static_cast<size_t>(m * n * 4)], &all[3 * n * 4], n * 4), 0) << m;
}

// Batch invariance: the tile size, the number of rows and a row's place among them change no bit.
TEST(TileMatmul, ARowHasItsBitsInEverySizeAndCompany) {
  same_bits_everywhere<gpu::MmaSyncBf16, TileBf16>();
  same_bits_everywhere<gpu::MmaSyncBf16, TileFp8>();
  same_bits_everywhere<gpu::MmaSyncBf16, TileMxfp4>();
  same_bits_everywhere<gpu::MfmaBf16K16, TileFp8>();
  same_bits_everywhere<gpu::MfmaBf16K32, TileMxfp4>();
}

TEST(TileMatmul, Accumulates) {
  SeededRng rng(2);
  const auto w = random_weight(rng, WeightFormat::bf16, 70, 96);
  Buffer<float> x(input_rows(rng, 2, 96, 96)), y(random_floats(rng, 2 * 70, 5.0f, 9.0f));
  using K = TileMatmul<gpu::MmaSyncBf16, TileSize::small, TileBf16>;
  const K::Params p{{y.data(), 70, x.data(), 96, w->view, 2, true}};
  const std::vector<double> expected = ref::matmul(p);
  emulate<K, 32>(p, y);
  EXPECT_TRUE(all_close(expected, strided(y, 2, 70, 70), kSum));
}

// x that bf16 cannot hold is rounded to the nearest, ties to even, and not cut.
TEST(TileMatmul, RoundsItsInput) {
  SeededRng rng(4);
  const int64_t n = 20, k = 64;
  const auto w = random_weight(rng, WeightFormat::bf16, n, k);
  std::vector<float> exact = random_floats(rng, k), rounded;
  exact[0] = gpu::bits_float(0x3f808000u);  // halfway: down to 0x3f80
  exact[1] = gpu::bits_float(0x3f818000u);  // halfway: up to 0x3f82
  for (const float v : exact) rounded.push_back(gpu::bf16_value(gpu::to_bf16(v)));
  EXPECT_EQ((rows_in_size<gpu::MfmaBf16K16, TileSize::small, TileBf16>(Buffer<float>(exact), w->view, 1)),
            (rows_in_size<gpu::MfmaBf16K16, TileSize::small, TileBf16>(Buffer<float>(rounded), w->view, 1)));
}

TEST(TileMatmul, ARowSliceAndAnUnalignedWeightAreThoseRows) {
  SeededRng rng(5);
  const int64_t k = 288;
  Buffer<float> x(input_rows(rng, 3, k, k));
  const auto check = [&]<class Weight>(Weight*) {
    using K = TileMatmul<gpu::MmaSyncBf16, TileSize::small, Weight>;
    const auto w = random_weight(rng, Weight::kFormat, 300, k);
    Buffer<float> all(3 * 300), part(3 * 50);
    launch_once<K>({{all.data(), 300, x.data(), k, w->view, 3, false}});
    const WeightView slice = w->view.row_slice(201, 50);
    const auto expect_part = [&] {
      for (int64_t m = 0; m < 3; ++m) EXPECT_EQ(std::memcmp(part.data() + m * 50, all.data() + m * 300 + 201, 50 * 4), 0) << m;
    };
    emulate<K, 32>({{part.data(), 50, x.data(), k, slice, 3, false}}, part);
    expect_part();
    // The same bytes at an address that vector loads must not touch.
    const int64_t shift = Weight::kFormat == WeightFormat::bf16 ? 2 : 1;
    std::vector<uint8_t> bytes(static_cast<size_t>(shift), 0xff);
    bytes.insert(bytes.end(), slice.data, slice.data + slice.rows * slice.row_bytes());
    Buffer<uint8_t> moved(bytes);
    WeightView unaligned = slice;
    unaligned.data = moved.data() + shift;
    emulate<K, 32>({{part.data(), 50, x.data(), k, unaligned, 3, false}}, part);
    expect_part();
  };
  check(static_cast<TileBf16*>(nullptr));
  check(static_cast<TileFp8*>(nullptr));
  check(static_cast<TileMxfp4*>(nullptr));
}

// Report O3: a row that is not finite must not spoil its neighbours in the tile.
TEST(TileMatmul, NonFiniteNumbersStayInTheirRow) {
  SeededRng rng(6);
  const int64_t n = 40, k = 160;
  const auto w = random_weight(rng, WeightFormat::mxfp4, n, k);
  std::vector<float> values = input_rows(rng, 5, k, k);
  const Buffer<float> clean(values);
  values[static_cast<size_t>(1 * k + 33)] = std::numeric_limits<float>::quiet_NaN();
  values[static_cast<size_t>(3 * k + 150)] = std::numeric_limits<float>::infinity();
  Buffer<float> x(values), y(5 * n), expected(5 * n);
  using K = TileMatmul<gpu::MfmaBf16K16, TileSize::small, TileMxfp4>;
  launch_once<K>({{expected.data(), n, clean.data(), k, w->view, 5, false}});
  emulate<K, 64>({{y.data(), n, x.data(), k, w->view, 5, false}}, y);
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_TRUE(std::isnan(y[n + i])) << i;
    EXPECT_FALSE(std::isfinite(y[3 * n + i])) << i;  // infinity, or NaN where the weight is 0
    for (const int64_t m : {0, 2, 4}) EXPECT_EQ(y[m * n + i], expected[m * n + i]) << m << " " << i;
  }
}

// Report O1: scale byte 0 is 2^-127 and not 0, and an FP8 scale may be 0.
TEST(TileMatmul, ExtremeScales) {
  Buffer<uint8_t> data(std::vector<uint8_t>(16, 0x22)), scale(std::vector<uint8_t>(1, 0));  // code 2 is 1.0
  std::vector<float> values(32, 0.0f);
  values[3] = 0x1p120f;
  Buffer<float> x(values), y(1);
  using Fp4 = TileMatmul<gpu::MmaSyncBf16, TileSize::small, TileMxfp4>;
  emulate<Fp4, 32>({{y.data(), 1, x.data(), 32, {data.data(), scale.data(), 1, 32, 0, WeightFormat::mxfp4}, 1, false}}, y);
  EXPECT_EQ(y[0], 0x1p-7f);

  SeededRng rng(7);
  Buffer<uint8_t> codes(std::vector<uint8_t>(5 * 64, 0x7e)), zero(std::vector<uint8_t>(4, 0));
  Buffer<float> row(input_rows(rng, 1, 64, 64)), sums(5);
  using Fp8 = TileMatmul<gpu::MmaSyncBf16, TileSize::small, TileFp8>;
  emulate<Fp8, 32>({{sums.data(), 5, row.data(), 64, {codes.data(), zero.data(), 5, 64, 0, WeightFormat::fp8_block}, 1, false}}, sums);
  for (int64_t n = 0; n < 5; ++n) EXPECT_EQ(sums[n], 0.0f);
}

// Every code of both small formats through the path that makes bf16 of it.
TEST(TileMatmul, EveryCodeIsExactInBf16) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7fu) == 0x7fu) continue;
    TileFp8::Raw raw = {{{code, 0}}};
    EXPECT_EQ(gpu::bf16_value(static_cast<uint16_t>(TileFp8::bf16(raw).v[0])), gpu::e4m3_value(static_cast<uint8_t>(code))) << code;
  }
  for (uint32_t scale = 0; scale < 253; ++scale) {  // 253 and 254 overflow f32 with the largest codes
    for (uint32_t code = 0; code < 16; ++code) {
      const TileMxfp4::Raw raw = {{{code << 4}}, static_cast<uint8_t>(scale)};
      EXPECT_EQ(gpu::bf16_value(static_cast<uint16_t>(TileMxfp4::bf16(raw).v[0] >> 16)),
                gpu::e2m1_value(code) * gpu::e8m0_value(static_cast<uint8_t>(scale)))
          << scale << " " << code;
    }
  }
}

TEST(TileConfig, SizesByRows) {
  EXPECT_EQ(tile_size(1), TileSize::small);
  EXPECT_EQ(tile_size(16), TileSize::small);
  EXPECT_EQ(tile_size(17), TileSize::medium);
  EXPECT_EQ(tile_size(64), TileSize::medium);
  EXPECT_EQ(tile_size(65), TileSize::large);
}

}  // namespace
}  // namespace ingot::kernels
