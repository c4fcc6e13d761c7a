// Device code as it lies in this program: one blob an architecture, made by cmake/device.cmake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::gpu {

struct CodeBlob {
  std::string_view arch;           // as the compiler names it: "sm_90a", "gfx942"
  std::span<const uint8_t> bytes;  // an ELF file that the vendor's driver loads
};

}  // namespace ingot::gpu
