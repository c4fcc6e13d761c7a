// The GPUs' sine and cosine, on the host: it is plain arithmetic, and gives the same bits there.
#include "gpu/angle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace ingot::gpu {
namespace {

// The distance from the exact value in steps of f32.
double steps_off(float actual, double exact) {
  const double step = std::ldexp(1.0, std::ilogb(exact == 0.0 ? 0x1p-126 : exact) - 23);
  return std::fabs(actual - exact) / step;
}

void expect_close(float angle) {
  // The host's double functions reduce exactly and are good to far more digits than f32 has.
  EXPECT_LT(steps_off(sine_of_quarter(angle, 0), std::sin(static_cast<double>(angle))), 0.5001) << "sin " << angle;
  EXPECT_LT(steps_off(sine_of_quarter(angle, 1), std::cos(static_cast<double>(angle))), 0.5001) << "cos " << angle;
}

TEST(Angle, EveryPositionOfAMillionAtTheHighestFrequency) {
  for (int position = 0; position <= 1 << 20; position += 1) {
    expect_close(static_cast<float>(position));
    if (HasFailure()) return;
  }
}

TEST(Angle, AnyAngleUpToTheEndOfItsRange) {
  Rng rng(1);
  for (int i = 0; i < 300000; ++i) {
    const float scale = std::ldexp(1.0f, static_cast<int>(rng.below(40)) - 9);
    expect_close(rng.uniform_float(-scale, scale));
    if (HasFailure()) return;
  }
}

TEST(Angle, NeighboursOfMultiplesOfAQuarterTurn) {
  for (int64_t n = 1; n < 1'000'000'000; n = n * 5 / 4 + 1) {
    const auto nearest = static_cast<float>(static_cast<double>(n) * 1.5707963267948966);
    for (const float angle : {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, 1e30f)}) expect_close(angle);
  }
}

TEST(Angle, Zero) {
  EXPECT_EQ(sine_of_quarter(0.0f, 0), 0.0f);
  EXPECT_EQ(sine_of_quarter(0.0f, 1), 1.0f);
}

TEST(Angle, NaNAndInfinityAreNaN) {
  EXPECT_TRUE(std::isnan(sine_of_quarter(std::nanf(""), 0)));
  EXPECT_TRUE(std::isnan(sine_of_quarter(INFINITY, 1)));
}

}  // namespace
}  // namespace ingot::gpu
