// A GPU without a GPU (kernels/device/kernels_fake.cc), for tests of what runs on one. The test program is told by INGOT_FAKE_DEVICE where
// the driver's library is.
#pragma once

#include <memory>
#include <utility>

#include "base/check.h"
#include "kernels/device/device_kernels.h"

namespace ingot::test_support {

inline std::shared_ptr<gpu::Accelerator> emulated_device() {
  static constexpr uint8_t kCode[] = "FAKE CODE";
  static constexpr gpu::CodeBlob kBlobs[] = {{"sm_90a", kCode, "kernels/device/entries.cu"}, {"sm_90a", kCode, "kernels/device/tiles.cu"}};
  auto driver = gpu::Driver::open_library("cuda", INGOT_FAKE_DEVICE);
  INGOT_CHECK(driver.has_value(), "{}", driver.error().text());
  auto device = gpu::Accelerator::open(std::move(*driver), 0, kBlobs, kernels::device_entries());
  INGOT_CHECK(device.has_value(), "{}", device.error().text());
  return std::move(*device);
}

}  // namespace ingot::test_support
