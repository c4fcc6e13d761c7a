// The shape of a kernel launch. Every kernel's Params knows its own.
#pragma once

#include <cstdint>

namespace ingot::gpu {

struct Grid {
  int64_t blocks = 0;
  int threads = 0;  // a block, on a GPU and in the emulator; the CPU machine uses one
};

}  // namespace ingot::gpu
