#include "tensor/linear.h"

#include <gmock/gmock.h>

#include <cstring>

#include "base/rng.h"
#include "support/checkpoint_writer.h"
#include "tensor/quantize.h"

namespace ingot::tensor {
namespace {

using test_support::linear_tensors;
using test_support::TempDir;
using test_support::TensorToWrite;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4};

PackedWeight packed_of(WeightFormat format, int64_t rows = 200, int64_t cols = 160, uint64_t seed = 3) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& v : values) v = rng.uniform_float(-2, 2);
  return pack_weight(values, rows, cols, format);
}

Checkpoint checkpoint_of(const TempDir& dir, const std::vector<TensorToWrite>& tensors) {
  test_support::write_safetensors(dir.path() / "model.safetensors", tensors);
  auto checkpoint = Checkpoint::open(dir.path());
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  return std::move(*checkpoint);
}

// What was written is what is read: format, shape and every value, with neighbours of other formats in the same file.
TEST(LinearWeight, FormatIsDecidedPerTensor) {
  TempDir dir;
  std::vector<TensorToWrite> tensors;
  for (WeightFormat format : kFormats) {
    for (auto& t : linear_tensors(fmt::format("m.{}", weight_format_name(format)), packed_of(format))) tensors.push_back(std::move(t));
  }
  const Checkpoint checkpoint = checkpoint_of(dir, tensors);
  for (WeightFormat format : kFormats) {
    const auto view = linear_view(checkpoint, fmt::format("m.{}", weight_format_name(format)), 200, 160);
    ASSERT_TRUE(view.has_value()) << view.error().text();
    EXPECT_EQ(view->format, format);
    EXPECT_EQ(dequantize(*view), dequantize(packed_of(format).view())) << weight_format_name(format);
    EXPECT_TRUE(check_scales(*view, "m").has_value());
  }
}

TEST(LinearWeight, ABf16WeightWithAStrayScaleStaysBf16) {
  TempDir dir;
  auto tensors = linear_tensors("m", packed_of(WeightFormat::bf16));
  tensors.push_back({"m.weight_scale", DType::u8, {200, 5}, {}});
  EXPECT_EQ(linear_view(checkpoint_of(dir, tensors), "m")->format, WeightFormat::bf16);
}

// A17: the format decides which side tensors are required.
TEST(LinearWeight, MissingOrOddSideTensorsAreRefusedByName) {
  struct Case {
    const char* symptom;
    std::vector<TensorToWrite> tensors;
    std::vector<const char*> said;
  };
  const std::vector<Case> cases = {
      {"nothing", {{"other.weight", DType::bf16, {2, 2}, {}}}, {"m.weight", "missing"}},
      {"one dimension", {{"m.weight", DType::bf16, {4}, {}}}, {"m.weight", "two dimensions", "[4]"}},
      {"three dimensions", {{"m.weight", DType::bf16, {4, 2, 2}, {}}}, {"m.weight", "two dimensions", "[4, 2, 2]"}},
      {"f16", {{"m.weight", DType::f16, {4, 32}, {}}}, {"m.weight", "F16", "BF16"}},
      {"i8", {{"m.weight", DType::i8, {4, 32}, {}}}, {"m.weight", "I8"}},
      {"e5m2", {{"m.weight", DType::f8_e5m2, {4, 32}, {}}}, {"m.weight", "F8_E5M2"}},
      {"fp4 without scale", {{"m.weight", DType::u8, {4, 32}, {}}}, {"m.weight_scale", "missing", "m.weight is U8 [4, 32]"}},
      {"fp8 without scale", {{"m.weight", DType::f8_e4m3, {4, 32}, {}}}, {"m.weight_scale_inv", "missing", "m.weight is F8_E4M3 [4, 32]"}},
      {"fp8 with the name of the other scale",
       {{"m.weight", DType::f8_e4m3, {4, 32}, {}}, {"m.weight_scale", DType::f32, {1, 1}, {}}},
       {"m.weight_scale_inv", "missing"}},
      {"fp4 scale transposed",
       {{"m.weight", DType::u8, {4, 32}, {}}, {"m.weight_scale", DType::u8, {2, 4}, {}}},
       {"m.weight_scale", "expected U8 [4, 2]", "found U8 [2, 4]"}},
      {"fp4 scale of another dtype",
       {{"m.weight", DType::u8, {4, 32}, {}}, {"m.weight_scale", DType::bf16, {4, 2}, {}}},
       {"m.weight_scale", "expected U8 [4, 2]", "found BF16 [4, 2]"}},
      {"fp4 columns no multiple of 32",
       {{"m.weight", DType::u8, {4, 24}, {}}, {"m.weight_scale", DType::u8, {4, 2}, {}}},
       {"m.weight", "multiples of 32", "48"}},
      {"fp8 scale without the ragged last block",
       {{"m.weight", DType::f8_e4m3, {576, 256}, {}}, {"m.weight_scale_inv", DType::f32, {4, 2}, {}}},
       {"m.weight_scale_inv", "expected F32 [5, 2]", "found F32 [4, 2]"}},
      {"fp8 scale in bf16",
       {{"m.weight", DType::f8_e4m3, {576, 256}, {}}, {"m.weight_scale_inv", DType::bf16, {5, 2}, {}}},
       {"m.weight_scale_inv", "expected F32 [5, 2]", "found BF16 [5, 2]"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.symptom);
    TempDir dir;
    const auto view = linear_view(checkpoint_of(dir, c.tensors), "m");
    ASSERT_FALSE(view.has_value());
    for (const char* text : c.said) EXPECT_THAT(view.error().text(), HasSubstr(text));
  }
}

// A1: eh_proj [6144, 6144] U8 is a (6144, 12288) matrix; what is compared are the unpacked shapes.
TEST(LinearWeight, ExpectedShapeIsThatOfTheUnpackedMatrix) {
  TempDir dir;
  const Checkpoint checkpoint = checkpoint_of(dir, linear_tensors("m", packed_of(WeightFormat::mxfp4)));
  EXPECT_TRUE(linear_view(checkpoint, "m", 200, 160).has_value());
  const auto wrong = linear_view(checkpoint, "m", 200, 80);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_THAT(wrong.error().text(), AllOf(HasSubstr("m.weight"), HasSubstr("(200, 80)"), HasSubstr("(200, 160)"), HasSubstr("mxfp4")));
}

// O1: scale byte 255 is NaN and is refused at load, with its place.
TEST(LinearWeight, ANanScaleIsRefusedWithTensorRowAndColumn) {
  PackedWeight fp4 = packed_of(WeightFormat::mxfp4);
  fp4.scale[0] = 0;  // 2^-127 is a number
  fp4.scale[7] = 254;
  EXPECT_TRUE(check_scales(fp4.view(), "m").has_value());
  fp4.scale[123 * 5 + 4] = 255;
  auto checked = check_scales(fp4.view(), "m");
  ASSERT_FALSE(checked.has_value());
  EXPECT_THAT(checked.error().text(), AllOf(HasSubstr("m.weight_scale"), HasSubstr("row 123"), HasSubstr("column 4"), HasSubstr("255")));

  PackedWeight fp8 = packed_of(WeightFormat::fp8_block);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::memcpy(&fp8.scale[3 * 4], &bad, 4);  // block (1, 1) of 2 x 2
    checked = check_scales(fp8.view(), "m");
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().text(), AllOf(HasSubstr("m.weight_scale_inv"), HasSubstr("row 1, column 1")));
  }
}

}  // namespace
}  // namespace ingot::tensor
