// The program of all kernel tests. `kernels_test` runs them on the host's machines; `kernels_test --device=cuda|hip|auto` runs the
// same tests on a GPU, and those of the driver below. Exit status 77, which ctest calls skipped, when auto finds no GPU.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "gpu/mma_cases.h"
#include "gpu/mma_probe.kernel.h"
#include "kernels/ref/rms_norm.h"
#include "kernels/rms_norm.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {

// The device code of gpu/mma_probes.cu.
std::span<const gpu::CodeBlob> mma_probe_code();

namespace {

using namespace ingot::testing;

template <class T>
T must(Result<T> result) {
  INGOT_CHECK(result.has_value(), "{}", result.error().text());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Tests of what a GPU alone has.
class OnTheGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_under_test == nullptr) GTEST_SKIP() << "needs --device";
  }
  static gpu::Driver& driver() { return device_under_test->driver(); }
};

TEST_F(OnTheGpu, BytesGoToTheDeviceAndComeBack) {
  constexpr size_t kBytes = (1 << 20) + 5;
  auto* host = static_cast<uint8_t*>(must(driver().alloc_host(2 * kBytes)));
  void* there = must(driver().alloc(kBytes));
  void* beside = must(driver().alloc(kBytes));
  for (size_t i = 0; i < kBytes; ++i) host[i] = static_cast<uint8_t>(i * 31 + i / 251);
  const gpu::Queue queue = must(driver().create_queue());
  must(driver().copy(there, host, kBytes, queue));
  must(driver().fill(static_cast<uint8_t*>(there) + 100, 0xab, 7, queue));
  must(driver().copy(beside, there, kBytes, queue));
  must(driver().copy(host + kBytes, beside, kBytes, queue));
  must(driver().wait(queue));
  std::memset(host + 100, 0xab, 7);
  EXPECT_EQ(std::memcmp(host, host + kBytes, kBytes), 0);
  driver().destroy(queue);
  driver().free(beside);
  driver().free(there);
  driver().free_host(host);
}

TEST_F(OnTheGpu, MemoryIsCounted) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const auto before = must(driver().memory());
  void* memory = must(driver().alloc(kBytes));
  const auto during = must(driver().memory());
  EXPECT_GE(before.free_bytes - during.free_bytes, kBytes / 2);
  EXPECT_LE(during.free_bytes, during.total_bytes);
  driver().free(memory);
  const auto too_much = driver().alloc(static_cast<size_t>(before.total_bytes) * 2);
  ASSERT_FALSE(too_much.has_value());
  EXPECT_NE(too_much.error().message.find("OUT_OF_MEMORY"), std::string::npos) << too_much.error().message;
}

TEST_F(OnTheGpu, AQueueWaitsForAnEventOfAnother) {
  const gpu::Queue first = must(driver().create_queue()), second = must(driver().create_queue());
  const gpu::Event start = must(driver().create_event(true)), end = must(driver().create_event(true));
  constexpr size_t kBytes = size_t{256} << 20;
  auto* memory = static_cast<uint8_t*>(must(driver().alloc(kBytes)));
  auto* host = static_cast<uint8_t*>(must(driver().alloc_host(1)));
  must(driver().record(start, first));
  for (int i = 0; i < 8; ++i) must(driver().fill(memory, static_cast<uint8_t>(i), kBytes, first));
  must(driver().record(end, first));
  must(driver().wait(second, end));
  must(driver().copy(host, memory + kBytes - 1, 1, second));
  must(driver().wait(second));
  EXPECT_EQ(*host, 7);
  EXPECT_TRUE(must(driver().done(end)));
  const float ms = must(driver().elapsed_ms(start, end));
  EXPECT_GT(ms, 0.05f);  // 2 GiB at less than 40 TB/s
  EXPECT_LT(ms, 1000.0f);
  driver().free_host(host);
  driver().free(memory);
  driver().destroy(start);
  driver().destroy(end);
  driver().destroy(first);
  driver().destroy(second);
}

// A graph runs what was captured, on what the buffers hold when it is replayed.
TEST_F(OnTheGpu, AReplayedGraphGivesTheBitsOfTheLaunch) {
  SeededRng rng(1);
  const int64_t rows = 3, dim = 613;
  Buffer<float> weight(random_floats(rng, dim)), x(random_floats(rng, rows * dim)), y(rows * dim), twice(rows * dim);
  const RmsNormParams p{y.data(), dim, x.data(), dim, weight.data(), DType::f32, rows, dim, 1e-5f};
  const RmsNormParams again{twice.data(), dim, y.data(), dim, weight.data(), DType::f32, rows, dim, 1e-5f};
  gpu::Accelerator& device = *device_under_test;
  must(device.begin_capture());
  launch<RmsNorm>(device, p);
  launch<RmsNorm>(device, again);
  const gpu::Graph graph = must(device.end_capture());
  EXPECT_EQ(graph.nodes, 2u);
  EXPECT_TRUE(y.unchanged()) << "capturing must not run anything";
  for (int i = 0; i < 3; ++i) {
    y.restore();
    twice.restore();
    device.replay(graph);
    must(device.finish());
    EXPECT_TRUE(all_close(ref::rms_norm(p), strided(y, rows, dim, dim), {1e-6, 1e-11}));
    EXPECT_TRUE(all_close(ref::rms_norm(again), strided(twice, rows, dim, dim), {1e-6, 1e-11}));
  }
  driver().destroy(graph);
}

// The tables of gpu/mma.h against the silicon, by unit matrices and random numbers.
template <class I>
void expect_instruction(const gpu::Module& module, const char* entry) {
  gpu::Driver& driver = device_under_test->driver();
  const gpu::Function function = must(driver.find(module, entry));
  for (const gpu::MmaCase& made : gpu::mma_cases<I>(1)) {
    Buffer<uint16_t> a(made.a), b(made.b);
    Buffer<float> c(made.c), d(static_cast<int64_t>(made.d.size()));
    Buffer<uint8_t> a_scale(made.a_scale), b_scale(made.b_scale);
    const gpu::MmaProbeParams p{d.data(), a.data(), b.data(), c.data(), a_scale.data(), b_scale.data(), I::lanes};
    must(driver.launch(function, p.grid(), 0, device_under_test->queue(), p));
    must(driver.wait(device_under_test->queue()));
    for (int64_t i = 0; i < d.size(); ++i)
      ASSERT_LE(std::abs(static_cast<double>(d[i]) - made.d[static_cast<size_t>(i)]), made.tolerance)
          << entry << ", " << made.name << ": row " << i / I::kN << ", column " << i % I::kN << " is " << d[i];
  }
}

TEST_F(OnTheGpu, MatrixInstructionsAreWhatTheirTablesSay) {
  using gpu::MatrixNumber;
  const std::string arch = driver().devices()[0].arch;
  const auto code = must(gpu::code_for(mma_probe_code(), arch));
  ASSERT_EQ(code.size(), 1u);
  const gpu::Module module = must(driver().load(code[0].bytes));
  if (driver().devices()[0].lanes == 32) {
    expect_instruction<gpu::MmaSyncBf16>(module, "ingot_ProbeSyncBf16");
    expect_instruction<gpu::MmaSyncE4m3>(module, "ingot_ProbeSyncE4m3");
  } else {
    expect_instruction<gpu::MfmaBf16K16>(module, "ingot_ProbeMfmaBf16K16");
    if (arch == "gfx950") {
      expect_instruction<gpu::MfmaBf16K32>(module, "ingot_ProbeMfmaBf16K32");
      expect_instruction<gpu::MfmaFp8K32<MatrixNumber::e4m3>>(module, "ingot_ProbeMfmaE4m3");
      expect_instruction<gpu::MfmaScaledK128<MatrixNumber::e4m3>>(module, "ingot_ProbeMfmaScaledE4m3");
      expect_instruction<gpu::MfmaScaledK128<MatrixNumber::e2m1>>(module, "ingot_ProbeMfmaScaledE2m1");
    } else {
      expect_instruction<gpu::MfmaFp8K32<MatrixNumber::e4m3_fnuz>>(module, "ingot_ProbeMfmaE4m3Fnuz");
    }
  }
  driver().unload(module);
}

TEST_F(OnTheGpu, AKernelThatIsNotThereIsNamed) {
  const gpu::Module module = must(driver().load(must(gpu::code_for(device_code(), driver().devices()[0].arch))[0].bytes));
  const auto found = driver().find(module, "ingot_Nothing");
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().message.find("kernel ingot_Nothing"), std::string::npos) << found.error().message;
  driver().unload(module);
}

// A report of what was tested where: nobody should take an emulated pass for silicon.
int run_on_device(const std::string& kind) {
  auto opened = gpu::Driver::open(kind);
  if (!opened) {
    fmt::print("{}: {}\n", kind == "auto" ? "skipped" : "failed", opened.error().text());
    return kind == "auto" ? 77 : 1;
  }
  fmt::print("{}: {}\n", (*opened)->library(), (*opened)->devices()[0].text());
  const auto device = gpu::Accelerator::open(std::move(*opened), 0, device_code(), device_entries());
  if (!device) {
    fmt::print("failed: {}\n", device.error().text());
    return 1;
  }
  device_under_test = device->get();
  buffer_memory.take = [](size_t bytes) { return must(device_under_test->driver().alloc_host(bytes)); };
  buffer_memory.give = [](void* memory) { device_under_test->driver().free_host(memory); };
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace ingot::kernels

int main(int argc, char** argv) {
  std::string device;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--device=", 9) == 0) device = argv[i] + 9;
  }
  // What runs on the host whatever is asked for: native kernels, and the tile kernels in the emulator. An explicit --gtest_filter wins.
  if (!device.empty()) GTEST_FLAG_SET(filter, "-Native*:TileMatmul*:TileGrouped*:TileConfig*");
  ::testing::InitGoogleTest(&argc, argv);
  return device.empty() ? RUN_ALL_TESTS() : ingot::kernels::run_on_device(device);
}
