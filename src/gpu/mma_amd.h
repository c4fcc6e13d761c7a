// How AMD's compiler is told to issue the instructions of mma.h. Included by it alone. The zeros are the broadcast fields cbsz, abid, blgp.
#pragma once

#include "gpu/mma.h"

#if defined(__HIP__)
namespace ingot::gpu {

using AmdFloats = float __attribute__((ext_vector_type(4)));
using AmdBf16s = __bf16 __attribute__((ext_vector_type(8)));
using AmdShorts = short __attribute__((ext_vector_type(4)));
using AmdInts = int __attribute__((ext_vector_type(8)));

#if defined(__gfx942__) || defined(__gfx950__)
template <class G>
GPU_FN void issue_mma(G&, MfmaBf16K16, MfmaBf16K16::C& c, const MfmaBf16K16::A& a, const MfmaBf16K16::B& b) {
  const AmdFloats d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(AmdShorts, a), __builtin_bit_cast(AmdShorts, b),
                                                                __builtin_bit_cast(AmdFloats, c), 0, 0, 0);
  c = __builtin_bit_cast(MfmaBf16K16::C, d);
}

#if defined(__gfx950__)
using AmdFp8 = MfmaFp8K32<MatrixNumber::e4m3>;
#else
using AmdFp8 = MfmaFp8K32<MatrixNumber::e4m3_fnuz>;
#endif
template <class G>
GPU_FN void issue_mma(G&, AmdFp8, AmdFp8::C& c, const AmdFp8::A& a, const AmdFp8::B& b) {
  const AmdFloats d = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, a), __builtin_bit_cast(long, b),
                                                                 __builtin_bit_cast(AmdFloats, c), 0, 0, 0);
  c = __builtin_bit_cast(AmdFp8::C, d);
}
#endif

#if defined(__gfx950__)
template <class G>
GPU_FN void issue_mma(G&, MfmaBf16K32, MfmaBf16K32::C& c, const MfmaBf16K32::A& a, const MfmaBf16K32::B& b) {
  const AmdFloats d = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(AmdBf16s, a), __builtin_bit_cast(AmdBf16s, b),
                                                              __builtin_bit_cast(AmdFloats, c), 0, 0, 0);
  c = __builtin_bit_cast(MfmaBf16K32::C, d);
}

// Formats of the f8f6f4 instructions: 0 is e4m3, 4 is e2m1, of which only the first four words count.
template <class G, MatrixNumber Type>
GPU_FN void issue_mma(G&, MfmaScaledK128<Type>, typename MfmaScaledK128<Type>::C& c, const typename MfmaScaledK128<Type>::A& a,
                      const typename MfmaScaledK128<Type>::B& b, uint8_t a_scale, uint8_t b_scale) {
  constexpr int kFormat = Type == MatrixNumber::e2m1 ? 4 : 0;
  constexpr int kWords = sizeof(a) / 4;
  AmdInts wide_a = {}, wide_b = {};
  for (int i = 0; i < kWords; ++i) {
    wide_a[i] = static_cast<int>(a.v[i]);
    wide_b[i] = static_cast<int>(b.v[i]);
  }
  // The zeros choose byte 0 of each scale operand.
  const AmdFloats d = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(wide_a, wide_b, __builtin_bit_cast(AmdFloats, c), kFormat, kFormat,
                                                                       0, a_scale, 0, b_scale);
  c = __builtin_bit_cast(typename MfmaScaledK128<Type>::C, d);
}
using DeviceMmaBf16 = MfmaBf16K32;
#else
using DeviceMmaBf16 = MfmaBf16K16;  // the instruction of tile kernels in bf16
#endif

}  // namespace ingot::gpu
#endif
