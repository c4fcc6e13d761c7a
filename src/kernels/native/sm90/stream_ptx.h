// What the stream kernels share: shared memory by its 32-bit addresses, and mxfp4 numbers.
#pragma once

#include "kernels/native/sm90/ptx.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

// ---- mxfp4 as bf16

// The eight codes of a word as bf16 numbers times 2^-126, word i of the result with codes i and i + 4: the sign, and the other three bits
// where exponent and mantissa meet. The products put both into place at once: the shifted copies do not overlap.
SM90_FN void codes_of_mxfp4(uint32_t word, uint32_t (&pairs)[4]) {
  const uint32_t upper = word >> 8;
  pairs[0] = ((word & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
  pairs[1] = ((word & 0x00f000f0u) * 0x0104u) & 0x81c081c0u;
  pairs[2] = ((upper & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
  pairs[3] = ((upper & 0x00f000f0u) * 0x0104u) & 0x81c081c0u;
}
// What makes them numbers times 2^(e8m0 - 127), in both halves of a word: one factor for e8m0 up to 128, above two (255 is NaN).
inline constexpr uint32_t kMxfp4OneFactor = 128;
SM90_FN uint32_t mxfp4_factor(uint32_t e8m0) { return e8m0 * 0x00800080u + 126u * 0x00800080u; }
SM90_FN uint32_t mxfp4_first_factor(uint32_t e8m0) {
  return e8m0 == 255u ? 0x7fff7fffu : mxfp4_factor(e8m0 < kMxfp4OneFactor ? e8m0 : kMxfp4OneFactor);
}
SM90_FN uint32_t mxfp4_second_factor(uint32_t e8m0) {
  return (127u + (e8m0 > kMxfp4OneFactor ? e8m0 - kMxfp4OneFactor : 0u)) * 0x00800080u;
}

}  // namespace ingot::kernels::sm90

#endif
