#include "exec/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/rng.h"

namespace ingot::exec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 256;  // weights summed into one entry of block_sums_

// GCC's and clang's vector types: the same arithmetic on every machine, unlike a library that picks its lanes at run time.
using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(32)));
using Longs = int64_t __attribute__((vector_size(32)));
constexpr size_t kFloatLanes = 8;
constexpr size_t kDoubleLanes = 4;

template <class Vector, class Element>
Vector load(const Element* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

// e^x for x <= 0, four at a time: x = k ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series to the 13th power (the remainder is below
// 2^-55), 2^k by its exponent bits. Below -708 the result is 0: no weight of a draw that small can be told from none.
Doubles exp4(Doubles x) {
  constexpr double kLog2e = 1.4426950408889634074;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // ln 2 in two parts, so that k * high is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits
  const Longs is_zero = x < -708.0;
  const Doubles safe = is_zero ? Doubles{} : x;
  const Doubles shifted = safe * kLog2e + kRounder;
  const Doubles k = shifted - kRounder;
  const Doubles r = (safe - k * kLn2High) - k * kLn2Low;
  constexpr double kCoefficients[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  Doubles series = Doubles{} + kCoefficients[0];
  for (size_t i = 1; i < std::size(kCoefficients); ++i) series = series * r + kCoefficients[i];
  Longs bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 52) + (int64_t{1023} << 52);  // the low bits of `shifted` are k: they become the exponent of 2^k
  Doubles power;
  std::memcpy(&power, &bits, sizeof(power));
  return is_zero ? Doubles{} : series * power;
}

// Bins of weights in [0, 1]: the first is that of 1, and each octave below has 64. Those of less than 2^-64 share the last: whoever has
// many of them looks at each.
constexpr uint64_t kBins = 64 * 64;
size_t bin_of(double weight) {
  constexpr uint64_t kFirst = std::bit_cast<uint64_t>(1.0) >> 46;
  const uint64_t key = std::bit_cast<uint64_t>(weight) >> 46;
  return static_cast<size_t>(std::min(kFirst - key, kBins - 1));
}

double exp1(double x) { return exp4(Doubles{} + x)[0]; }

// The largest logit; NaN when there is a NaN.
float max_of(std::span<const float> logits) {
  Floats largest = Floats{} - kInfinity;
  Ints is_nan{};
  size_t i = 0;
  for (; i + kFloatLanes <= logits.size(); i += kFloatLanes) {
    const Floats row = load<Floats>(&logits[i]);
    is_nan |= row != row;
    largest = row > largest ? row : largest;
  }
  float max = -kInfinity;
  bool found_nan = false;
  for (size_t lane = 0; lane < kFloatLanes; ++lane) {
    max = std::max(max, largest[lane]);
    found_nan = found_nan || is_nan[lane] != 0;
  }
  for (; i < logits.size(); ++i) {
    max = std::max(max, logits[i]);
    found_nan = found_nan || std::isnan(logits[i]);
  }
  return found_nan ? std::numeric_limits<float>::quiet_NaN() : max;
}

bool any_above(const float* block, float limit) {
  const Ints above = load<Ints>(reinterpret_cast<const int32_t*>(block)) & 0;  // zero of the right type
  const Ints mask = above | (load<Floats>(block) > limit);
  const Longs halves = std::bit_cast<Longs>(mask);
  return (halves[0] | halves[1] | halves[2] | halves[3]) != 0;
}

Result<> refuse(std::span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit) || logit == kInfinity; });
  if (bad == logits.end()) return Sampler::refusal(-1, 0, logits.size());
  return Sampler::refusal(bad - logits.begin(), *bad, logits.size());
}

}  // namespace

Result<Draw> Sampler::sample(std::span<const float> logits, const sched::SamplingParams& params, int64_t counter) {
  INGOT_ASSIGN(const float max, max_logit(logits));
  Draw drawn;
  drawn.token_id = draw(logits, max, params, random_uniform(params.seed, static_cast<uint64_t>(counter)));
  if (params.top_logprobs >= 0) drawn.logprob = logprob(logits, max, drawn.token_id, params.top_logprobs);
  return drawn;
}

Result<float> Sampler::max_logit(std::span<const float> logits) {
  INGOT_CHECK(!logits.empty());
  const float max = max_of(logits);
  if (!std::isfinite(max)) return forward_error(refuse(logits).error());
  return max;
}

tl::unexpected<Error> Sampler::refusal(int64_t bad_id, float bad_logit, size_t vocab_size) {
  if (bad_id >= 0) return fail("the logit of token {} is {}, which is not a number to draw from", bad_id, bad_logit);
  return fail("all {} logits are {}: there is no token to draw", vocab_size, -kInfinity);
}

int32_t Sampler::likeliest(std::span<const float> logits, float max) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
}

int32_t Sampler::draw(std::span<const float> logits, float max, const sched::SamplingParams& params, double uniform) {
  if (is_greedy(params)) return likeliest(logits, max);
  const Kept kept = filter(logits, max, params);
  const double target = uniform * kept.total;
  double before = 0;
  int32_t last = -1;
  if (kept.all) {
    // Find the block, then the token. Both walks add in the order in which the total was added.
    size_t block = 0;
    while (block + 1 < block_sums_.size() && before + block_sums_[block] <= target) before += block_sums_[block++];
    const size_t end = std::min(logits.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i < end; ++i) {
      if (weights_[i] <= 0) continue;
      last = static_cast<int32_t>(i);
      before += weights_[i];
      if (before > target) break;
    }
    // A block of zeros can only be reached by rounding at the very end.
    return last >= 0 ? last : likeliest(logits, max);
  }
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight <= 0) continue;
    last = candidate.id;
    before += candidate.weight;
    if (before > target) break;
  }
  return last;
}

void Sampler::distribution(std::span<const float> logits, float max, const sched::SamplingParams& params, std::span<double> probabilities) {
  INGOT_CHECK(probabilities.size() == logits.size() && !is_greedy(params));
  const Kept kept = filter(logits, max, params);
  if (kept.all) {
    for (size_t i = 0; i < weights_.size(); ++i) probabilities[i] = weights_[i] / kept.total;
    return;
  }
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
  for (const Candidate& candidate : candidates_) probabilities[static_cast<size_t>(candidate.id)] = candidate.weight / kept.total;
}

Sampler::Kept Sampler::filter(std::span<const float> logits, float max, const sched::SamplingParams& params) {
  const double temperature = params.temperature;
  const auto vocab_size = static_cast<int64_t>(logits.size());
  const bool has_top_k = params.top_k > 0 && params.top_k < vocab_size;
  const bool has_top_p = params.top_p < 1.0f;
  const double min_weight = params.min_p;  // the likeliest token weighs 1
  candidates_.clear();
  if (has_top_k) {
    select_top(logits, params.top_k);
    for (const int32_t id : top_ids_) {
      candidates_.push_back({exp1((static_cast<double>(logits[static_cast<size_t>(id)]) - max) / temperature), id});
    }
  } else {
    const double total = fill_weights(logits, max, temperature);
    if (!has_top_p && min_weight <= 0) return {.all = true, .total = total};
    // Tokens below this weight sum to less than 1 - top_p of the total, so the smallest set that holds top_p is among the others.
    // The factor leaves room for the rounding of the sums.
    gather(has_top_p ? (1.0 - params.top_p) * total / static_cast<double>(vocab_size) * (1 - 1e-9) : min_weight);
    if (has_top_p) cut_to_mass(params.top_p * total);
  }
  if (has_top_k) {
    // By id: the sums and the draw must not depend on how the selection went. The other paths gather in this order.
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  if (has_top_k && has_top_p) {
    double kept = 0;
    for (const Candidate& candidate : candidates_) kept += candidate.weight;
    cut_to_mass(params.top_p * kept);
  }
  if (min_weight > 0) std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < min_weight; });
  Kept kept;
  for (const Candidate& candidate : candidates_) kept.total += candidate.weight;
  return kept;
}

double Sampler::fill_weights(std::span<const float> logits, float max, double temperature) {
  weights_.resize(logits.size());
  block_sums_.clear();
  const double shift = max;
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(logits.size(), begin + kBlock);
    size_t i = begin;
    Doubles sums{};
    for (; i + kDoubleLanes <= end; i += kDoubleLanes) {
      const Doubles row = {logits[i], logits[i + 1], logits[i + 2], logits[i + 3]};
      const Doubles weights = exp4((row - shift) / temperature);
      std::memcpy(&weights_[i], &weights, sizeof(weights));
      sums += weights;
    }
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (; i < end; ++i) {
      weights_[i] = exp1((logits[i] - shift) / temperature);
      sum += weights_[i];
    }
    block_sums_.push_back(sum);
    total += sum;
  }
  return total;
}

void Sampler::gather(double floor) {
  for (size_t block = 0; block < block_sums_.size(); ++block) {
    if (block_sums_[block] < floor) continue;  // so is each of its weights
    const size_t end = std::min(weights_.size(), (block + 1) * kBlock);
    size_t i = block * kBlock;
    for (; i + 2 * kDoubleLanes <= end; i += 2 * kDoubleLanes) {
      const Longs stays = (load<Doubles>(&weights_[i]) >= floor) | (load<Doubles>(&weights_[i + kDoubleLanes]) >= floor);
      if ((stays[0] | stays[1] | stays[2] | stays[3]) == 0) continue;
      // Without a branch: which of them stay is as good as random.
      Candidate found[2 * kDoubleLanes];
      size_t count = 0;
      for (size_t lane = 0; lane < 2 * kDoubleLanes; ++lane) {
        found[count] = {weights_[i + lane], static_cast<int32_t>(i + lane)};
        count += static_cast<size_t>(weights_[i + lane] >= floor);
      }
      candidates_.insert(candidates_.end(), found, found + count);
    }
    for (; i < end; ++i) {
      if (weights_[i] >= floor) candidates_.push_back({weights_[i], static_cast<int32_t>(i)});
    }
  }
}

void Sampler::select_top(std::span<const float> logits, int64_t count) {
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const auto limit = static_cast<size_t>(count);
  top_ids_.clear();
  // Twice as many as wanted are gathered, then the worse half is dropped and its best raises the bar. Ids come in order, so a later token
  // that only equals the bar has lost.
  float bar = -kInfinity;
  bool has_bar = false;
  const auto offer = [&](size_t i) {
    if (has_bar && !(logits[i] > bar)) return;
    top_ids_.push_back(static_cast<int32_t>(i));
    if (top_ids_.size() < 2 * limit) return;
    std::nth_element(top_ids_.begin(), top_ids_.begin() + count - 1, top_ids_.end(), better);
    top_ids_.resize(limit);
    bar = logits[static_cast<size_t>(top_ids_[limit - 1])];
    has_bar = true;
  };
  size_t i = 0;
  for (; i + kFloatLanes <= logits.size(); i += kFloatLanes) {
    if (has_bar && !any_above(&logits[i], bar)) continue;
    for (size_t lane = 0; lane < kFloatLanes; ++lane) offer(i + lane);
  }
  for (; i < logits.size(); ++i) offer(i);
  if (top_ids_.size() > limit) {
    std::nth_element(top_ids_.begin(), top_ids_.begin() + count - 1, top_ids_.end(), better);
    top_ids_.resize(limit);
  }
}

void Sampler::cut_to_mass(double mass) {
  // The mass by weight, in bins of a 64th of an octave: all before the bin where the sum gets to `mass` are kept.
  bin_mass_.assign(kBins, 0.0);
  for (const Candidate& candidate : candidates_) bin_mass_[bin_of(candidate.weight)] += candidate.weight;
  size_t bin = 0;
  double kept = 0;
  while (bin + 1 < kBins && kept + bin_mass_[bin] < mass) kept += bin_mass_[bin++];
  // Exactly, in that bin, in a copy, so that the candidates stay in the order of ids: halves the interval that holds the last one kept. All
  // before `low` are kept, all from `high` on are not needed.
  const auto better = [](const Candidate& a, const Candidate& b) { return a.weight > b.weight || (a.weight == b.weight && a.id < b.id); };
  ranked_.clear();
  std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(ranked_),
               [&](const Candidate& candidate) { return bin_of(candidate.weight) == bin; });
  auto low = ranked_.begin();
  auto high = ranked_.end();
  while (high - low > 32) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, better);
    double half = 0;
    for (auto it = low; it != middle; ++it) half += it->weight;
    if (kept + half >= mass) {
      high = middle;
    } else {
      kept += half;
      low = middle;
    }
  }
  std::sort(low, high, better);
  while (low != high && (kept += low->weight) < mass) ++low;
  if (low == high) return;  // rounding: all of them together fall short
  const Candidate last = *low;
  size_t count = 0;
  for (const Candidate candidate : candidates_) {
    candidates_[count] = candidate;
    const bool stays = (candidate.weight > last.weight) | ((candidate.weight == last.weight) & (candidate.id <= last.id));
    count += static_cast<size_t>(stays);
  }
  candidates_.resize(count);
}

sched::TokenLogprob Sampler::logprob(std::span<const float> logits, float max, int32_t token_id, int64_t num_top) {
  const double log_total = std::log(fill_weights(logits, max, 1.0)) + max;
  const auto of_id = [&](int32_t id) { return static_cast<float>(logits[static_cast<size_t>(id)] - log_total); };
  sched::TokenLogprob result;
  result.logprob = of_id(token_id);
  if (num_top == 0) return result;
  select_top(logits, std::min(num_top, static_cast<int64_t>(logits.size())));
  std::sort(top_ids_.begin(), top_ids_.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (const int32_t id : top_ids_) result.top.emplace_back(id, of_id(id));
  return result;
}

}  // namespace ingot::exec
