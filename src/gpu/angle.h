// Sine and cosine of any angle a rotary embedding can have, for the GPUs: AMD's instruction has no range reduction, and the two vendors
// should agree. A multiple of pi/2 is taken off in double with pi/2 as two numbers of 53 bits, so that nothing is lost to 2^31 radians;
// what is left is at most pi/4, where a Taylor series of degree 13 or 14 is good to 2^-45. The result is within 0.5001 steps of f32
// (angle_test.cc).
#pragma once

#include "gpu/kernel.h"

namespace ingot::gpu {

// cos(angle + (quarters - 1) * pi/2): quarters 0 is the sine, 1 the cosine.
GPU_FN float sine_of_quarter(float angle, int quarters) {
  const double x = angle;
  const double turns = __builtin_rint(x * 0x1.45f306dc9c883p-1);  // 2/pi
  double r = __builtin_fma(-turns, 0x1.921fb54442d18p+0, x);
  r = __builtin_fma(-turns, 0x1.1a62633145c07p-54, r);
  const int64_t quadrant = static_cast<int64_t>(turns) + quarters;
  const double s = r * r;
  double v;
  if ((quadrant & 1) == 0) {
    v = 1.0 / 6227020800;
    v = __builtin_fma(v, s, -1.0 / 39916800);
    v = __builtin_fma(v, s, 1.0 / 362880);
    v = __builtin_fma(v, s, -1.0 / 5040);
    v = __builtin_fma(v, s, 1.0 / 120);
    v = __builtin_fma(v, s, -1.0 / 6);
    v = __builtin_fma(v * s, r, r);
  } else {
    v = -1.0 / 87178291200;
    v = __builtin_fma(v, s, 1.0 / 479001600);
    v = __builtin_fma(v, s, -1.0 / 3628800);
    v = __builtin_fma(v, s, 1.0 / 40320);
    v = __builtin_fma(v, s, -1.0 / 720);
    v = __builtin_fma(v, s, 1.0 / 24);
    v = __builtin_fma(v, s, -0.5);
    v = __builtin_fma(v, s, 1.0);
  }
  return static_cast<float>((quadrant & 2) == 0 ? v : -v);
}

}  // namespace ingot::gpu
