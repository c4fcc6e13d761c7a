// The work is done in groups of 32 elements held in four AVX2 registers. Rounding to a small float uses one fact: t + M, where M is 1.5 *
// 2^n with n chosen so that the last mantissa bit of M weighs one step of the small format at t's magnitude, rounds t to that step, ties to
// even, in the adder; the low bits of the sum then count steps. Twins in plain arithmetic: tensor/quantize.cc and quantize_rows_test.cc.
#include "tensor/quantize_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace ingot::tensor {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kFp8Block = 128;

// 32 consecutive elements as f32.
struct Group {
  __m256 v[4];
};

inline __m256i as_int(__m256 x) { return _mm256_castps_si256(x); }
inline __m256 as_float(__m256i x) { return _mm256_castsi256_ps(x); }
inline __m256 magnitude(__m256 x) { return _mm256_and_ps(x, as_float(_mm256_set1_epi32(0x7fffffff))); }

inline Group load_group(const float* x) {
  Group g;
  for (int i = 0; i < 4; ++i) g.v[i] = _mm256_loadu_ps(x + i * 8);
  return g;
}

inline Group load_group(const uint16_t* x) {
  Group g;
  for (int i = 0; i < 4; ++i) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * 8));
    g.v[i] = as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  return g;
}

// The first `count` (1..32) elements, then zeros: what a ragged block ends with. Zeros change no maximum, sum or count.
template <typename T>
inline Group load_group(const T* x, int64_t count) {
  if (count >= kGroup) return load_group(x);
  T padded[kGroup] = {};
  std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(T));
  return load_group(padded);
}

inline double sum_lanes(__m256d x) {
  // ((l0 + l2) + (l1 + l3)): the order that the definition of mode mse states.
  const __m128d pairs = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)));
}

inline float max_lanes(__m256 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// The error of one row or block, gathered in units of a power of two near its scale, so that f32 squares neither overflow nor vanish.
class ErrorSums {
 public:
  // Magnitudes of elements and of what they became, both in units of `unit`.
  void add(const Group& x, const Group& q, double unit) {
    __m256 signal = _mm256_setzero_ps(), noise = _mm256_setzero_ps(), worst = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      const __m256 d = _mm256_sub_ps(x.v[i], q.v[i]);
      signal = _mm256_fmadd_ps(x.v[i], x.v[i], signal);
      noise = _mm256_fmadd_ps(d, d, noise);
      worst = _mm256_max_ps(magnitude(d), worst);
    }
    const __m256d square = _mm256_set1_pd(unit * unit);
    signal_ = _mm256_fmadd_pd(widened_sum(signal), square, signal_);
    noise_ = _mm256_fmadd_pd(widened_sum(noise), square, noise_);
    worst_ = _mm256_max_ps(_mm256_mul_ps(worst, _mm256_set1_ps(static_cast<float>(unit))), worst_);
  }
  // x: the elements themselves; q: what they became, in any unit.
  void count_zeroed(const Group& x, const Group& q) {
    const __m256 zero = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      const __m256 lost = _mm256_and_ps(_mm256_cmp_ps(q.v[i], zero, _CMP_EQ_OQ), _mm256_cmp_ps(x.v[i], zero, _CMP_NEQ_UQ));
      zeroed_ = _mm256_sub_epi32(zeroed_, as_int(lost));
    }
  }
  // Elements of x beyond +-limit.
  void count_saturated(const Group& x, float limit) {
    for (const __m256& v : x.v) {
      saturated_ = _mm256_sub_epi32(saturated_, as_int(_mm256_cmp_ps(magnitude(v), _mm256_set1_ps(limit), _CMP_GT_OQ)));
    }
  }
  void add_to(QuantError& error, int64_t elements) const {
    error.add({sum_lanes(signal_), sum_lanes(noise_), max_lanes(worst_), elements, sum_counts(saturated_), sum_counts(zeroed_)});
  }

 private:
  static __m256d widened_sum(__m256 x) {
    return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }

  static int64_t sum_counts(__m256i counts) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), counts);
    return std::accumulate(lanes, lanes + 8, int64_t{0});
  }

  __m256d signal_ = _mm256_setzero_pd(), noise_ = _mm256_setzero_pd();
  __m256 worst_ = _mm256_setzero_ps();
  __m256i saturated_ = _mm256_setzero_si256(), zeroed_ = _mm256_setzero_si256();  // an eighth of a row or band: far below 2^31
};

// A small float's rounding: magnitude `least` starts its first full binade, `largest` is its greatest value, kMantissa its mantissa bits.
template <int kMantissa, int kLeastExponent>
struct SmallFloat {
  // Steps counted from zero, which is the code without its sign; `value` is what the code stands for.
  struct Rounded {
    __m256i code;
    __m256 value;
  };
  static Rounded round(__m256 magnitude, float largest) {
    constexpr int kLeastBits = (kLeastExponent + 127) << 23;
    // NaN becomes `largest`: min gives its second operand then.
    const __m256 t = _mm256_min_ps(magnitude, _mm256_set1_ps(largest));
    const __m256i binade = _mm256_max_epi32(_mm256_and_si256(as_int(t), _mm256_set1_epi32(0x7f800000)), _mm256_set1_epi32(kLeastBits));
    const __m256i magic = _mm256_add_epi32(binade, _mm256_set1_epi32(((23 - kMantissa) << 23) + 0x400000));
    const __m256 sum = _mm256_add_ps(t, as_float(magic));
    const __m256i steps = _mm256_sub_epi32(as_int(sum), magic);
    const __m256i binades = _mm256_sub_epi32(_mm256_srli_epi32(binade, 23 - kMantissa), _mm256_set1_epi32(kLeastBits >> (23 - kMantissa)));
    return {_mm256_add_epi32(steps, binades), _mm256_sub_ps(sum, as_float(magic))};
  }
};
using E2m1 = SmallFloat<1, 0>;
using E4m3 = SmallFloat<3, -6>;
constexpr float kE2m1Largest = 6, kE4m3Largest = 448;

// The four registers' integers, each within a signed byte, as 32 bytes in the order that packing leaves: bytes 4i..4i+3 of the low half
// are the first four of register i, those of the high half its last four.
inline __m256i pack_bytes(const __m256i (&v)[4]) {
  return _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
}

// 0x80 in each byte whose element is negative (-0 too): saturating packs keep a sign.
inline __m256i pack_signs(const Group& x) {
  const __m256i bits[4] = {as_int(x.v[0]), as_int(x.v[1]), as_int(x.v[2]), as_int(x.v[3])};
  return _mm256_and_si256(pack_bytes(bits), _mm256_set1_epi8(static_cast<char>(0x80)));
}

// 2^(127 - scale) as f32: exact to divide by a block's scale with, subnormal for 254 and 255.
inline float inverse_scale(int scale) {
  return std::bit_cast<float>(scale < 254 ? static_cast<uint32_t>(254 - scale) << 23 : 0x00800000u >> (scale - 253));
}

inline double power_of_two(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

// The largest magnitude of the group as bits: as integers, infinity exceeds the finite values and NaNs exceed infinity.
inline uint32_t largest_bits(const Group& x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (const __m256& v : x.v) most = _mm256_max_epi32(most, _mm256_and_si256(as_int(v), mask));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// The scale byte whose power of two is that of amax, carried up from a mantissa on, minus 2: `carry` is what that mantissa lacks to 2.
// floor: never; even: from 1.75; ceil: above 1.5, since 6 is 1.5 * 2^2.
constexpr uint32_t kCarryFloor = 0, kCarryEven = 0x00200000, kCarryCeil = 0x003fffff;
inline int scale_of(uint32_t amax_bits, uint32_t carry) { return std::max(static_cast<int>((amax_bits + carry) >> 23) - 2, 0); }

// The squared error, in units of the scale, that scale byte `scale` gives: the sum over four lanes of doubles, lane j holding elements
// j, j + 4, ... in order. A difference of an f32 from its neighbour in e2m1 is exact in f32, its square is exact in double.
inline double squared_error(const Group& x, const float* importance, int scale) {
  const __m256 inverse = _mm256_set1_ps(inverse_scale(scale));
  __m256d sum = _mm256_setzero_pd();
  for (int i = 0; i < 4; ++i) {
    const __m256 y = _mm256_mul_ps(magnitude(x.v[i]), inverse);
    const __m256 d = _mm256_sub_ps(y, E2m1::round(y, kE2m1Largest).value);
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(d)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(d, 1));
    if (importance == nullptr) {
      sum = _mm256_fmadd_pd(high, high, _mm256_fmadd_pd(low, low, sum));
    } else {
      const __m256d w_low = _mm256_cvtps_pd(_mm_loadu_ps(importance + i * 8)),
                    w_high = _mm256_cvtps_pd(_mm_loadu_ps(importance + i * 8 + 4));
      sum = _mm256_add_pd(sum, _mm256_mul_pd(w_low, _mm256_mul_pd(low, low)));
      sum = _mm256_add_pd(sum, _mm256_mul_pd(w_high, _mm256_mul_pd(high, high)));
    }
  }
  return sum_lanes(sum);
}

// Of the candidates even - 2 .. even + 1 two need no trying. In units of even's scale amax is below 7, where every value of even + 1's grid
// (0, 1, 2, 3, 4, 6) is also in even's: it is never nearer. And even - 2 ends at 1.5: it loses at least 3.75 on amax, and can win at most
// 1/16 on each of 31 others, so that it needs unequal weights.
int least_error_scale(const Group& x, const float* importance, int even) {
  int best = even;
  double least = squared_error(x, importance, even);
  for (int step = importance == nullptr ? -1 : -2; step < 0; ++step) {  // a tie keeps `even`, then the smaller
    if (even + step < 0) continue;
    const double error = squared_error(x, importance, even + step) * power_of_two(2 * step);  // to the units of `even`
    if (error < least) {
      least = error;
      best = even + step;
    }
  }
  return best;
}

inline int choose_scale(const Group& x, ScaleMode mode, const float* importance) {
  const uint32_t amax = largest_bits(x);
  if (amax > 0x7f800000u) return 255;
  switch (mode) {
    case ScaleMode::even: return scale_of(amax, kCarryEven);
    case ScaleMode::floor: return scale_of(amax, kCarryFloor);
    case ScaleMode::ceil: return scale_of(amax, kCarryCeil);
    case ScaleMode::mse: return least_error_scale(x, importance, scale_of(amax, kCarryEven));
  }
  INGOT_CHECK(false, "scale mode {}", static_cast<int>(mode));
  return 255;
}

// 32 codes as 16 bytes.
inline void store_e2m1(const __m256i (&code)[4], const Group& x, uint8_t* out) {
  const __m256i magnitudes = pack_bytes(code);
  // 0x80 to 8; nothing crosses a byte, the other bits are zero. No sign for zeros: Quark writes no minus zero.
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(pack_signs(x), 4), _mm256_cmpgt_epi8(magnitudes, _mm256_setzero_si256()));
  const __m256i nibbles = _mm256_or_si256(magnitudes, sign);
  const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));  // even byte + 16 * odd byte
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(bytes, order));
}

template <bool kError, typename T>
void quantize_row(const T* x, int64_t cols, ScaleMode mode, const float* importance, uint8_t* codes, uint8_t* scales, QuantError* error) {
  INGOT_CHECK(cols % kGroup == 0, "MXFP4 needs columns in multiples of 32, found {}", cols);
  ErrorSums sums;
  for (int64_t c = 0; c < cols; c += kGroup) {
    const Group g = load_group(x + c);
    const int scale = choose_scale(g, mode, importance == nullptr ? nullptr : importance + c);
    scales[c / kGroup] = static_cast<uint8_t>(scale);
    const __m256 inverse = _mm256_set1_ps(inverse_scale(scale));
    Group y, q;
    __m256i code[4];
    for (int i = 0; i < 4; ++i) {
      y.v[i] = _mm256_mul_ps(magnitude(g.v[i]), inverse);
      const E2m1::Rounded r = E2m1::round(y.v[i], kE2m1Largest);
      code[i] = r.code;
      q.v[i] = r.value;
    }
    store_e2m1(code, g, codes + c / 2);
    if constexpr (kError) {
      sums.add(y, q, power_of_two(scale - 127));
      sums.count_zeroed(g, q);
      sums.count_saturated(y, kE2m1Largest);
    }
  }
  if constexpr (kError) sums.add_to(*error, cols);
}

template <typename T>
float block_amax(const T* x, int64_t rows, int64_t width, int64_t stride) {
  __m256 most = _mm256_setzero_ps();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; c += kGroup) {
      const Group g = load_group(x + r * stride + c, width - c);
      for (const __m256& v : g.v) most = _mm256_max_ps(magnitude(v), most);  // in this order a NaN is passed over
    }
  }
  return max_lanes(most);
}

inline void store_e4m3(const __m256i (&code)[4], const Group& x, uint8_t* out, int64_t count) {
  const __m256i bytes = _mm256_or_si256(pack_bytes(code), pack_signs(x));
  const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if (count >= kGroup) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), ordered);
  } else {
    uint8_t all[kGroup];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(all), ordered);
    std::memcpy(out, all, static_cast<size_t>(count));
  }
}

template <bool kError, typename T>
void quantize_band(const T* x, int64_t rows, int64_t cols, uint8_t* out, float* scales, QuantError* error) {
  INGOT_CHECK(rows >= 1 && rows <= kFp8Block, "a band has 1 to 128 rows, found {}", rows);
  ErrorSums sums;
  for (int64_t begin = 0; begin < cols; begin += kFp8Block) {
    const int64_t width = std::min(kFp8Block, cols - begin);
    float scale = block_amax(x + begin, rows, width, cols) / kE4m3Largest;
    if (scale == 0) scale = 1;  // a zero block, or one too small for any scale: its values become zero instead of NaN
    scales[begin / kFp8Block] = scale;
    const __m256 divisor = _mm256_set1_ps(scale);
    // The power of two below the scale, for the error's units; the least normal number stands in for a subnormal scale.
    const int exponent = std::clamp(static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23), 1, 253);
    const double unit = power_of_two(exponent - 127);
    const __m256 inverse_unit = _mm256_set1_ps(inverse_scale(exponent));
    const float limit = static_cast<float>(static_cast<double>(scale) * kE4m3Largest * (1 + 0x1p-22));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; c += kGroup) {
        const int64_t count = width - c;
        const Group g = load_group(x + r * cols + begin + c, count);
        Group v;
        Group q;
        __m256i code[4];
        for (int i = 0; i < 4; ++i) {
          v.v[i] = _mm256_div_ps(g.v[i], divisor);
          const E4m3::Rounded rounded = E4m3::round(magnitude(v.v[i]), kE4m3Largest);
          // NaN came out as 448, 0x7e; its code is 0x7f.
          const __m256i nan = as_int(_mm256_cmp_ps(v.v[i], v.v[i], _CMP_UNORD_Q));
          code[i] = _mm256_or_si256(rounded.code, _mm256_and_si256(nan, _mm256_set1_epi32(1)));
          q.v[i] = rounded.value;
        }
        store_e4m3(code, v, out + r * cols + begin + c, count);
        if constexpr (kError) {
          sums.count_zeroed(g, q);
          sums.count_saturated(g, limit);
          Group a;
          for (int i = 0; i < 4; ++i) {
            a.v[i] = _mm256_mul_ps(magnitude(g.v[i]), inverse_unit);
            q.v[i] = _mm256_mul_ps(_mm256_mul_ps(q.v[i], divisor), inverse_unit);
          }
          sums.add(a, q, unit);
        }
      }
    }
  }
  if constexpr (kError) sums.add_to(*error, rows * cols);
}

}  // namespace

void QuantError::add(const QuantError& other) {
  signal += other.signal;
  noise += other.noise;
  max_error = std::max(max_error, other.max_error);
  elements += other.elements;
  saturated += other.saturated;
  zeroed += other.zeroed;
}

double QuantError::sqnr_db() const { return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise); }

void quantize_row_mxfp4(const float* x, int64_t cols, ScaleMode mode, const float* importance, uint8_t* codes, uint8_t* scales,
                        QuantError* error) {
  if (error != nullptr) {
    quantize_row<true>(x, cols, mode, importance, codes, scales, error);
  } else {
    quantize_row<false>(x, cols, mode, importance, codes, scales, error);
  }
}

void quantize_row_mxfp4_bf16(const uint16_t* x, int64_t cols, ScaleMode mode, uint8_t* codes, uint8_t* scales, QuantError* error) {
  if (error != nullptr) {
    quantize_row<true>(x, cols, mode, nullptr, codes, scales, error);
  } else {
    quantize_row<false>(x, cols, mode, nullptr, codes, scales, error);
  }
}

void quantize_band_fp8(const float* x, int64_t rows, int64_t cols, uint8_t* out, float* scales, QuantError* error) {
  if (error != nullptr) {
    quantize_band<true>(x, rows, cols, out, scales, error);
  } else {
    quantize_band<false>(x, rows, cols, out, scales, error);
  }
}

void quantize_band_fp8_bf16(const uint16_t* x, int64_t rows, int64_t cols, uint8_t* out, float* scales, QuantError* error) {
  if (error != nullptr) {
    quantize_band<true>(x, rows, cols, out, scales, error);
  } else {
    quantize_band<false>(x, rows, cols, out, scales, error);
  }
}

int64_t first_non_finite(const float* x, int64_t count) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff), finite = _mm256_set1_epi32(0x7f7fffff);
  int64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    const Group g = load_group(x + i);
    __m256i bad = _mm256_setzero_si256();
    for (const __m256& v : g.v) bad = _mm256_or_si256(bad, _mm256_cmpgt_epi32(_mm256_and_si256(as_int(v), mask), finite));
    if (_mm256_testz_si256(bad, bad) == 0) break;  // the loop below says which
  }
  for (; i < count; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return -1;
}

int64_t first_non_finite_bf16(const uint16_t* x, int64_t count) {
  const __m256i mask = _mm256_set1_epi16(0x7fff), finite = _mm256_set1_epi16(0x7f7f);
  int64_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    const __m256i a = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), mask);
    const __m256i b = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + 16)), mask);
    const __m256i bad = _mm256_cmpgt_epi16(_mm256_max_epi16(a, b), finite);
    if (_mm256_testz_si256(bad, bad) == 0) break;
  }
  for (; i < count; ++i) {
    if ((x[i] & 0x7fffu) > 0x7f7fu) return i;
  }
  return -1;
}

}  // namespace ingot::tensor
