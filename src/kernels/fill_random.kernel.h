// Fills memory with random numbers of a format, at the speed of the memory: for weights and caches of benchmarks, whose values matter
// little and whose bytes must be there. A pure function of (seed, place), so every machine makes the same (up to a fused multiply-add).
#pragma once

#include "base/rng.h"
#include "gpu/numbers.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct FillRandom {
  using Params = FillRandomParams;
  struct Shared {};
  struct alignas(16) Chunk {
    uint32_t words[4];
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const uint64_t key = mix64(p.seed);
    const int64_t begin = g.block() * Params::kChunks, chunks = (p.bytes + 15) / 16;
    const int64_t end = begin + Params::kChunks < chunks ? begin + Params::kChunks : chunks;
    for (int64_t c = begin + g.thread(); c < end; c += g.threads()) {
      Chunk chunk;
      for (int j = 0; j < 4; ++j) chunk.words[j] = word(p, mix64(key + static_cast<uint64_t>(4 * c + j)));
      uint8_t* to = static_cast<uint8_t*>(p.data) + 16 * c;
      if (16 * (c + 1) <= p.bytes) {
        *reinterpret_cast<Chunk*>(to) = chunk;
        continue;
      }
      for (int64_t i = 0; i < p.bytes - 16 * c; ++i) to[i] = static_cast<uint8_t>(chunk.words[i / 4] >> (8 * (i % 4)));
    }
  }

 private:
  // Four bytes out of eight random ones.
  static GPU_FN uint32_t word(const Params& p, uint64_t bits) {
    const auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    switch (p.kind) {
      case RandomKind::f32: return gpu::float_bits(p.mean + p.deviation * normal(low));
      case RandomKind::bf16: return number_bf16(p, low) | number_bf16(p, high) << 16;
      case RandomKind::e4m3:
        return number_e4m3(p, low & 0xffffu) | number_e4m3(p, low >> 16) << 8 | number_e4m3(p, high & 0xffffu) << 16 |
               number_e4m3(p, high >> 16) << 24;
      case RandomKind::bytes: return low;
      case RandomKind::e8m0:
        return exponent(p, low & 0xffffu) | exponent(p, low >> 16) << 8 | exponent(p, high & 0xffffu) << 16 | exponent(p, high >> 16) << 24;
    }
    return 0;
  }
  // The sum of two uniform numbers, with mean 0 and deviation 1: within +-2.45.
  static GPU_FN float normal(uint32_t bits) {
    return (static_cast<float>(bits & 0xffffu) + static_cast<float>(bits >> 16) - 65535.0f) * (2.4494897f / 65536.0f);
  }
  static GPU_FN uint32_t number_bf16(const Params& p, uint32_t bits) { return gpu::to_bf16(p.mean + p.deviation * normal(bits)); }
  static GPU_FN uint32_t number_e4m3(const Params& p, uint32_t bits16) {
    const float n = (static_cast<float>(bits16 & 0xffu) + static_cast<float>(bits16 >> 8) - 255.0f) * (2.4494897f / 256.0f);
    return gpu::to_e4m3(p.mean + p.deviation * n);
  }
  // The mean and its two neighbours.
  static GPU_FN uint32_t exponent(const Params& p, uint32_t bits16) { return static_cast<uint32_t>(p.mean) + bits16 % 3u - 1u; }
};

}  // namespace ingot::kernels
