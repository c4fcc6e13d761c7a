// What a fake driver library (driver_fake.cc) runs: every such library is linked with one file that says which kernels it knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot::gpu {

struct FakeKernel {
  const char* name;
  size_t params_bytes;
  int threads;                      // that a launch must have
  void (*run)(const void* params);  // all blocks
  // Calls visit(context, pointer) for what params point to: on a GPU it must all be memory of the device.
  void (*pointers)(const void* params, void (*visit)(void* context, const void* pointer), void* context);
};

std::span<const FakeKernel> fake_kernels();
bool is_fake_memory(const void* pointer);  // of the device
size_t fake_memory_bytes();                // the most that one allocation may ask for

}  // namespace ingot::gpu
