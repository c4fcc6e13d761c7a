// Recipe: which linear weight of a checkpoint gets which format. Resolved to module names before anything is read, on the names that the
// checkpoint has. Pure values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "spec/model_config.h"
#include "spec/tensor_inventory.h"
#include "tensor/checkpoint.h"
#include "tensor/quantize_rows.h"
#include "tensor/weight_view.h"

namespace ingot::quant {

// A linear weight of the checkpoint: "model.layers.3.mlp.experts.0.up_proj", without ".weight".
struct Module {
  std::string name;
  spec::TensorKind kind = spec::TensorKind::attention;
  int64_t layer = -1;  // -1: not in a layer
  int64_t rows = 0, cols = 0;
  tensor::WeightFormat source = tensor::WeightFormat::bf16;
};

// Every linear of the architecture that the checkpoint holds, in the inventory's order (top level, then by layer). Errors: a linear that is
// not two-dimensional, of a dtype no format has, or without its scales, by name.
Result<std::vector<Module>> find_modules(const tensor::Checkpoint& checkpoint, const spec::ModelConfig& config);

struct RecipeOptions {
  std::string scheme;  // "mxfp4" or "fp8-block"; empty: the recipe file says
  std::string preset;  // "amd", "all-linear" or the path of a recipe file; empty: amd for mxfp4, all-linear for fp8-block
  // Module names (which cover what is below them), fnmatch globs, or "re:" and a regular expression that must match from the start.
  std::vector<std::string> excludes;
  bool allow_unmatched_excludes = false;
  tensor::ScaleMode scale_mode = tensor::ScaleMode::even;
};

struct Recipe {
  std::string name;  // "amd", "all-linear", or the file's path
  tensor::ScaleMode scale_mode = tensor::ScaleMode::even;
  std::unordered_map<std::string, tensor::WeightFormat> formats;  // modules to pack: fp8_block or mxfp4
  std::vector<std::string> notes;  // what the user should know: unmatched excludes, modules a rule may not touch, fused modules

  // What `module` is packed to; bf16 means: copied as it is.
  tensor::WeightFormat format_of(const std::string& module) const;
};

// Reads the recipe file when the preset is one: {"default": FORMAT, "rules": [{"match": PATTERN, "format": FORMAT}, ...]}, FORMAT one of
// "mxfp4", "fp8-block", "keep". The first rule that matches a module decides; "default" (absent: the scheme) is for the linears of
// all-linear that no rule matches. Embedding, router and the indexer's weights_proj are never packed.
// Errors: an unknown scheme, preset or field; a pattern that is not valid; an exclude or rule that matches no module; columns that are
// no multiple of 32 for MXFP4; a module that is packed already in another format. All by name.
Result<Recipe> make_recipe(const RecipeOptions& options, const spec::ModelConfig& config, const std::vector<Module>& modules);
Result<Recipe> make_recipe(const RecipeOptions& options, const spec::ModelConfig& config, const tensor::Checkpoint& checkpoint);

// The format a module has in the output: the recipe's, or the source's where it is copied.
tensor::WeightFormat output_format(const Recipe& recipe, const Module& module);

// "even", "floor", "ceil", "mse"
Result<tensor::ScaleMode> parse_scale_mode(std::string_view text);
std::string_view scale_mode_name(tensor::ScaleMode mode);

// config.json's quantization_config for the output; null when nothing in it is packed. Quark's form when any module is MXFP4: `exclude`
// lists every linear (the embedding apart) that is not. Else z-ai's FP8 form: `modules_to_not_convert` lists every tensor that is not FP8,
// without ".weight". `tensors`: names of all tensors of the source. Sources: spec sections 5 and 6.4.
Json quantization_config(const Recipe& recipe, const std::vector<Module>& modules, const std::vector<std::string>& tensors);

}  // namespace ingot::quant
