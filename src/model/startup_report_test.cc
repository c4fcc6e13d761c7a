// The start-up report: what bounds an operation, and the sum.
#include "model/startup_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::model {
namespace {

using spec::Arithmetic;
using ::testing::HasSubstr;
using ::testing::Not;

// q_b of GLM-5.2 in fp8 for one row and for 8192, and a norm.
const OpReport kOneRow{"q_b", "1 x 16384 x 2048", "stream", true, 33.6e6, 67.1e6, Arithmetic::bf16};
const OpReport kManyRows{"q_b", "8192 x 16384 x 2048", "wgmma 128x128", false, 0.706e9, 549.8e9, Arithmetic::bf16};
const OpReport kNorm{"norm", "1 x 6144", "lanes", false, 61e3, 31e3, Arithmetic::f32};

TEST(StartupReport, SaysWhatBoundsAnOperationAndItsTimeAtTheRoof) {
  const std::vector<OpReport> launches = {kOneRow, kManyRows, kNorm};
  const auto lines = startup_report(launches, "NVIDIA H200", "some rows");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "operations of a step of some rows on NVIDIA H200, at the roofs of the data sheet (4.8 TB/s, 989 bf16 TFLOP/s)");
  // 33.6 MB / 4.8 TB/s = 7 us; its products take 0.07.
  EXPECT_EQ(lines[1], "  q_b   1 x 16384 x 2048     stream         tuned       33.6 MB    67.1 Mflop  bytes     7.00 us  x 1");
  // 549.8 Gflop / 989 TFLOP/s = 556 us; its bytes take 147.
  EXPECT_EQ(lines[2], "  q_b   8192 x 16384 x 2048  wgmma 128x128  generic      706 MB     550 Gflop  flop       556 us  x 1");
  EXPECT_EQ(lines[3], "  norm  1 x 6144             lanes          generic       61 kB      31 kflop  bytes    0.013 us  x 1");
  EXPECT_EQ(lines[4], "  3 launches, 1 of them tuned; 563 us at the roofs");
}

TEST(StartupReport, EqualLaunchesAreOneLine) {
  std::vector<OpReport> launches(78, kOneRow);
  launches.insert(launches.begin() + 1, kNorm);
  launches.push_back(kOneRow);
  launches.back().tuned = false;  // one shape, another kernel choice: a line of its own
  const auto lines = startup_report(launches, "NVIDIA H200", "1 row");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[1], HasSubstr("x 78"));
  EXPECT_THAT(lines[2], HasSubstr("x 1"));
  EXPECT_THAT(lines[3], HasSubstr("generic"));
  EXPECT_EQ(lines[4], "  80 launches, 78 of them tuned; 553 us at the roofs");
}

TEST(StartupReport, APeakIsThatOfTheArithmetic) {
  OpReport op = kManyRows;
  op.arithmetic = Arithmetic::fp8;
  EXPECT_THAT(startup_report(std::span(&op, 1), "NVIDIA H200", "")[1], HasSubstr("278 us"));
  op.arithmetic = Arithmetic::f32;
  EXPECT_THAT(startup_report(std::span(&op, 1), "NVIDIA H200", "")[1], HasSubstr("8206 us"));
}

TEST(StartupReport, AGpuThatIsNotInTheTableHasNoTimes) {
  const auto lines = startup_report(std::span(&kOneRow, 1), "NVIDIA L4", "1 row");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("its roofs are not known"));
  EXPECT_THAT(lines[1], HasSubstr("33.6 MB"));
  for (const std::string& line : lines) EXPECT_THAT(line, Not(HasSubstr(" us")));
}

TEST(StartupReport, NoLaunchesAtAll) {
  EXPECT_EQ(startup_report({}, "NVIDIA H200", "0 rows").back(), "  0 launches, 0 of them tuned; 0.000 us at the roofs");
}

}  // namespace
}  // namespace ingot::model
