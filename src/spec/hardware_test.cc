#include "spec/hardware.h"

#include <gtest/gtest.h>

namespace ingot::spec {
namespace {

TEST(Hardware, IsFoundByAWordOfTheDriversName) {
  EXPECT_EQ(hardware_of("NVIDIA H200").value().name, "H200");
  EXPECT_EQ(hardware_of("NVIDIA H200 NVL").value().compute_units, 132);
  EXPECT_EQ(hardware_of("NVIDIA B200").value().memory, 8.0e12);
  EXPECT_EQ(hardware_of("AMD Instinct MI300X").value().bf16, 1307e12);
  EXPECT_EQ(hardware_of("AMD Instinct MI355X OAM").value().fp4, 10066e12);
  for (const char* other : {"NVIDIA GB200", "NVIDIA GH200 480GB", "AMD Instinct MI300A", "NVIDIA H2001", ""})
    EXPECT_FALSE(hardware_of(other)) << other;
}

TEST(Hardware, ATypeWithoutAUnitRunsAtTheNextWider) {
  const Hardware h200 = hardware_of("H200").value(), mi355x = hardware_of("MI355X").value();
  EXPECT_EQ(h200.flops(Arithmetic::fp4), 1979e12);
  EXPECT_EQ(h200.flops(Arithmetic::fp8), 1979e12);
  EXPECT_EQ(h200.flops(Arithmetic::bf16), 989e12);
  EXPECT_EQ(h200.flops(Arithmetic::f32), 67e12);
  EXPECT_EQ(mi355x.flops(Arithmetic::fp4), 10066e12);
}

}  // namespace
}  // namespace ingot::spec
