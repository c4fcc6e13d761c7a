// The softmax of a list of scores: the weights, which add up to one. Used by the attention references.
#pragma once

#include <algorithm>

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> softmax(std::vector<double> scores) {
  double greatest = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (const double s : scores) greatest = std::max(greatest, s);
  for (double& s : scores) sum += s = std::exp(s - greatest);
  for (double& s : scores) s /= sum;
  return scores;
}

}  // namespace ingot::kernels::ref
