// The reference of the sampler: plain loops in double over a full sort. The oracle of sampler_test.cc; production never calls it.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "sched/request.h"

namespace ingot::exec::ref {

// The probability of every token after temperature, top_k, top_p and min_p (sampler.h gives the order); params.temperature > 0.
inline std::vector<double> distribution(std::span<const float> logits, const sched::SamplingParams& params) {
  const size_t n = logits.size();
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) total += p[i] = std::exp((logits[i] - max) / static_cast<double>(params.temperature));
  for (double& x : p) x /= total;
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto keep = [&](size_t count) {
    double kept = 0;
    for (size_t i = 0; i < n; ++i) kept += i < count ? p[order[i]] : 0;
    for (size_t i = 0; i < n; ++i) p[order[i]] = i < count ? p[order[i]] / kept : 0;
  };
  if (params.top_k > 0) keep(std::min(n, static_cast<size_t>(params.top_k)));
  if (params.top_p < 1.0f) {
    size_t count = 0;
    double kept = 0;
    while (count < n && kept < static_cast<double>(params.top_p)) kept += p[order[count++]];
    keep(count);
  }
  if (params.min_p > 0) {
    size_t count = 0;
    while (count < n && p[order[count]] >= static_cast<double>(params.min_p) * p[order[0]]) ++count;
    keep(count);
  }
  return p;
}

// The token at `uniform` in [0, 1) when the probabilities are laid end to end by id.
inline int32_t draw(std::span<const double> probabilities, double uniform) {
  double sum = 0;
  int32_t last = -1;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] <= 0) continue;
    last = static_cast<int32_t>(i);
    sum += probabilities[i];
    if (sum > uniform) break;
  }
  return last;
}

}  // namespace ingot::exec::ref
