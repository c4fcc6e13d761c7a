// The float mathematics of the two machines that run on the host, so that both give the same bits. Used by cpu.h and emu.h only.
#pragma once

#include <cmath>

namespace ingot::gpu {

struct HostMaths {
  static float exp(float v) { return std::exp(v); }
  static float rsqrt(float v) { return 1.0f / std::sqrt(v); }
  static float sin(float v) { return std::sin(v); }
  static float cos(float v) { return std::cos(v); }
};

}  // namespace ingot::gpu
