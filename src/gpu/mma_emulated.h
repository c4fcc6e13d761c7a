// The instructions of mma.h in the emulator: every lane publishes its fragments, lane 0 puts the matrices together by the instruction's own
// tables and multiplies them, every lane takes its part of the result. Included by mma.h alone.
//
// The lanes meet at a shuffle, which does not order memory for ThreadSanitizer, so the words go through relaxed atomics: what is judged is
// the kernel's memory and not this exchange.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/mma.h"
#include "gpu/numbers.h"

namespace ingot::gpu {

// The value of an operand's code.
inline float matrix_number_value(MatrixNumber type, uint32_t code) {
  switch (type) {
    case MatrixNumber::bf16: return bf16_value(static_cast<uint16_t>(code));
    case MatrixNumber::e4m3: return e4m3_value(static_cast<uint8_t>(code));
    case MatrixNumber::e4m3_fnuz: {
      if (code == 0x80u) return bits_float(0x7fc00000u);
      const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;  // 0: steps of 2^-10; else (1 + mantissa / 8) 2^(exponent - 8)
      const float v = static_cast<float>(exponent == 0u ? mantissa : (8u + mantissa) << (exponent - 1u)) * 0x1p-10f;
      return (code & 0x80u) != 0u ? -v : v;
    }
    case MatrixNumber::e2m1: return e2m1_value(code);
  }
  return 0.0f;
}

// The i-th number of packed words.
inline uint32_t packed_code(const uint32_t* words, int bits, int i) {
  const int per_word = 32 / bits;
  return words[i / per_word] >> (i % per_word * bits) & ((1u << bits) - 1u);
}

// Numbers along K that share a scale: all of an instruction without scales.
template <class I>
constexpr int scale_block() {
  if constexpr (I::kScaled)
    return I::kScaleBlock;
  else
    return I::kK;
}

// What the lanes of the running block show each other. The emulator runs a whole grid on one OS thread.
struct EmulatedFragments {
  static constexpr int kMaxThreads = 1024, kMaxWords = 8;
  struct Lane {
    uint32_t a[kMaxWords], b[kMaxWords];
    uint32_t c[4];
    uint32_t scales;  // A's in byte 0, B's in byte 1
  };
  Lane lanes[kMaxThreads];
};
inline thread_local EmulatedFragments emulated_fragments;

inline void show_word(uint32_t& place, uint32_t value) { __atomic_store_n(&place, value, __ATOMIC_RELAXED); }
inline uint32_t see_word(const uint32_t& place) { return __atomic_load_n(&place, __ATOMIC_RELAXED); }

// Lane 0's work: all operands from `shown`, D into shown[].c. Floats hold every operand exactly; they lie on the fiber's stack, since
// anything that warps share would be judged as their race.
template <class I>
void multiply_shown(EmulatedFragments::Lane* shown) {
  float a[I::kM][I::kK], b[I::kK][I::kN];
  for (int lane = 0; lane < I::lanes; ++lane) {
    uint32_t words[EmulatedFragments::kMaxWords];
    for (size_t w = 0; w < sizeof(typename I::A) / 4; ++w) words[w] = see_word(shown[lane].a[w]);
    for (int i = 0; i < I::kANumbers; ++i) {
      const Place p = I::a(lane, i);
      a[p.row][p.col] = matrix_number_value(I::kAType, packed_code(words, matrix_number_bits(I::kAType), i));
    }
    for (size_t w = 0; w < sizeof(typename I::B) / 4; ++w) words[w] = see_word(shown[lane].b[w]);
    for (int i = 0; i < I::kBNumbers; ++i) {
      const Place p = I::b(lane, i);
      b[p.row][p.col] = matrix_number_value(I::kBType, packed_code(words, matrix_number_bits(I::kBType), i));
    }
  }
  constexpr int kBlock = scale_block<I>();
  double a_scale[I::kM][I::kK / kBlock], b_scale[I::kK / kBlock][I::kN];
  if constexpr (I::kScaled) {
    for (int lane = 0; lane < I::lanes; ++lane) {
      const uint32_t scales = see_word(shown[lane].scales);
      const Place at = I::a_scale(lane), bt = I::b_scale(lane);
      a_scale[at.row][at.col] = static_cast<double>(e8m0_value(static_cast<uint8_t>(scales)));
      b_scale[bt.row][bt.col] = static_cast<double>(e8m0_value(static_cast<uint8_t>(scales >> 8)));
    }
  }
  for (int lane = 0; lane < I::lanes; ++lane) {
    for (int i = 0; i < I::kAccumulators; ++i) {
      const Place p = I::c(lane, i);
      double sum = static_cast<double>(bits_float(see_word(shown[lane].c[i])));
      for (int first = 0; first < I::kK; first += kBlock) {
        double part = 0.0;
        for (int k = first; k < first + kBlock; ++k) part += static_cast<double>(a[p.row][k]) * static_cast<double>(b[k][p.col]);
        if constexpr (I::kScaled) part *= a_scale[p.row][first / kBlock] * b_scale[first / kBlock][p.col];
        sum += part;
      }
      show_word(shown[lane].c[i], float_bits(static_cast<float>(sum)));
    }
  }
}

template <class G, class I>
void issue_mma(G& g, I, typename I::C& c, const typename I::A& a, const typename I::B& b, uint8_t a_scale = 127, uint8_t b_scale = 127) {
  EmulatedFragments::Lane& mine = emulated_fragments.lanes[g.thread()];
  for (int w = 0; w < static_cast<int>(sizeof a / 4); ++w) show_word(mine.a[w], a.v[w]);
  for (int w = 0; w < static_cast<int>(sizeof b / 4); ++w) show_word(mine.b[w], b.v[w]);
  for (int i = 0; i < I::kAccumulators; ++i) show_word(mine.c[i], float_bits(c.v[i]));
  show_word(mine.scales, a_scale | static_cast<uint32_t>(b_scale) << 8);
  g.shfl_xor(0u, 0);  // all have shown
  if (g.lane() == 0) multiply_shown<I>(&emulated_fragments.lanes[g.warp() * I::lanes]);
  g.shfl_xor(0u, 0);  // the product is there
  for (int i = 0; i < I::kAccumulators; ++i) c.v[i] = bits_float(see_word(mine.c[i]));
}

}  // namespace ingot::gpu
