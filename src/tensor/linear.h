// The format of a linear weight, decided tensor by tensor (never by quantization_config): X.weight U8 with X.weight_scale is MXFP4,
// F8_E4M3 with X.weight_scale_inv is FP8 block, BF16 and F32 are themselves. Source: spec sections 5 and 6.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "tensor/weight_view.h"

namespace ingot::tensor {

std::string_view weight_format_name(WeightFormat format);  // "bf16", "f32", "fp8_block", "mxfp4"

// Names of the side tensors of linear `module` in a format; empty for bf16 and f32.
std::string scale_tensor_name(std::string_view module, WeightFormat format);

// The weight of linear `module` ("model.layers.3.mlp.gate_proj", without ".weight") as stored, rows and cols from its shapes.
// Errors name the tensor, expected and found: absent, not two-dimensional, a dtype no format has, a side tensor missing or of the
// wrong shape or dtype, columns no multiple of 32 (MXFP4).
Result<WeightView> linear_view(const Checkpoint& checkpoint, std::string_view module);

// As linear_view, and the shape must be (rows, cols).
Result<WeightView> linear_view(const Checkpoint& checkpoint, std::string_view module, int64_t rows, int64_t cols);

// A NaN scale byte (255) in an MXFP4 weight is an error that names tensor, row and column. Reads the whole scale tensor.
Result<> check_scales(const WeightView& view, std::string_view module);

}  // namespace ingot::tensor
