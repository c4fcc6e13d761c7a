#include "tensor/linear.h"

#include <cmath>
#include <cstring>

namespace ingot::tensor {
namespace {

Result<> check_side(const Checkpoint& checkpoint, const std::string& name, const std::string& why, DType dtype, int64_t rows, int64_t cols,
                    const uint8_t** data) {
  const TensorInfo* side = checkpoint.find(name);
  if (side == nullptr) return fail("tensor {} is missing: {}", name, why);
  const std::vector<int64_t> expected{rows, cols};
  if (side->dtype != dtype || side->shape != expected) {
    return fail("tensor {}: expected {} {}, found {} {} ({})", name, dtype_name(dtype), shape_text(expected), dtype_name(side->dtype),
                shape_text(side->shape), why);
  }
  *data = reinterpret_cast<const uint8_t*>(checkpoint.data(*side).data());
  return {};
}

}  // namespace

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::f32: return "f32";
    case WeightFormat::fp8_block: return "fp8_block";
    case WeightFormat::mxfp4: return "mxfp4";
  }
  return "?";
}

std::string scale_tensor_name(std::string_view module, WeightFormat format) {
  switch (format) {
    case WeightFormat::fp8_block: return std::string(module) + ".weight_scale_inv";
    case WeightFormat::mxfp4: return std::string(module) + ".weight_scale";
    default: return {};
  }
}

Result<WeightView> linear_view(const Checkpoint& checkpoint, std::string_view module) {
  const std::string name = std::string(module) + ".weight";
  const TensorInfo* weight = checkpoint.find(name);
  if (weight == nullptr) return fail("tensor {} is missing", name);
  if (weight->shape.size() != 2) return fail("tensor {}: expected two dimensions, found {}", name, shape_text(weight->shape));
  WeightView view;
  view.data = reinterpret_cast<const uint8_t*>(checkpoint.data(*weight).data());
  view.rows = weight->shape[0];
  view.cols = weight->shape[1];
  switch (weight->dtype) {
    case DType::bf16: view.format = WeightFormat::bf16; break;
    case DType::f32: view.format = WeightFormat::f32; break;
    case DType::f8_e4m3: {
      view.format = WeightFormat::fp8_block;
      const std::string why = fmt::format("{} is F8_E4M3 {}, with one F32 scale a block of 128x128", name, shape_text(weight->shape));
      INGOT_TRY(check_side(checkpoint, scale_tensor_name(module, view.format), why, DType::f32, (view.rows + 127) / 128,
                           (view.cols + 127) / 128, &view.scale));
      break;
    }
    case DType::u8: {
      view.format = WeightFormat::mxfp4;
      view.cols *= 2;
      if (view.cols % 32 != 0)
        return fail("tensor {}: MXFP4 needs columns in multiples of 32, found {} (two in a byte of {})", name, view.cols,
                    shape_text(weight->shape));
      const std::string why = fmt::format("{} is U8 {}: MXFP4, with one e8m0 scale for 32 columns", name, shape_text(weight->shape));
      INGOT_TRY(check_side(checkpoint, scale_tensor_name(module, view.format), why, DType::u8, view.rows, view.cols / 32, &view.scale));
      break;
    }
    default: return fail("tensor {}: dtype {} is none of BF16, F32, F8_E4M3 (FP8 block) and U8 (MXFP4)", name, dtype_name(weight->dtype));
  }
  return view;
}

Result<WeightView> linear_view(const Checkpoint& checkpoint, std::string_view module, int64_t rows, int64_t cols) {
  INGOT_ASSIGN(const WeightView view, linear_view(checkpoint, module));
  if (view.rows != rows || view.cols != cols) {
    return fail("tensor {}.weight: expected ({}, {}), found ({}, {}) in {}", module, rows, cols, view.rows, view.cols,
                weight_format_name(view.format));
  }
  return view;
}

Result<> check_scales(const WeightView& view, std::string_view module) {
  if (view.format == WeightFormat::mxfp4) {
    const int64_t count = view.rows * view.scale_cols();
    const void* nan = std::memchr(view.scale, 255, static_cast<size_t>(count));
    if (nan != nullptr) {
      const int64_t at = static_cast<const uint8_t*>(nan) - view.scale;
      return fail("tensor {}: the e8m0 scale in row {}, column {} is NaN (byte 255)", scale_tensor_name(module, view.format),
                  at / view.scale_cols(), at % view.scale_cols());
    }
  }
  if (view.format == WeightFormat::fp8_block) {
    const int64_t rows = (view.first_row + view.rows + 127) / 128;
    for (int64_t i = 0; i < rows * view.scale_cols(); ++i) {
      float scale = 0;
      std::memcpy(&scale, view.scale + i * 4, 4);
      if (!std::isfinite(scale)) {
        return fail("tensor {}: the scale in row {}, column {} is {}", scale_tensor_name(module, view.format), i / view.scale_cols(),
                    i % view.scale_cols(), scale);
      }
    }
  }
  return {};
}

}  // namespace ingot::tensor
