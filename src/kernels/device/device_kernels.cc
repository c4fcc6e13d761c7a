#include "kernels/device/device_kernels.h"

#include <utility>

namespace ingot::kernels {
namespace {

constexpr const char* kEntries[] = {
#define INGOT_NAME_KERNEL(K) "ingot_" #K,
    INGOT_DEVICE_KERNELS(INGOT_NAME_KERNEL)
#undef INGOT_NAME_KERNEL
#define INGOT_NAME_TILE(K, Format, Size, size) "ingot_" #K #Format #Size,
        INGOT_DEVICE_TILES(INGOT_NAME_TILE)
#undef INGOT_NAME_TILE
};

}  // namespace

Result<DeviceKernels> DeviceKernels::load(gpu::Driver& driver, const gpu::DeviceInfo& device) {
  INGOT_ASSIGN(const auto code, gpu::code_for(device_code(), device.arch));
  DeviceKernels kernels(driver);
  for (const auto& blob : code) {
    INGOT_ASSIGN(const gpu::Module module, driver.load(blob));
    kernels.modules_.push_back(module);
  }
  for (size_t i = 0; i < kNumDeviceKernels; ++i) {
    // Each is in one of the modules.
    Result<gpu::Function> found = fail("kernel {}: no device code", kEntries[i]);
    for (const gpu::Module module : kernels.modules_) {
      if (!found) found = driver.find(module, kEntries[i]);
    }
    INGOT_ASSIGN(kernels.functions_[i], found);
  }
  return kernels;
}

DeviceKernels::DeviceKernels(DeviceKernels&& other) noexcept
    : driver_(other.driver_), modules_(std::exchange(other.modules_, {})), functions_(other.functions_) {}

DeviceKernels::~DeviceKernels() {
  for (const gpu::Module module : modules_) driver_->unload(module);
}

}  // namespace ingot::kernels
