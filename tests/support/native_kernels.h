// Tests of operations whose native kernels one GPU alone has: they skip elsewhere, and see which kernels ran.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device/device_kernels.h"
#include "support/machines.h"

namespace ingot::testing {

class OnSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_under_test == nullptr) GTEST_SKIP() << "needs --device=cuda";
    if (!device_under_test->has(kernels::kDeviceSm90RoundRows)) GTEST_SKIP() << "this GPU has no kernels of native/sm90";
  }
};

// The kernels that operations chose, in order.
struct ChosenKernels : gpu::OpObserver {
  std::vector<std::string> kernels;
  void before(std::string_view, std::string_view kernel, const gpu::OpCost&) override { kernels.emplace_back(kernel); }
  void after() override {}
};

// Runs `op` twice, each time from the outputs' first contents: by the kernels named, with the same bits, and within the outputs.
template <class Op, class... T>
void run_by(const std::vector<std::string>& kernels, gpu::DeviceMatmul matmul, Op op, Buffer<T>&... outputs) {
  std::vector<uint8_t> first;
  for (int run = 0; run < 2; ++run) {
    (outputs.restore(), ...);
    ChosenKernels chosen;
    gpu::Stream stream{nullptr, device_under_test, matmul, &chosen};
    op(stream);
    const auto result = device_under_test->finish();
    ASSERT_TRUE(result.has_value()) << result.error().text();
    ASSERT_EQ(chosen.kernels, kernels) << "other kernels than those under test";
    (expect_alive(outputs, "GPU"), ...);
    std::vector<uint8_t> bytes = all_bytes(outputs...);
    if (run == 0)
      first = std::move(bytes);
    else
      ASSERT_EQ(bytes, first) << "the second run gave other bits";
  }
}
template <class Op, class... T>
void run_native(const std::vector<std::string>& kernels, Op op, Buffer<T>&... outputs) {
  run_by(kernels, gpu::DeviceMatmul::fast, op, outputs...);
}

}  // namespace ingot::testing
