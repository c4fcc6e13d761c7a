// The kernels of list.h on a GPU: device code out of this program, known by the kernel's type or by number.
//
//   INGOT_ASSIGN(const auto device, open_accelerator("auto"));
//   launch<RmsNorm>(*device, params);  // pointers in params are the device's
//   INGOT_TRY(device->finish());
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "gpu/code.h"
#include "kernels/device/list.h"

namespace ingot::kernels {

// The kernels by number. DeviceKernelOf<K> is that of a kernel of one form; a K that is not in the list does not compile.
enum DeviceKernel : size_t {
#define INGOT_NUMBER_KERNEL(K) kDevice##K,
  INGOT_DEVICE_KERNELS(INGOT_NUMBER_KERNEL)
#undef INGOT_NUMBER_KERNEL
#define INGOT_NUMBER_TILE(K, Format, Size, size) kDevice##K##Format##Size,
      INGOT_DEVICE_TILES(INGOT_NUMBER_TILE)
#undef INGOT_NUMBER_TILE
#define INGOT_NUMBER_NATIVE(K, file) kDevice##K,
          INGOT_SM90_KERNELS(INGOT_NUMBER_NATIVE)
#undef INGOT_NUMBER_NATIVE
              kNumDeviceKernels
};
template <class K>
struct DeviceKernelOf;
#define INGOT_FIND_KERNEL(K)                          \
  struct K;                                           \
  template <>                                         \
  struct DeviceKernelOf<K> {                          \
    static constexpr DeviceKernel value = kDevice##K; \
  };
INGOT_DEVICE_KERNELS(INGOT_FIND_KERNEL)
#undef INGOT_FIND_KERNEL

// One blob for every file and architecture this program was built for; none when there was no GPU compiler.
std::span<const gpu::CodeBlob> device_code();
// The names of all kernels, by number.
std::span<const gpu::EntryPoint> device_entries();

// GPU number `index` of `kind` ("cuda", "hip" or "auto"), ready for the operations of ops.h. Errors: there is none, it cannot be used, or
// this program holds no code for it.
Result<std::shared_ptr<gpu::Accelerator>> open_accelerator(std::string_view kind, int index = 0);

template <class K>
void launch(gpu::Accelerator& device, const typename K::Params& p) {
  device.launch(DeviceKernelOf<K>::value, p);
}

}  // namespace ingot::kernels
