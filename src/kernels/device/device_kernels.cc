#include "kernels/device/device_kernels.h"

#include <utility>

namespace ingot::kernels {

std::span<const gpu::EntryPoint> device_entries() {
  static constexpr gpu::EntryPoint kEntries[] = {
#define INGOT_NAME_KERNEL(K) {"ingot_" #K, "kernels/device/entries.cu"},
      INGOT_DEVICE_KERNELS(INGOT_NAME_KERNEL)
#undef INGOT_NAME_KERNEL
#define INGOT_NAME_TILE(K, Format, Size, size) {"ingot_" #K #Format #Size, "kernels/device/tiles.cu"},
          INGOT_DEVICE_TILES(INGOT_NAME_TILE)
#undef INGOT_NAME_TILE
#define INGOT_NAME_NATIVE(K, file) {"ingot_" #K, "kernels/native/sm90/" file, true},
              INGOT_SM90_KERNELS(INGOT_NAME_NATIVE)
#undef INGOT_NAME_NATIVE
  };
  return kEntries;
}

Result<std::shared_ptr<gpu::Accelerator>> open_accelerator(std::string_view kind, int index) {
  INGOT_ASSIGN(auto driver, gpu::Driver::open(kind));
  return gpu::Accelerator::open(std::move(driver), index, device_code(), device_entries());
}

}  // namespace ingot::kernels
