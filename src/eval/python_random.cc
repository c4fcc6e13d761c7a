#include "eval/python_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace ingot::eval {

PythonRandom::PythonRandom(uint64_t seed) {
  // Python hands the seed's 32-bit words, lowest first, to the generator's initialisation by array.
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  state_[0] = 19650218;
  for (uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  uint32_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (size_t k = std::max(kWords, key.size()); k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + j;
    advance();
    if (++j == key.size()) j = 0;
  }
  for (size_t k = kWords - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - i;
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  constexpr size_t kShift = 397;
  for (size_t i = 0; i < kWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
    state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908b0dfU : 0U);
  }
  at_ = 0;
}

uint32_t PythonRandom::next() {
  if (at_ == kWords) refill();
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

uint32_t PythonRandom::below(uint32_t n) {
  INGOT_CHECK(n > 0, "nothing to choose from");
  const auto bits = static_cast<int>(std::bit_width(n));
  uint32_t drawn = next() >> (32 - bits);
  while (drawn >= n) drawn = next() >> (32 - bits);
  return drawn;
}

std::vector<uint32_t> PythonRandom::sample(uint32_t n, uint32_t k) {
  INGOT_CHECK(k <= n, "{} of {}", k, n);
  // Python draws from a shrinking pool when that is smaller than a set of the chosen would be, and draws again what it has otherwise.
  double set_size = 21;
  if (k > 5) set_size += std::pow(4, std::ceil(std::log(3.0 * k) / std::log(4.0)));
  std::vector<uint32_t> chosen;
  if (n <= set_size) {
    std::vector<uint32_t> pool(n);
    std::iota(pool.begin(), pool.end(), 0U);
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t j = below(n - i);
      chosen.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return chosen;
  }
  while (chosen.size() < k) {
    const uint32_t j = below(n);
    if (std::find(chosen.begin(), chosen.end(), j) == chosen.end()) chosen.push_back(j);
  }
  return chosen;
}

}  // namespace ingot::eval
