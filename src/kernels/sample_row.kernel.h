// What the kernels of the die share: one block looks at one row of logits, as long as a vocabulary. Sums are integers: weights of at most 1
// in fixed point, so that a sum has one value whatever the order, the lanes or the luck of atomics, and a histogram of masses is as exact
// as one of counts. The host's sampler adds doubles instead: a draw differs from its own where a random number falls within the rounding of
// either (sample_test.cc counts how often).
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "kernels/params.h"

namespace ingot::kernels {

using Mass = unsigned long long;  // the 64-bit type that all vendors' atomics know

// A longer row gives a thread more to do, and the GPU enough rows at once: three blocks fit on a multiprocessor.
inline constexpr int kRowThreads = 512;

struct RowShared {
  static constexpr int kBins = 2048;  // 11 bits: a byte would put all logits of one sign and some 30 binary orders into the same few
  static constexpr int kPieces = 16;
  Mass bins[kBins];
  Mass pieces[kPieces];
  uint64_t best[kRowThreads / 32];  // one a warp
  Mass left;
  int32_t piece;
};

// e^x for x <= 0: x = k ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series to the 13th power (the remainder is below 2^-55), 2^k by
// its exponent bits. Below -708 it is 0. The method of the host's sampler (exec/sampler.cc), since no two libraries round alike.
GPU_FN double exp_of_negative(double x) {
  constexpr double kLog2e = 1.4426950408889634074;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;  // so that k * high is exact
  if (!(x >= -708.0)) return 0.0;
  const auto k = static_cast<int64_t>(x * kLog2e - 0.5);
  const double r = (x - static_cast<double>(k) * kLn2High) - static_cast<double>(k) * kLn2Low;
  double series = 1.0 / 6227020800.0;
  series = series * r + 1.0 / 479001600.0;
  series = series * r + 1.0 / 39916800.0;
  series = series * r + 1.0 / 3628800.0;
  series = series * r + 1.0 / 362880.0;
  series = series * r + 1.0 / 40320.0;
  series = series * r + 1.0 / 5040.0;
  series = series * r + 1.0 / 720.0;
  series = series * r + 1.0 / 120.0;
  series = series * r + 1.0 / 24.0;
  series = series * r + 1.0 / 6.0;
  series = series * r + 0.5;
  series = series * r + 1.0;
  series = series * r + 1.0;
  return series * __builtin_bit_cast(double, static_cast<uint64_t>(k + 1023) << 52);
}

// Binary places of a mass: as many as leave room for the sum of `count` ones.
GPU_FN int mass_bits(int64_t count) {
  int bits = 62;
  for (; count > 0; count /= 2) --bits;
  return bits;
}
GPU_FN Mass mass_of(double weight, int bits) { return static_cast<Mass>(weight * static_cast<double>(Mass{1} << bits) + 0.5); }

// gpu::ordered_bits back to a float; 0 comes back as +0.
GPU_FN float float_of_key(uint32_t key) { return gpu::bits_float((key >> 31) != 0u ? key & 0x7fffffffu : ~key); }

// The greatest logit first, the smaller id of equal ones.
GPU_FN uint64_t rank_of(float logit, int64_t id) {
  return static_cast<uint64_t>(gpu::ordered_bits(logit)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
GPU_FN int64_t id_of_rank(uint64_t rank) { return static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(rank)); }

// Whether a row can be drawn from.
struct RowCheck {
  int32_t likeliest = -1;  // -1: it cannot
  int32_t bad_id = -1;     // the first that is NaN or +infinity; -1: all are -infinity
};

template <class G>
GPU_FN RowCheck check_row(G& g, RowShared& s, const float* logits, int64_t count) {
  uint64_t best = 0, bad = 0;
  for (int64_t i = g.thread(); i < count; i += g.threads()) {
    const float logit = logits[i];
    const uint64_t rank = rank_of(logit, i);
    best = rank > best ? rank : best;
    const bool number = (gpu::float_bits(logit) & 0x7fffffffu) < 0x7f800000u || gpu::float_bits(logit) == 0xff800000u;
    if (!number && bad == 0) bad = static_cast<uint64_t>(count - i);  // the first of this thread
  }
  best = gpu::block_max(g, s.best, best);
  bad = gpu::block_max(g, s.best, bad);
  RowCheck check;
  if (bad > 0) {
    check.bad_id = static_cast<int32_t>(count - static_cast<int64_t>(bad));
  } else if (const int64_t id = id_of_rank(best); gpu::float_bits(logits[id]) != 0xff800000u) {
    check.likeliest = static_cast<int32_t>(id);
  }
  return check;
}

struct Place {
  int64_t index;
  Mass left;  // of the target, when what comes before is taken off
};

// The smallest i with term(0) + ... + term(i) > target(total): the piece of 16 that holds it, the piece of that piece, and so on, so that
// only the first round reads the whole row. target(total) must be less than the total.
template <class G, class Term, class Target>
GPU_FN Place place_of(G& g, RowShared& s, int64_t count, Term term, Target target) {
  int64_t begin = 0, end = count;
  Mass left = 0;
  bool whole = true;
  do {
    const int64_t part = (end - begin + RowShared::kPieces - 1) / RowShared::kPieces;
    g.sync();  // all have read what the round before left
    for (int piece = g.warp(); piece < RowShared::kPieces; piece += g.warps()) {
      const int64_t first = begin + piece * part, last = first + part < end ? first + part : end;
      Mass sum = 0;
      for (int64_t i = first + g.lane(); i < last; i += G::lanes) sum += term(i);
      for (int mask = G::lanes / 2; mask > 0; mask /= 2) sum += g.shfl_xor(sum, mask);
      if (g.lane() == 0) s.pieces[piece] = sum;
    }
    g.sync();
    if (g.thread() == 0) {
      if (whole) {
        Mass total = 0;
        for (int piece = 0; piece < RowShared::kPieces; ++piece) total += s.pieces[piece];
        left = target(total);
      }
      int piece = 0;
      while (left >= s.pieces[piece]) left -= s.pieces[piece++];
      s.piece = piece;
      s.left = left;
    }
    g.sync();
    left = s.left;
    begin += s.piece * part;
    end = begin + part < end ? begin + part : end;
    whole = false;
  } while (end - begin > RowShared::kPieces);
  for (;; ++begin) {
    const Mass own = term(begin);
    if (own > left) return {begin, left};
    left -= own;
  }
}

struct Cut {
  uint32_t key;  // ordered_bits of the least likely logit that is needed
  Mass left;     // what those of this key must add to those above it; at least 1
};

// The fewest of the likeliest logits whose worths sum to at least wanted(total), which is between 1 and the total. Three histograms of
// worths find the last one's key, 11, 11 and 10 bits.
template <class G, class Worth, class Wanted>
GPU_FN Cut cut_row(G& g, RowShared& s, const float* logits, int64_t count, Worth worth, Wanted wanted) {
  uint32_t prefix = 0, mask = 0;
  Mass left = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const uint32_t digit = shift == 0 ? 1023u : 2047u;
    g.sync();  // all have read the bins
    for (int i = g.thread(); i < RowShared::kBins; i += g.threads()) s.bins[i] = 0;
    g.sync();
    for (int64_t i = g.thread(); i < count; i += g.threads()) {
      const uint32_t key = gpu::ordered_bits(logits[i]);
      if ((key & mask) != prefix) continue;
      if (const Mass own = worth(i); own > 0) g.block_add(&s.bins[(key >> shift) & digit], own);
    }
    const Place place = place_of(
        g, s, RowShared::kBins, [&](int64_t i) { return s.bins[RowShared::kBins - 1 - i]; },
        [&](Mass total) { return (mask == 0 ? wanted(total) : left) - 1; });
    left = place.left + 1;
    prefix |= static_cast<uint32_t>(RowShared::kBins - 1 - place.index) << shift;
    mask |= digit << shift;
  }
  return {prefix, left};
}

}  // namespace ingot::kernels
