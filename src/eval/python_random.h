// Python's `random.Random(seed)`, to the bit: shufflings of published evaluations are made of it. One owner; not for anything of our own
// (base/rng.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ingot::eval {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  // Uniform in [0, n), 0 < n < 2^32: Python's _randbelow.
  uint32_t below(uint32_t n);
  // random.sample(range(n), k), k <= n.
  std::vector<uint32_t> sample(uint32_t n, uint32_t k);

 private:
  uint32_t next();  // 32 bits of the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998)
  void refill();

  static constexpr size_t kWords = 624;
  std::array<uint32_t, kWords> state_{};
  size_t at_ = kWords;
};

}  // namespace ingot::eval
