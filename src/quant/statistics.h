// What a figure of an evaluation is worth: intervals and paired tests. Pure functions of their arguments; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ingot::quant {

// 97.5 % quantile of the normal distribution: half of a 95 % interval, in standard errors.
inline constexpr double kZ95 = 1.959963984540054;

// A figure with its 95 % confidence interval. low <= high; all three NaN when there is nothing to count.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};

struct BootstrapOptions {
  int resamples = 1000;
  uint64_t seed = 20240601;
};

// One document's part of a ratio: sum over its tokens, and how many they are.
struct Share {
  double sum = 0;
  double count = 0;
};

// Bootstrap over documents, since the tokens of one document are not independent of each other: documents are drawn with replacement, the
// figure is computed of each draw, and the interval is the middle 95 % of the results. With one document the interval is the value alone.
// `figure` gets how often each document was drawn (num_documents); where it gives NaN, that draw is left out.
Interval bootstrap(int64_t num_documents, const std::function<double(std::span<const int32_t> times)>& figure,
                   const BootstrapOptions& options = {});
// The same of sum of sums / sum of counts.
Interval bootstrap_ratio(std::span<const Share> documents, const BootstrapOptions& options = {});

// Numbers of several documents, sorted once, for quantiles of many draws of the documents.
class PooledQuantile {
 public:
  // `documents`: each one's numbers.
  explicit PooledQuantile(std::span<const std::vector<double>> documents);
  // The smallest number with at least `share` of all numbers at or below it, document d counted times[d] times. NaN without numbers.
  double at(double share, std::span<const int32_t> times) const;

 private:
  struct Entry {
    double value;
    int32_t document;
  };
  std::vector<Entry> largest_first_;
  std::vector<int64_t> sizes_;  // numbers of each document
};

// The middle one, or the mean of the two in the middle; NaN of nothing.
double median(std::vector<double> values);

// 95 % interval of a share by Wilson's score method (E. B. Wilson, 1927), which holds near 0 and 1 and for few trials, too.
Interval wilson(int64_t successes, int64_t trials);

// McNemar's exact test on paired answers: of the pairs that differ, `b` were right before alone and `c` are right now alone. The two-sided
// probability of a split at least as uneven when either is as likely: 1 when b == c.
double mcnemar_exact(int64_t b, int64_t c);

}  // namespace ingot::quant
