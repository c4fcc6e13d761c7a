// Device code as it lies in this program: one blob for every file and architecture, made by cmake/device.cmake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::gpu {

struct CodeBlob {
  std::string_view arch;           // as the compiler names it: "sm_90a", "gfx942"
  std::span<const uint8_t> bytes;  // an ELF file that the vendor's driver loads
  std::string_view source;         // the file it was made from, under src/: "kernels/device/entries.cu"
};

// A kernel that a blob holds.
struct EntryPoint {
  const char* name;         // "ingot_Embed"
  std::string_view source;  // as CodeBlob
  bool native = false;      // written for one architecture: others have no such kernel (Accelerator::has)
};

}  // namespace ingot::gpu
