#include "quant/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rng.h"

namespace ingot::quant {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Interval bootstrap(int64_t num_documents, const std::function<double(std::span<const int32_t> times)>& figure,
                   const BootstrapOptions& options) {
  const auto documents = static_cast<size_t>(num_documents);
  std::vector<int32_t> times(documents, 1);
  const double value = num_documents > 0 ? figure(times) : kNaN;
  if (std::isnan(value)) return {kNaN, kNaN, kNaN};
  Rng rng(options.seed);
  std::vector<double> drawn;
  drawn.reserve(static_cast<size_t>(options.resamples));
  for (int i = 0; i < options.resamples; ++i) {
    std::fill(times.begin(), times.end(), 0);
    for (size_t d = 0; d < documents; ++d) ++times[rng.below(documents)];
    if (const double of_draw = figure(times); !std::isnan(of_draw)) drawn.push_back(of_draw);
  }
  if (drawn.empty()) return {value, value, value};
  std::sort(drawn.begin(), drawn.end());
  const auto at = [&](double share) { return drawn[static_cast<size_t>(std::lround(share * static_cast<double>(drawn.size() - 1)))]; };
  return {value, at(0.025), at(0.975)};
}

Interval bootstrap_ratio(std::span<const Share> documents, const BootstrapOptions& options) {
  return bootstrap(
      static_cast<int64_t>(documents.size()),
      [&](std::span<const int32_t> times) {
        double sum = 0, count = 0;
        for (size_t d = 0; d < documents.size(); ++d) {
          sum += times[d] * documents[d].sum;
          count += times[d] * documents[d].count;
        }
        return count > 0 ? sum / count : kNaN;
      },
      options);
}

PooledQuantile::PooledQuantile(std::span<const std::vector<double>> documents) {
  for (size_t d = 0; d < documents.size(); ++d) {
    sizes_.push_back(static_cast<int64_t>(documents[d].size()));
    for (const double value : documents[d]) largest_first_.push_back({value, static_cast<int32_t>(d)});
  }
  std::sort(largest_first_.begin(), largest_first_.end(), [](const Entry& a, const Entry& b) { return a.value > b.value; });
}

double PooledQuantile::at(double share, std::span<const int32_t> times) const {
  INGOT_CHECK(times.size() == sizes_.size(), "{} weights for {} documents", times.size(), sizes_.size());
  int64_t total = 0;
  for (size_t d = 0; d < sizes_.size(); ++d) total += times[d] * sizes_[d];
  // So many may lie above the quantile. From the top, because the quantiles that are asked for are high ones.
  const auto above = total - static_cast<int64_t>(std::ceil(share * static_cast<double>(total)));
  int64_t seen = 0;
  for (const Entry& entry : largest_first_) {
    seen += times[static_cast<size_t>(entry.document)];
    if (seen > above) return entry.value;
  }
  return kNaN;
}

double median(std::vector<double> values) {
  if (values.empty()) return kNaN;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Interval wilson(int64_t successes, int64_t trials) {
  INGOT_CHECK(successes >= 0 && successes <= trials, "{} of {}", successes, trials);
  if (trials == 0) return {kNaN, kNaN, kNaN};
  constexpr double z = kZ95;
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(successes) / n;
  const double centre = share + z * z / (2 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  const double scale = 1 + z * z / n;
  return {share, std::max(0.0, (centre - half) / scale), std::min(1.0, (centre + half) / scale)};
}

double mcnemar_exact(int64_t b, int64_t c) {
  INGOT_CHECK(b >= 0 && c >= 0, "{} and {}", b, c);
  const auto n = static_cast<double>(b + c);
  double tail = 0;  // P(X <= min(b, c)) of a fair coin thrown b + c times
  for (int64_t k = 0; k <= std::min(b, c); ++k) {
    const auto heads = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(heads + 1) - std::lgamma(n - heads + 1) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace ingot::quant
