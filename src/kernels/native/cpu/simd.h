// Eight-lane f32 vocabulary of the native CPU kernels: loads that widen a storage type exactly, sums in one fixed order, exp.
// Used only inside native/cpu. Every function gives the same bits for the same numbers whatever surrounds it: the batch
// invariance of the kernels above rests on that. AVX2 and FMA are the floor of the whole build (cmake/toolchain.cmake).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ingot::kernels::native {

using F32x8 = __m256;

inline F32x8 zero8() { return _mm256_setzero_ps(); }
inline F32x8 set8(float v) { return _mm256_set1_ps(v); }
inline F32x8 fma8(F32x8 a, F32x8 b, F32x8 c) { return _mm256_fmadd_ps(a, b, c); }

// All-ones in the first n lanes, n in 0..8.
inline __m256i first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

inline F32x8 load8(const float* p) { return _mm256_loadu_ps(p); }
// Each lane of the doubled 16 bytes sends its four numbers to the upper halves of four floats: one shuffle, where zero extension and
// a shift are two, and the shuffle ports are what a product of few rows waits for.
inline F32x8 load8(const uint16_t* bf16) {
  const __m256i spread = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                          -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16)));
  return _mm256_castsi256_ps(_mm256_shuffle_epi8(twice, spread));
}

// The same without the register that the shuffle's pattern takes, for loops that use all the others.
inline F32x8 load8_tight(const float* p) { return load8(p); }
inline F32x8 load8_tight(const uint16_t* bf16) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// The same number, held in a register: the compiler may not load it again for a second use. The tiles are bound by loads.
inline F32x8 in_register(F32x8 v) {
  __asm__("" : "+x"(v));
  return v;
}

// The first n (< 8) elements, the other lanes zero. Touches no byte beyond them.
inline F32x8 load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline F32x8 load_part(const uint16_t* bf16, int64_t n) {
  uint16_t padded[8] = {};
  std::memcpy(padded, bf16, static_cast<size_t>(n) * sizeof(uint16_t));
  return load8(padded);
}
inline void store_part(float* p, F32x8 v, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), v); }

// E4M3 (OCP): sign, 4 exponent bits of bias 7, 3 mantissa bits. Shifted into place they are the number times 2^-120, subnormals
// included, so one multiplication by a power of two is exact. Magnitude 0x7f is NaN.
inline F32x8 widen_e4m3(__m128i eight_bytes) {
  const __m256i code = _mm256_cvtepu8_epi32(eight_bytes);
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7f), code), 24);
  const F32x8 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), set8(0x1p120f));
  const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)), 1);
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_or_si256(_mm256_castps_si256(value), sign), nan));
}

// The sum of the lanes as ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7)): one tree for every caller.
inline __m128 sum_lanes4(F32x8 a, F32x8 b, F32x8 c, F32x8 d) {
  const F32x8 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}
inline float sum_lanes(F32x8 a) { return _mm_cvtss_f32(sum_lanes4(a, a, a, a)); }

inline float max_lanes(F32x8 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// e^x within 2 ulp for x in [-87, 88]; 0 below (-inf too), e^88 above. x = n ln2 + r, |r| <= ln2/2, and the Taylor polynomial of
// degree 7 in r, whose remainder is under 6e-9 of the value.
inline F32x8 exp8(F32x8 x) {
  const F32x8 low = set8(-87.0f);
  const F32x8 dead = _mm256_cmp_ps(x, low, _CMP_LT_OQ);
  const F32x8 v = _mm256_min_ps(set8(88.0f), _mm256_max_ps(low, x));
  const F32x8 n = _mm256_round_ps(_mm256_mul_ps(v, set8(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln2 in two parts: the high one has 9 trailing zero bits, so n * high is exact.
  F32x8 r = fma8(n, set8(-0.693359375f), v);
  r = fma8(n, set8(2.12194440e-4f), r);
  F32x8 p = set8(1.0f / 5040);
  p = fma8(p, r, set8(1.0f / 720));
  p = fma8(p, r, set8(1.0f / 120));
  p = fma8(p, r, set8(1.0f / 24));
  p = fma8(p, r, set8(1.0f / 6));
  p = fma8(p, r, set8(0.5f));
  p = fma8(p, r, set8(1.0f));
  p = fma8(p, r, set8(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const F32x8 y = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
  // NaN goes through: min/max above may have dropped it, so it is put back.
  const F32x8 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_ps(_mm256_andnot_ps(dead, y), x, is_nan);
}
inline float exp1(float x) { return _mm256_cvtss_f32(exp8(set8(x))); }

}  // namespace ingot::kernels::native
