// How numeric results are compared with a reference: first where the NaNs and infinities are, then the greatest error relative to
// the scale of the tensor, then the similarity of the whole; each catches what the others forgive. A failure prints the place.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/canary.h"

namespace ingot::testing {

// Belongs to a number format, and says why: see the named ones beside each test.
struct Tolerance {
  double max_error;              // of an element, relative to the scale
  double max_difference = 1e-6;  // 1 - cosine of the angle between the tensors
  double scale = 0.0;            // 0: the greatest finite magnitude in `expected`
};

inline ::testing::AssertionResult all_close(const std::vector<double>& expected, const std::vector<double>& actual, Tolerance tolerance) {
  if (expected.size() != actual.size())
    return ::testing::AssertionFailure() << "expected " << expected.size() << " numbers, got " << actual.size();
  double scale = 0.0, dot = 0.0, norm_expected = 0.0, norm_actual = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], a = actual[i];
    if (std::isnan(e) != std::isnan(a) || ((std::isinf(e) || std::isinf(a)) && !std::isnan(e) && e != a))
      return ::testing::AssertionFailure() << "at " << i << " of " << expected.size() << ": expected " << e << ", got " << a;
    if (!std::isfinite(e)) continue;
    scale = std::fmax(scale, std::fabs(e));
    dot += e * a;
    norm_expected += e * e;
    norm_actual += a * a;
  }
  if (tolerance.scale > 0.0) scale = tolerance.scale;
  double worst = 0.0;
  size_t place = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::isfinite(expected[i]) ? std::fabs(expected[i] - actual[i]) : 0.0;
    if (error > worst) {
      worst = error;
      place = i;
    }
  }
  if (worst > tolerance.max_error * scale)
    return ::testing::AssertionFailure() << "at " << place << " of " << expected.size() << ": expected " << expected[place] << ", got "
                                         << actual[place] << "; error " << worst / scale << " of the scale " << scale << ", at most "
                                         << tolerance.max_error;
  if (norm_expected == 0.0 || norm_actual == 0.0) return ::testing::AssertionSuccess();  // equal to nothing within the error above
  const double difference = 1.0 - dot / std::sqrt(norm_expected * norm_actual);
  if (difference > tolerance.max_difference)
    return ::testing::AssertionFailure() << "similarity is 1 - " << difference << ", at least 1 - " << tolerance.max_difference
                                         << "; worst element at " << place << ", error " << worst / scale << " of the scale";
  return ::testing::AssertionSuccess();
}

// The (rows, dim) numbers that stand `stride` apart in a buffer.
template <class T>
std::vector<double> strided(const Buffer<T>& buffer, int64_t rows, int64_t stride, int64_t dim) {
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < dim; ++i) out.push_back(static_cast<double>(buffer[r * stride + i]));
  }
  return out;
}

// Fails when an element between the rows (`dim` of each `stride`) was written.
template <class T>
::testing::AssertionResult gaps_untouched(const Buffer<T>& buffer, int64_t stride, int64_t dim) {
  for (int64_t i = 0; i < buffer.size(); ++i) {
    if (i % stride >= dim && !buffer.untouched(i))
      return ::testing::AssertionFailure() << "row " << i / stride << ": element " << i % stride
                                           << " lies between the rows and was written";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace ingot::testing
