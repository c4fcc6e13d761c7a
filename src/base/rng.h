// Seeded random numbers that are a pure function of (seed, counter): a draw for token n of a request does not depend on
// its neighbours in the batch, on preemption, or on how many draws others made. Owned by base; any thread.
#pragma once

#include <cstdint>

namespace ingot {

// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// 64 random bits for draw `counter` of stream `seed`.
constexpr uint64_t random_bits(uint64_t seed, uint64_t counter) { return mix64(mix64(seed) ^ mix64(counter * 0x2545f4914f6cdd1dULL)); }

// Uniform in [0, 1) with 53 bits.
constexpr double random_uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(random_bits(seed, counter) >> 11) * 0x1.0p-53;
}

// A sequential view of one stream, for tests and synthetic data.
class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return random_bits(seed_, counter_++); }
  double uniform() { return random_uniform(seed_, counter_++); }
  // Uniform in [0, n), n > 0.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<__uint128_t>(bits()) * n) >> 64); }
  float uniform_float(float lo, float hi) { return lo + (hi - lo) * static_cast<float>(uniform()); }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace ingot
