// References of the kernels of the die: penalties, bias and masks; the distribution that is drawn from; log probabilities. Plain loops in
// double over a full sort.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

// Row r under its changes, drafted tokens and mask; (vocab).
inline std::vector<float> adjust_row(const AdjustRowsParams& p, int64_t r) {
  const DrawRow& row = p.rows[r];
  std::vector<float> out(p.logits + r * p.vocab_size, p.logits + (r + 1) * p.vocab_size);
  for (int64_t id = 0; id < p.vocab_size; ++id) {
    int32_t count = -1;
    double bias = 0;
    for (int32_t i = 0; i < row.num_changes; ++i) {
      const LogitChange& change = p.changes[row.first_change + i];
      if (change.token_id == id) count = change.count, bias = change.bias;
    }
    const int32_t* drafted = p.token_ids + row.first_drafted;
    if (const auto more = std::count(drafted, drafted + row.num_drafted, static_cast<int32_t>(id)); more > 0)
      count = std::max(count, 0) + static_cast<int32_t>(more);
    double x = out[static_cast<size_t>(id)];
    constexpr double kMax = std::numeric_limits<float>::max();
    const auto to_float = [&](double value) { return static_cast<float>(std::isinf(value) ? value : std::clamp(value, -kMax, kMax)); };
    if (count >= 0) {
      if (x > 0)
        x /= static_cast<double>(row.repetition_penalty);
      else
        x *= static_cast<double>(row.repetition_penalty);
      x -= static_cast<double>(row.frequency_penalty) * count;
      if (count > 0) x -= static_cast<double>(row.presence_penalty);
      x = to_float(x);
    }
    x = to_float(x + bias);
    if (row.mask >= 0 && (p.masks[row.mask * ((p.vocab_size + 31) / 32) + id / 32] >> (id % 32) & 1u) == 0)
      x = -std::numeric_limits<double>::infinity();
    out[static_cast<size_t>(id)] = static_cast<float>(x);
  }
  return out;
}

// Ids, the likeliest first.
inline std::vector<size_t> ranking(const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

// The probability of every token after temperature, top_k, top_p and min_p.
inline std::vector<double> distribution(const std::vector<float>& logits, const DrawRow& row) {
  const std::vector<size_t> order = ranking(logits);
  const double max = logits[order.front()];
  std::vector<double> p;
  double total = 0;
  for (const float logit : logits) {
    p.push_back(row.kind == DrawKind::greedy ? 0.0 : std::exp((logit - max) / static_cast<double>(row.temperature)));
    total += p.back();
  }
  if (row.kind == DrawKind::greedy) {
    p[order.front()] = 1;
    return p;
  }
  for (double& x : p) x /= total;
  const auto keep = [&](size_t count) {
    double kept = 0;
    for (size_t i = 0; i < count; ++i) kept += p[order[i]];
    for (size_t i = 0; i < order.size(); ++i) p[order[i]] = i < count ? p[order[i]] / kept : 0;
  };
  if (row.top_k > 0) keep(std::min(order.size(), static_cast<size_t>(row.top_k)));
  size_t count = 0;
  if (row.top_p < 1.0f) {
    for (double kept = 0; count < order.size() && kept < static_cast<double>(row.top_p); ++count) kept += p[order[count]];
    keep(count);
  }
  if (row.min_p > 0) {
    count = 0;
    while (count < order.size() && p[order[count]] >= static_cast<double>(row.min_p) * p[order[0]]) ++count;
    keep(count);
  }
  return p;
}

// log(sum of e^logit)
inline double log_total(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - max);
  return max + std::log(total);
}

}  // namespace ingot::kernels::ref
