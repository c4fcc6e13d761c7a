// One GPU made ready, over the library that does everything on the host (driver_fake.cc).
#include "gpu/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace ingot::gpu {
namespace {

using ::testing::HasSubstr;

constexpr uint8_t kCode[] = "FAKE CODE";
constexpr CodeBlob kBlobs[] = {{"sm_90a", kCode, "other.cu"}, {"sm_90a", kCode, "double.cu"}};
constexpr EntryPoint kEntries[] = {{"ingot_Double", "double.cu"}};

struct DoubleParams {
  float* x;
  int64_t n;
  Grid grid() const { return {1, 64}; }
};

template <class T>
T must(Result<T> result) {
  INGOT_CHECK(result.has_value(), "{}", result.error().text());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

std::unique_ptr<Driver> fake_driver() { return must(Driver::open_library("cuda", INGOT_FAKE_DRIVER)); }
std::shared_ptr<Accelerator> fake_accelerator() { return must(Accelerator::open(fake_driver(), 0, kBlobs, kEntries)); }

TEST(Accelerator, WorkIsDoneInOrderOnItsOwnMemory) {
  const auto device = fake_accelerator();
  auto there = must(DeviceMemory::allocate(device, 3 * sizeof(float)));
  auto here = must(HostMemory::allocate(device, 3 * sizeof(float)));
  auto* numbers = reinterpret_cast<float*>(here.data());
  numbers[0] = 1.0f, numbers[1] = 2.0f, numbers[2] = 3.0f;
  auto* x = reinterpret_cast<float*>(there.data());
  device->copy(x, numbers, 3 * sizeof(float));
  device->launch(0, DoubleParams{x, 2});
  device->fill(x + 2, 0, sizeof(float));
  device->launch(0, DoubleParams{x, 1});
  device->copy(numbers, x, 3 * sizeof(float));
  must(device->finish());
  EXPECT_THAT(std::span(numbers, 3), ::testing::ElementsAre(4.0f, 4.0f, 0.0f));
  EXPECT_EQ(device->allocated_bytes(), 3 * sizeof(float));
  there = {};
  EXPECT_EQ(device->allocated_bytes(), 0u);
}

TEST(Accelerator, TheFirstFailureStaysAndLaterWorkIsDropped) {
  const auto device = fake_accelerator();
  const auto there = must(DeviceMemory::allocate(device, sizeof(float)));
  auto here = must(HostMemory::allocate(device, sizeof(float)));
  auto* number = reinterpret_cast<float*>(here.data());
  *number = 7.0f;
  device->launch(0, DoubleParams{number, 1});  // the host's memory
  device->launch(0, DoubleParams{reinterpret_cast<float*>(there.data()), 1});
  device->fill(there.data(), 0, 4);
  device->copy(number, there.data(), sizeof(float));
  for (int i = 0; i < 2; ++i) {
    const auto result = device->finish();
    ASSERT_FALSE(result.has_value());
    EXPECT_THAT(result.error().message, HasSubstr("FAKE_ILLEGAL_ADDRESS"));
  }
  EXPECT_EQ(*number, 7.0f);
  EXPECT_FALSE(device->begin_capture().has_value());
}

TEST(Accelerator, AGraphIsLaunchesAlone) {
  const auto device = fake_accelerator();
  const auto there = must(DeviceMemory::allocate(device, sizeof(float)));
  auto here = must(HostMemory::allocate(device, sizeof(float)));
  auto* number = reinterpret_cast<float*>(here.data());
  auto* x = reinterpret_cast<float*>(there.data());
  *number = 3.0f;
  device->copy(x, number, sizeof(float));
  must(device->begin_capture());
  device->launch(0, DoubleParams{x, 1});
  device->launch(0, DoubleParams{x, 1});
  const Graph graph = must(device->end_capture());
  EXPECT_EQ(graph.nodes, 2u);
  device->replay(graph);
  device->replay(graph);
  device->copy(number, x, sizeof(float));
  must(device->finish());
  EXPECT_EQ(*number, 48.0f);
  device->driver().destroy(graph);
}

// A table of times that are all those of the run that was captured: the events were recorded then, and by no replay.
TEST(Accelerator, EveryReplayRecordsTheEventsOfItsGraph) {
  const auto device = fake_accelerator();
  const auto there = must(DeviceMemory::allocate(device, sizeof(float)));
  const Event now = must(device->driver().create_event(true)), event = must(device->driver().create_event(true));
  device->record(now);
  must(device->begin_capture());
  device->record(event);
  device->launch(0, DoubleParams{reinterpret_cast<float*>(there.data()), 1});
  const Graph graph = must(device->end_capture());
  EXPECT_EQ(graph.nodes, 2u);
  for (int i = 0; i < 3; ++i) device->replay(graph);
  must(device->finish());
  EXPECT_EQ(must(device->driver().elapsed_ms(now, event)), 2.5f);  // of the fake: records of the one less those of the other
  for (const Event e : {now, event}) device->driver().destroy(e);
  device->driver().destroy(graph);
}

TEST(Accelerator, WhatIsMissingIsNamed) {
  const EntryPoint treble[] = {{"ingot_Treble", "double.cu"}}, nowhere[] = {{"ingot_Double", "treble.cu"}};
  EXPECT_THAT(Accelerator::open(fake_driver(), 0, kBlobs, treble).error().message, HasSubstr("kernel ingot_Treble: "));
  EXPECT_EQ(Accelerator::open(fake_driver(), 0, kBlobs, nowhere).error().message,
            "kernel ingot_Double: this program holds no code of treble.cu for sm_90");
  EXPECT_EQ(Accelerator::open(fake_driver(), 0, {}, kEntries).error().message, "this program holds no code for sm_90; it has none");
  EXPECT_EQ(Accelerator::open(fake_driver(), 2, kBlobs, kEntries).error().message, "GPU 2 does not exist: there are 2");
  const auto memory = DeviceMemory::allocate(fake_accelerator(), 2 << 20);
  ASSERT_FALSE(memory.has_value());
  EXPECT_THAT(memory.error().message, HasSubstr("2097152 bytes on Fake A: cuMemAlloc_v2: FAKE_OUT_OF_MEMORY"));
  EXPECT_THAT(memory.error().message, HasSubstr("; 1048576 bytes of its memory are free"));
}

// The fake is to catch a host that takes a GPU's memory for its own.
TEST(AcceleratorDeathTest, TheHostCannotReadDeviceMemory) {
  const auto device = fake_accelerator();
  const auto there = must(DeviceMemory::allocate(device, sizeof(float)));
  EXPECT_DEATH(
      {
        const volatile float* x = reinterpret_cast<const float*>(there.data());
        [[maybe_unused]] const float read = *x;
      },
      "");
}

}  // namespace
}  // namespace ingot::gpu
