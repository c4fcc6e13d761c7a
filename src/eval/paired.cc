#include "eval/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/check.h"

namespace ingot::eval {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using quant::kZ95;
constexpr double kZPower = 0.841621233572914;  // 80 % quantile of the normal distribution

// How many standard errors c - b lies above n * delta, with the variance that is likeliest if delta is the truth.
double tango_score(double b, double c, double n, double delta) {
  const double first = 2 * n, second = -b - c + (2 * n - c + b) * delta, third = -b * delta * (1 - delta);
  const double lost_share = (std::sqrt(std::max(0.0, second * second - 4 * first * third)) - second) / (2 * first);
  const double variance = n * (2 * lost_share + delta * (1 - delta));
  const double distance = c - b - n * delta;
  if (variance <= 0) return distance == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), distance);
  return distance / std::sqrt(variance);
}

// Where the score, which falls as delta grows, crosses `target` within [low, high].
double crossing(double b, double c, double n, double target, double low, double high) {
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (tango_score(b, c, n, middle) > target ? low : high) = middle;
  }
  return (low + high) / 2;
}

// Connor's number of pairs for McNemar's test (Biometrics 43, 1987): `differ` is the share of pairs that differ.
double pairs_needed(double differ, double difference) {
  const double root = kZ95 * std::sqrt(differ) + kZPower * std::sqrt(std::max(0.0, differ - difference * difference));
  return root * root / (difference * difference);
}

double resolvable_difference(double differ, double pairs) {
  if (differ <= 0) return kNaN;
  double low = 0, high = differ;  // no difference is larger than the share of pairs that differ
  if (pairs_needed(differ, high) > pairs) return kNaN;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (pairs_needed(differ, middle) > pairs ? low : high) = middle;
  }
  return high;
}

}  // namespace

quant::Interval tango_interval(int64_t b, int64_t c, int64_t n) {
  INGOT_CHECK(b >= 0 && c >= 0 && b + c <= n, "{} and {} of {}", b, c, n);
  if (n == 0) return {kNaN, kNaN, kNaN};
  const auto lost = static_cast<double>(b), won = static_cast<double>(c), all = static_cast<double>(n);
  const double value = (won - lost) / all;
  return {value, crossing(lost, won, all, kZ95, -1, value), crossing(lost, won, all, -kZ95, value, 1)};
}

ClusteredMean clustered_mean(std::span<const std::pair<std::string, double>> items) {
  ClusteredMean result;
  std::unordered_map<std::string, std::pair<double, double>> sums;  // sum, count
  double total = 0;
  for (const auto& [cluster, value] : items) {
    auto& [sum, count] = sums[cluster];
    sum += value, count += 1, total += value;
  }
  result.items = static_cast<int64_t>(items.size());
  result.clusters = static_cast<int64_t>(sums.size());
  const auto n = static_cast<double>(items.size());
  result.mean = items.empty() ? kNaN : total / n;
  double squares = 0;
  for (const auto& [cluster, s] : sums) squares += std::pow(s.first - s.second * result.mean, 2);
  result.standard_error = items.empty() ? kNaN : std::sqrt(squares) / n;
  return result;
}

PairedDifference paired_difference(std::span<const Pair> pairs) {
  PairedDifference d;
  d.pairs = static_cast<int64_t>(pairs.size());
  std::vector<std::pair<std::string, double>> differences;
  for (const Pair& pair : pairs) {
    if (pair.before && !pair.now) d.lost.push_back(pair.id);
    if (!pair.before && pair.now) d.won.push_back(pair.id);
    differences.emplace_back(pair.cluster.empty() ? pair.id : pair.cluster, static_cast<int>(pair.now) - static_cast<int>(pair.before));
  }
  const ClusteredMean mean = clustered_mean(differences);
  d.clusters = mean.clusters;
  const auto b = static_cast<int64_t>(d.lost.size()), c = static_cast<int64_t>(d.won.size());
  if (d.is_exact()) {
    d.difference = tango_interval(b, c, d.pairs);
    d.p = quant::mcnemar_exact(b, c);
    const double n = static_cast<double>(d.pairs), differ = static_cast<double>(b + c) / n;
    if (b != c) d.questions_to_resolve = static_cast<int64_t>(std::ceil(pairs_needed(differ, d.difference.value)));
    d.resolvable = d.pairs > 0 ? resolvable_difference(differ, n) : kNaN;
    return d;
  }
  const double half = kZ95 * mean.standard_error;
  d.difference = {mean.mean, std::max(-1.0, mean.mean - half), std::min(1.0, mean.mean + half)};
  d.p = mean.standard_error > 0 ? std::erfc(std::abs(mean.mean) / mean.standard_error / std::sqrt(2.0)) : mean.mean == 0 ? 1 : 0;
  // The error falls with the root of the number of questions.
  const double wanted = (kZ95 + kZPower) * mean.standard_error;
  if (mean.mean != 0) {
    const double factor = std::pow(wanted / mean.mean, 2);
    d.questions_to_resolve = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(factor * static_cast<double>(d.clusters))));
  }
  d.resolvable = mean.standard_error > 0 ? wanted : kNaN;
  return d;
}

}  // namespace ingot::eval
