// Every matrix instruction in the emulator, by the tables of mma.h, against sums in double.
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/emu.h"
#include "gpu/mma_cases.h"
#include "gpu/mma_probe.kernel.h"

namespace ingot::gpu {
namespace {

constexpr emu::Schedule kSchedules[] = {
    {emu::Order::ascending, 0}, {emu::Order::descending, 0}, {emu::Order::shuffled, 5}, {emu::Order::run_ahead, 9}};

template <class I>
std::vector<float> emulated_product(const MmaCase& made, emu::Schedule schedule) {
  std::vector<float> d(made.d.size(), std::nanf(""));
  const MmaProbeParams p{d.data(), made.a.data(), made.b.data(), made.c.data(), made.a_scale.data(), made.b_scale.data(), I::lanes};
  const auto result = emu::launch<MmaProbe<I>, I::lanes>(p, schedule);
  EXPECT_TRUE(result.has_value()) << made.name;
  return d;
}

template <class I>
void expect_all_cases() {
  for (const MmaCase& made : mma_cases<I>(1)) {
    const std::vector<float> first = emulated_product<I>(made, kSchedules[0]);
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_LE(std::abs(static_cast<double>(first[i]) - made.d[i]), made.tolerance)
          << made.name << ": row " << i / I::kN << ", column " << i % I::kN << " is " << first[i] << ", not " << made.d[i];
    for (const auto schedule : kSchedules) EXPECT_EQ(emulated_product<I>(made, schedule), first) << made.name;
  }
}

TEST(Mma, SyncBf16) { expect_all_cases<MmaSyncBf16>(); }
TEST(Mma, SyncE4m3) { expect_all_cases<MmaSyncE4m3>(); }
TEST(Mma, MfmaBf16K16) { expect_all_cases<MfmaBf16K16>(); }
TEST(Mma, MfmaBf16K32) { expect_all_cases<MfmaBf16K32>(); }
TEST(Mma, MfmaE4m3) { expect_all_cases<MfmaFp8K32<MatrixNumber::e4m3>>(); }
TEST(Mma, MfmaE4m3Fnuz) { expect_all_cases<MfmaFp8K32<MatrixNumber::e4m3_fnuz>>(); }
TEST(Mma, MfmaScaledE4m3) { expect_all_cases<MfmaScaledK128<MatrixNumber::e4m3>>(); }
TEST(Mma, MfmaScaledE2m1) { expect_all_cases<MfmaScaledK128<MatrixNumber::e2m1>>(); }

// The cases must tell a wrong table from a right one: this one swaps two neighbours along K in A alone.
struct SwappedColumns : MfmaBf16K16 {
  static constexpr Place a(int lane, int i) { return MfmaBf16K16::a(lane, i ^ 1); }
};
// And this one swaps two rows of the result.
struct SwappedRows : MmaSyncBf16 {
  static constexpr Place c(int lane, int i) { return MmaSyncBf16::c(lane, i ^ 2); }
};

// d as the instruction I would give it, loaded and stored by the table of Wrong.
template <class I, class Wrong>
int cases_that_differ() {
  int wrong = 0;
  for (const MmaCase& made : mma_cases<I>(2)) {
    MmaCase moved = made;
    std::vector<float> c = made.c;
    for (int lane = 0; lane < I::lanes; ++lane) {
      for (int i = 0; i < I::kANumbers; ++i) {
        const Place is = I::a(lane, i), taken = Wrong::a(lane, i);
        moved.a[static_cast<size_t>(is.row * I::kK + is.col)] = made.a[static_cast<size_t>(taken.row * I::kK + taken.col)];
      }
      for (int i = 0; i < I::kAccumulators; ++i) {
        const Place is = I::c(lane, i), taken = Wrong::c(lane, i);
        moved.c[static_cast<size_t>(is.row * I::kN + is.col)] = made.c[static_cast<size_t>(taken.row * I::kN + taken.col)];
      }
    }
    const std::vector<float> d = emulated_product<I>(moved, kSchedules[0]);
    bool same = true;
    for (int lane = 0; lane < I::lanes; ++lane) {
      for (int i = 0; i < I::kAccumulators; ++i) {
        const Place is = I::c(lane, i), put = Wrong::c(lane, i);
        const double error =
            static_cast<double>(d[static_cast<size_t>(is.row * I::kN + is.col)]) - made.d[static_cast<size_t>(put.row * I::kN + put.col)];
        same = same && std::abs(error) <= made.tolerance;
      }
    }
    wrong += same ? 0 : 1;
  }
  return wrong;
}

TEST(Mma, TheCasesShowAWrongTable) {
  EXPECT_EQ((cases_that_differ<MfmaBf16K16, MfmaBf16K16>()), 0);
  EXPECT_GE((cases_that_differ<MfmaBf16K16, SwappedColumns>()), 4);
  EXPECT_GE((cases_that_differ<MmaSyncBf16, SwappedRows>()), 4);
}

// gfx942's fp8: exponents are one lower than OCP's for the same bits, and 0x80 is its only NaN.
TEST(Mma, FnuzNumbers) {
  EXPECT_EQ(matrix_number_value(MatrixNumber::e4m3_fnuz, 0x40), 1.0f);
  EXPECT_EQ(matrix_number_value(MatrixNumber::e4m3_fnuz, 0x7f), 240.0f);
  EXPECT_EQ(matrix_number_value(MatrixNumber::e4m3_fnuz, 0x01), 0x1p-10f);
  EXPECT_EQ(matrix_number_value(MatrixNumber::e4m3_fnuz, 0x08), 0x1p-7f);
  EXPECT_TRUE(std::isnan(matrix_number_value(MatrixNumber::e4m3_fnuz, 0x80)));
  for (uint32_t code = 0x08; code < 0x7f; ++code)
    EXPECT_EQ(matrix_number_value(MatrixNumber::e4m3_fnuz, code) * 2.0f, matrix_number_value(MatrixNumber::e4m3, code)) << code;
}

}  // namespace
}  // namespace ingot::gpu
