// The reference of the sampler and of what comes before it: plain loops in double over a full sort. The oracle of sampler_test.cc and
// verify_test.cc; production never calls it.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "sched/request.h"

namespace ingot::exec::ref {

// The logits under the penalties and logit_bias of `params` (verify.h gives the order), after `context` (prompt and completion), of which
// the last num_generated are the completion.
inline std::vector<float> adjusted(std::span<const float> logits, const sched::SamplingParams& params, std::span<const int32_t> context,
                                   size_t num_generated) {
  const auto completion = context.last(num_generated);
  std::vector<float> result(logits.begin(), logits.end());
  for (size_t i = 0; i < result.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    double x = logits[i];
    if (std::count(context.begin(), context.end(), id) > 0) {
      if (x > 0)
        x /= static_cast<double>(params.repetition_penalty);
      else
        x *= static_cast<double>(params.repetition_penalty);
    }
    const auto count = std::count(completion.begin(), completion.end(), id);
    x -= static_cast<double>(params.frequency_penalty) * static_cast<double>(count);
    if (count > 0) x -= static_cast<double>(params.presence_penalty);
    for (const auto& [biased, bias] : params.logit_bias) {
      if (biased == id) x += static_cast<double>(bias);
    }
    result[i] = static_cast<float>(x);
  }
  return result;
}

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
