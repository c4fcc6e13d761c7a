// The vocabulary of kernels, and the only file that knows which compiler is at work: no vendor's name stands anywhere else but in
// src/gpu and src/kernels/native. A kernel is a struct
//
//   struct K { using Params = ...; struct Shared {...}; template <class G> GPU_FN void operator()(G& g, Shared& s, const Params& p) const;
//   };
//
// G is one thread's view of the machine: emu::Thread<32 or 64> (emu.h), cpu::Thread (cpu.h), later the devices. It has
//   lanes                     width of a warp, known at compile time; 1 on the CPU, where a block is one thread
//   block() thread() threads() lane() warp() warps()
//   sync()                    all threads of the block arrive before any leaves; orders memory. Every thread must reach it
//   shfl_xor(v, mask)         the v of lane ^ mask. Every lane of the warp must reach it; it does not order memory
//   block_add(p, v)           *p += v, atomic among the threads of this block
//   exp rsqrt sin cos         float mathematics; angles reach a million radians, so sin and cos need a true range reduction
//
// Sums keep one order on every machine (see kStrips), so a kernel gives the same bits on 32 lanes, on 64 and on the CPU, as the
// tests demand. A GPU's own exp and fused multiply-adds then differ in the last bits, and in nothing else.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GPU_FN __device__ inline __attribute__((always_inline))
#elif defined(__HIP__)
#define GPU_FN __attribute__((device)) __attribute__((always_inline)) inline
#else
#define GPU_FN inline
#endif

namespace ingot::gpu {

// A long sum is kept as this many partial sums, number i holding the terms k with k % kStrips == i in rising order of k, which are
// then added in halves: (0..31) + (32..63), and so on. That is what 64 lanes do by nature; narrower machines give a lane several.
inline constexpr int kStrips = 64;

GPU_FN uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
GPU_FN float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The reductions below leave the result in every lane (thread) and must be reached by all of them.

template <class G>
GPU_FN float warp_sum(G& g, float v) {
  for (int mask = G::lanes / 2; mask > 0; mask /= 2) v += g.shfl_xor(v, mask);
  return v;
}

template <class G, class T>
GPU_FN T warp_max(G& g, T v) {
  for (int mask = G::lanes / 2; mask > 0; mask /= 2) {
    const T other = g.shfl_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

// term(0) + ... + term(count - 1), by one warp. The order depends on count alone.
template <class G, class Term>
GPU_FN float warp_total(G& g, int64_t count, Term term) {
  constexpr int kOwn = kStrips / G::lanes;
  float part[kOwn] = {};
  const int64_t full = count / kStrips * kStrips;
  for (int64_t first = 0; first < full; first += kStrips) {
    for (int j = 0; j < kOwn; ++j) part[j] += term(first + j * G::lanes + g.lane());
  }
  for (int j = 0; j < kOwn; ++j) {
    const int64_t i = full + j * G::lanes + g.lane();
    if (i < count) part[j] += term(i);
  }
  for (int half = kOwn / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) part[j] += part[j + half];
  }
  return warp_sum(g, part[0]);
}

// The greatest of term(0..count-1) and `lowest`, by one warp. A NaN term is passed over.
template <class G, class T, class Term>
GPU_FN T warp_greatest(G& g, int64_t count, T lowest, Term term) {
  T best = lowest;
  for (int64_t i = g.lane(); i < count; i += G::lanes) {
    const T v = term(i);
    best = v > best ? v : best;
  }
  return warp_max(g, best);
}

// term(0) + ... + term(count - 1), by a block of kThreads. `scratch` may have been used before: the first barrier waits for its
// readers. The order depends on count and kThreads alone.
template <int kThreads, class G, class Term>
GPU_FN float block_total(G& g, float (&scratch)[kThreads], int64_t count, Term term) {
  constexpr int kOwn = G::lanes == 1 ? kThreads : 1;  // the CPU's one thread stands for all of them
  float part[kOwn] = {};
  const int64_t full = count / kThreads * kThreads;
  int64_t first = 0;
  if constexpr (kOwn == 1) {
    constexpr int kAhead = 8;  // terms that are under way together
    for (; first + kAhead * kThreads <= full; first += kAhead * kThreads) {
      float ahead[kAhead];
      for (int j = 0; j < kAhead; ++j) ahead[j] = term(first + j * kThreads + g.thread());
      for (int j = 0; j < kAhead; ++j) part[0] += ahead[j];
    }
  }
  for (; first < full; first += kThreads) {
    for (int j = 0; j < kOwn; ++j) part[j] += term(first + g.thread() + j);
  }
  for (int j = 0; j < kOwn; ++j) {
    const int64_t i = full + g.thread() + j;
    if (i < count) part[j] += term(i);
  }
  g.sync();
  for (int j = 0; j < kOwn; ++j) scratch[g.thread() + j] = part[j];
  g.sync();
  return warp_total(g, kThreads, [&](int64_t i) { return scratch[i]; });
}

// The greatest `v` of the block. `scratch` holds one value a warp and may have been used before.
template <class G, class T>
GPU_FN T block_max(G& g, T* scratch, T v) {
  v = warp_max(g, v);
  g.sync();
  if (g.lane() == 0) scratch[g.warp()] = v;
  g.sync();
  T best = scratch[0];
  for (int w = 1; w < g.warps(); ++w) best = scratch[w] > best ? scratch[w] : best;
  return best;
}

}  // namespace ingot::gpu
