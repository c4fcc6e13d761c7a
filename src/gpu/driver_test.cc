// The driver's interface over a library that does everything on the host (driver_fake.cc), once under each vendor's names; and what a
// machine without a GPU says.
#include "gpu/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/check.h"

namespace ingot::gpu {
namespace {

using ::testing::HasSubstr;

template <class T>
T must(Result<T> result) {
  INGOT_CHECK(result.has_value(), "{}", result.error().text());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

struct DoubleParams {
  float* x;
  int64_t n;
};

constexpr uint8_t kCode[] = "FAKE CODE";

class DriverTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Driver> driver_ = must(Driver::open_library(GetParam(), INGOT_FAKE_DRIVER));
};

TEST_P(DriverTest, ListsDevicesWithWhatTheyAre) {
  ASSERT_EQ(driver_->devices().size(), 2u);
  const DeviceInfo& device = driver_->devices()[1];
  const bool first_vendor = driver_->kind() == "cuda";
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device.name, "Fake B");
  EXPECT_EQ(device.arch, first_vendor ? "sm_90" : "gfx950");
  EXPECT_EQ(device.lanes, first_vendor ? 32 : 64);
  EXPECT_EQ(device.compute_units, 101);
  EXPECT_EQ(device.memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(device.l2_bytes, 4 << 20);
  EXPECT_EQ(device.shared_bytes, 64 << 10);
  EXPECT_THAT(device.text(), HasSubstr("Fake B (" + device.arch + ", 101 compute units"));
  EXPECT_THAT(driver_->library(), HasSubstr("version 4711"));
}

TEST_P(DriverTest, UseChoosesTheDeviceThatCallsMean) {
  must(driver_->use(1));
  EXPECT_EQ(must(driver_->memory()).free_bytes, 2 << 20);
  must(driver_->use(0));
  EXPECT_EQ(must(driver_->memory()).free_bytes, 1 << 20);
  const auto wrong = driver_->use(2);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().message, "GPU 2 does not exist: there are 2");
}

TEST_P(DriverTest, CopiesFillsAndLaunches) {
  must(driver_->use(0));
  const Queue queue = must(driver_->create_queue());
  const float numbers[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  auto* x = static_cast<float*>(must(driver_->alloc(sizeof numbers)));
  auto* back = static_cast<float*>(must(driver_->alloc_host(sizeof numbers)));
  must(driver_->copy(x, numbers, sizeof numbers, queue));
  const Module module = must(driver_->load(kCode));
  const Function function = must(driver_->find(module, "ingot_Double"));
  must(driver_->allow_shared(function, 50 << 10));
  must(driver_->launch(function, {2, 64}, 0, queue, DoubleParams{x, 3}));
  must(driver_->copy(back, x, sizeof numbers, queue));
  must(driver_->wait(queue));
  const float expected[4] = {2.0f, 4.0f, 6.0f, 4.0f};
  EXPECT_EQ(std::memcmp(back, expected, sizeof expected), 0);
  must(driver_->fill(x, 0, sizeof numbers, queue));
  must(driver_->copy(back, x, sizeof numbers, queue));
  EXPECT_EQ(back[2], 0.0f);
  const auto host = driver_->launch(function, {1, 64}, 0, queue, DoubleParams{back, 3});
  ASSERT_FALSE(host.has_value()) << "the kernel was given memory of the host";
  EXPECT_THAT(host.error().message, HasSubstr("FAKE_ILLEGAL_ADDRESS"));
  driver_->unload(module);
  driver_->free_host(back);
  driver_->free(x);
  driver_->destroy(queue);
}

TEST_P(DriverTest, AGridOfNoBlocksRunsNothingAndOneTooLargeIsRefused) {
  must(driver_->launch(Function{}, {0, 64}, 0, {}, DoubleParams{}));  // the fake refuses a null function
  const auto large = driver_->launch(Function{}, {int64_t{1} << 31, 64}, 0, {}, DoubleParams{});
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().message, "a grid of 2147483648 blocks");
}

TEST_P(DriverTest, ACapturedGraphRunsOnlyWhenReplayed) {
  must(driver_->use(0));
  const Queue queue = must(driver_->create_queue());
  auto* there = static_cast<float*>(must(driver_->alloc(sizeof(float))));
  const float one = 1.0f;
  must(driver_->copy(there, &one, sizeof one, queue));
  const auto x = [&] {
    float value = 0.0f;
    must(driver_->copy(&value, there, sizeof value, queue));
    must(driver_->wait(queue));
    return value;
  };
  const Module module = must(driver_->load(kCode));
  const Function function = must(driver_->find(module, "ingot_Double"));
  must(driver_->begin_capture(queue));
  for (int i = 0; i < 3; ++i) must(driver_->launch(function, {1, 64}, 0, queue, DoubleParams{there, 1}));
  const Graph graph = must(driver_->end_capture(queue));
  EXPECT_EQ(graph.nodes, 3u);
  EXPECT_EQ(x(), 1.0f);
  must(driver_->replay(graph, queue));
  must(driver_->replay(graph, queue));
  EXPECT_EQ(x(), 64.0f);
  driver_->destroy(graph);
  driver_->free(there);
  EXPECT_FALSE(driver_->end_capture(queue).has_value()) << "no capture has begun";
  driver_->unload(module);
  driver_->destroy(queue);
}

TEST_P(DriverTest, EventsTellWhenAndHowLong) {
  must(driver_->use(0));
  const Queue queue = must(driver_->create_queue());
  const Event from = must(driver_->create_event(true)), to = must(driver_->create_event(true)),
              untimed = must(driver_->create_event(false));
  must(driver_->record(from, queue));
  for (int i = 0; i < 3; ++i) must(driver_->record(to, queue));
  must(driver_->wait(queue, from));
  EXPECT_FALSE(must(driver_->done(to))) << "not ready is an answer and no error";
  EXPECT_TRUE(must(driver_->done(to)));
  must(driver_->wait(to));
  EXPECT_EQ(must(driver_->elapsed_ms(from, to)), 2.5f);
  for (const Event event : {from, to, untimed}) driver_->destroy(event);
  driver_->destroy(queue);
}

TEST_P(DriverTest, ErrorsHaveTheCallAndTheVendorsWords) {
  must(driver_->use(0));
  const auto memory = driver_->alloc(2 << 20);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().message,
            std::string(driver_->kind() == "cuda" ? "cuMemAlloc_v2" : "hipMalloc") + ": FAKE_OUT_OF_MEMORY (as the test asked for)");
  const Module module = must(driver_->load(kCode));
  const auto function = driver_->find(module, "ingot_Treble");
  ASSERT_FALSE(function.has_value());
  EXPECT_THAT(function.error().message, HasSubstr("kernel ingot_Treble: "));
  EXPECT_THAT(function.error().message, HasSubstr("FAKE_NOT_FOUND"));
  driver_->unload(module);
  EXPECT_EQ(must(driver_->alloc(0)), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Both, DriverTest, ::testing::Values("cuda", "hip"));

TEST(Driver, AMachineWithoutTheLibrarySaysWhich) {
  const auto missing = Driver::open_library("cuda", "/nowhere/libcuda.so.1");
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().message, HasSubstr("/nowhere/libcuda.so.1 cannot be opened: "));
  EXPECT_EQ(missing.error().hint, "install NVIDIA's driver, or use --device cpu");
}

TEST(Driver, ALibraryThatLacksAFunctionSaysWhich) {
  const auto old = Driver::open_library("hip", "libm.so.6");
  ASSERT_FALSE(old.has_value());
  EXPECT_EQ(old.error().message, "libm.so.6 has no function hipDrvGetErrorName");
}

TEST(Driver, AnUnknownKindIsRefused) {
  const auto unknown = Driver::open("tpu");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().message, "unknown kind of GPU \"tpu\": it is one of cuda, hip, auto");
}

// Whatever this machine has, open() comes back with a driver that has devices or with a reason.
TEST(Driver, OpenNeverCrashes) {
  for (const char* kind : {"cuda", "hip", "auto"}) {
    const auto driver = Driver::open(kind);
    if (driver)
      EXPECT_FALSE((*driver)->devices().empty());
    else
      EXPECT_FALSE(driver.error().message.empty());
  }
}

TEST(CodeFor, TheBlobsOfTheArchitectureOrTheNamesOfThoseThereAre) {
  const uint8_t bytes[3] = {};
  const CodeBlob blobs[] = {{"sm_90a", {bytes, 1}, "a.cu"}, {"gfx942", {bytes + 1, 1}, "a.cu"}, {"sm_90a", {bytes + 2, 1}, "b.cu"}};
  const auto two = must(code_for(blobs, "sm_90"));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].bytes.data(), bytes);
  EXPECT_EQ(two[1].bytes.data(), bytes + 2);
  ASSERT_EQ(must(code_for(blobs, "gfx942")).size(), 1u);
  for (const char* arch : {"sm_9", "sm_100", "gfx94", "gfx950"}) {
    const auto none = code_for(blobs, arch);
    ASSERT_FALSE(none.has_value()) << arch;
    EXPECT_EQ(none.error().message, std::string("this program holds no code for ") + arch + "; it has gfx942, sm_90a");
  }
  EXPECT_THAT(code_for({}, "sm_90").error().message, HasSubstr("it has none"));
}

}  // namespace
}  // namespace ingot::gpu
