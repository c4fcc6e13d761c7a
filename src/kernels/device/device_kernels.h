// The kernels of list.h on a GPU: device code out of this program, loaded by the driver, launched by the kernel's type.
//
//   INGOT_ASSIGN(auto driver, gpu::Driver::open("auto"));
//   INGOT_TRY(driver->use(0));
//   INGOT_ASSIGN(const DeviceKernels kernels, DeviceKernels::load(*driver, driver->devices()[0]));
//   INGOT_TRY(kernels.launch<RmsNorm>(queue, params));  // pointers in params are the device's
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/code.h"
#include "gpu/driver.h"
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

class DeviceKernels {
 public:
  // Loads the code for `device`, which the calling thread uses (Driver::use). Errors: no code for its architecture, or the driver's.
  static Result<DeviceKernels> load(gpu::Driver& driver, const gpu::DeviceInfo& device);
  ~DeviceKernels();
  DeviceKernels(DeviceKernels&& other) noexcept;
  DeviceKernels& operator=(DeviceKernels&&) = delete;

  // Puts kernel K on `queue`. Errors: the driver's.
  template <class K>
  Result<> launch(gpu::Queue queue, const typename K::Params& p) const {
    return launch_as(DeviceKernelOf<K>::value, queue, p);
  }
  // The same for a kernel known by number, whose Params the caller must know: TileMatmulParams<size, lanes> and its like.
  template <class Params>
  Result<> launch_as(DeviceKernel kernel, gpu::Queue queue, const Params& p) const {
    return driver_->launch(functions_[kernel], p.grid(), 0, queue, p);
  }

 private:
  explicit DeviceKernels(gpu::Driver& driver) : driver_(&driver) {}

  gpu::Driver* driver_;  // not owned; lives longer
  std::vector<gpu::Module> modules_;
  std::array<gpu::Function, kNumDeviceKernels> functions_;
};

}  // namespace ingot::kernels
