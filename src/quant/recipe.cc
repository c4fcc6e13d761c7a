#include "quant/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/file_map.h"
#include "spec/module_pattern.h"
#include "tensor/linear.h"

namespace ingot::quant {
namespace {

using spec::ModulePattern;
using spec::TensorKind;
using tensor::ScaleMode;
using tensor::WeightFormat;

constexpr size_t kMaxRecipeBytes = 16 << 20;

Result<ModulePattern> parse_pattern(const std::string& text, const std::string& where) {
  auto pattern = ModulePattern::parse(text);
  if (!pattern) return fail("{}: {}", where, pattern.error().message);
  return pattern;
}

// "mxfp4", "fp8-block" or "keep", which is bf16: copied as it is.
Result<WeightFormat> parse_format(const std::string& text, const std::string& where) {
  if (text == "mxfp4") return WeightFormat::mxfp4;
  if (text == "fp8-block") return WeightFormat::fp8_block;
  if (text == "keep") return WeightFormat::bf16;
  return fail("{}: \"{}\" is not a format: expected \"mxfp4\", \"fp8-block\" or \"keep\"", where, text);
}

const char* format_flag(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? "mxfp4" : format == WeightFormat::fp8_block ? "fp8-block" : "keep";
}

// The runtimes read these as plain matrices: packed they would not load.
bool never_packed(const Module& m) {
  return m.kind == TensorKind::embedding || m.kind == TensorKind::router ||
         (m.kind == TensorKind::indexer && m.name.ends_with(".weights_proj"));
}

bool in_all_linear(const Module& m) { return !never_packed(m) && m.kind != TensorKind::head; }

bool in_amd(const Module& m, const spec::ModelConfig& config) {
  return m.layer < config.num_hidden_layers && (m.kind == TensorKind::routed_expert || m.kind == TensorKind::shared_expert);
}

struct Rule {
  ModulePattern pattern;
  WeightFormat format;
};

struct RecipeFile {
  std::vector<Rule> rules;
  WeightFormat fallback = WeightFormat::bf16;
};

Result<RecipeFile> read_recipe_file(const RecipeOptions& options, std::optional<WeightFormat> scheme) {
  const std::string& path = options.preset;
  auto text = read_file(path, kMaxRecipeBytes);
  if (!text) return fail_hint("--preset takes \"amd\", \"all-linear\" or a recipe file", "{}", text.error().message);
  INGOT_ASSIGN(const Json json, parse_json(*text, path, {.reject_duplicate_keys = true}));
  if (!json.is_object()) return fail("{}: a recipe is an object with \"rules\" and, if wanted, \"default\"", path);
  for (const auto& [key, value] : json.items()) {
    if (key != "default" && key != "rules") return fail("{}: unknown field \"{}\": expected \"default\" and \"rules\"", path, key);
  }
  RecipeFile out;
  if (json.contains("default")) {
    if (!json["default"].is_string()) return fail("{}: default must be a string", path);
    INGOT_ASSIGN(out.fallback, parse_format(json["default"], path + ": default"));
    if (scheme && *scheme != out.fallback)
      return fail("--scheme {} contradicts {}, whose default is \"{}\"", options.scheme, path, format_flag(out.fallback));
  } else if (scheme) {
    out.fallback = *scheme;
  } else {
    return fail("{} has no \"default\": give --scheme", path);
  }
  if (!json.contains("rules")) return out;
  if (!json["rules"].is_array()) return fail("{}: rules must be a list", path);
  for (size_t i = 0; i < json["rules"].size(); ++i) {
    const Json& rule = json["rules"][i];
    const std::string where = fmt::format("{}: rules[{}]", path, i);
    if (!rule.is_object() || rule.size() != 2 || !rule.contains("match") || !rule.contains("format") || !rule["match"].is_string() ||
        !rule["format"].is_string())
      return fail("{} must be {{\"match\": pattern, \"format\": format}}", where);
    INGOT_ASSIGN(ModulePattern pattern, parse_pattern(rule["match"].get<std::string>(), where));
    INGOT_ASSIGN(const WeightFormat format, parse_format(rule["format"].get<std::string>(), where));
    out.rules.push_back({std::move(pattern), format});
  }
  return out;
}

// "3, 4, 5 and 72 more"
std::string some_of(const std::set<int64_t>& values) {
  std::string out;
  size_t shown = 0;
  for (const int64_t v : values) {
    if (shown == 4 && values.size() > 5) return out + fmt::format(" and {} more", values.size() - shown);
    out += (shown++ == 0 ? "" : ", ") + std::to_string(v);
  }
  return out;
}

// Matrices that runtimes join into one: when their formats differ, such a runtime must keep them apart or refuse.
void note_fused(Recipe& recipe, const std::vector<Module>& modules) {
  std::map<std::string, std::set<WeightFormat>> pairs, experts, shared;
  std::map<std::string, int64_t> layer_of;
  for (const Module& m : modules) {
    const WeightFormat format = output_format(recipe, m);
    const auto dot = m.name.rfind('.');
    const std::string parent = m.name.substr(0, dot), leaf = m.name.substr(dot + 1);
    if (leaf == "gate_proj" || leaf == "up_proj") {
      pairs[parent].insert(format);
      layer_of[parent] = m.layer;
    }
    if (leaf == "q_a_proj" || leaf == "kv_a_proj_with_mqa") {
      pairs[parent + ".q_a_proj"].insert(format);
      layer_of[parent + ".q_a_proj"] = m.layer;
    }
    const std::string layer = std::to_string(m.layer);
    if (m.kind == TensorKind::routed_expert) experts[layer].insert(format);
    if (m.kind == TensorKind::shared_expert) shared[layer].insert(format);
  }
  std::set<int64_t> gate_up, qkv, mixed_experts, beside;
  for (const auto& [parent, formats] : pairs) {
    if (formats.size() > 1) (parent.ends_with(".q_a_proj") ? qkv : gate_up).insert(layer_of[parent]);
  }
  for (const auto& [layer, formats] : experts) {
    if (formats.size() > 1) mixed_experts.insert(std::stoll(layer));
    if (shared.contains(layer) && shared[layer] != formats) beside.insert(std::stoll(layer));
  }
  const auto note = [&](const std::set<int64_t>& layers, const char* what) {
    if (!layers.empty()) recipe.notes.push_back(fmt::format("{}: layers {}", what, some_of(layers)));
  };
  note(gate_up, "gate_proj and up_proj of one MLP differ in format, which runtimes that join them refuse");
  note(qkv, "q_a_proj and kv_a_proj_with_mqa differ in format, which runtimes that join them refuse");
  note(mixed_experts, "the routed experts of one layer differ in format, which runtimes with one grouped kernel refuse");
  note(beside, "shared and routed experts differ in format: runtimes that run the shared one as another routed expert must not do so");
}

Result<> check_packable(const Recipe& recipe, const std::vector<Module>& modules) {
  for (const Module& m : modules) {
    const WeightFormat format = recipe.format_of(m.name);
    if (format == WeightFormat::bf16) continue;
    if (format == WeightFormat::mxfp4 && m.cols % 32 != 0)
      return fail_hint(fmt::format("--exclude {}", m.name), "{} has {} columns: MXFP4 needs a multiple of 32", m.name, m.cols);
    if (m.source == WeightFormat::mxfp4 && format != WeightFormat::mxfp4)
      return fail_hint("start from the bf16 or FP8 checkpoint", "{} is packed as mxfp4 in the source and can't become {}", m.name,
                       format_flag(format));
  }
  return {};
}

void note_mixed_config(Recipe& recipe, const std::vector<Module>& modules) {
  int64_t fp8 = 0, mxfp4 = 0;
  for (const Module& m : modules) {
    fp8 += output_format(recipe, m) == WeightFormat::fp8_block ? 1 : 0;
    mxfp4 += output_format(recipe, m) == WeightFormat::mxfp4 ? 1 : 0;
  }
  if (fp8 == 0 || mxfp4 == 0) return;
  recipe.notes.push_back(fmt::format(
      "{} modules are FP8 blocks beside {} in MXFP4. Quark's configuration has no entry for FP8 with weight_scale_inv tensors, so "
      "they stand in its exclude list. Ingot reads the format of each tensor from the tensor and is not concerned; a runtime that "
      "trusts the list must be told",
      fp8, mxfp4));
}

Json quark_weight_spec(ScaleMode mode) {
  // mse has no name in Quark; its scales are exponents near those of "even". Readers of static weights take the stored scales anyway.
  const std::string_view scale_mode = mode == ScaleMode::mse ? "even" : scale_mode_name(mode);
  return {{"dtype", "fp4"},
          {"is_dynamic", false},
          {"qscheme", "per_group"},
          {"ch_axis", -1},
          {"group_size", 32},
          {"block_size", nullptr},
          {"symmetric", nullptr},
          {"round_method", "half_even"},
          {"scale_type", "float"},
          {"scale_format", "e8m0"},
          {"scale_calculation_mode", std::string(scale_mode)},
          {"mx_element_dtype", nullptr},
          {"observer_cls", "PerBlockMXObserver"},
          {"is_scale_quant", false}};
}

Json quark_config(const Recipe& recipe, const std::vector<Module>& modules) {
  // Activations are rounded by the rule "even" whatever the weights' scales were chosen by: spec section 6.6.
  Json input = quark_weight_spec(ScaleMode::even);
  input["is_dynamic"] = true;
  Json exclude = Json::array();
  for (const Module& m : modules) {
    // Quark looks at linear layers alone, so an embedding is not in the list.
    if (m.kind != TensorKind::embedding && output_format(recipe, m) != WeightFormat::mxfp4) exclude.push_back(m.name);
  }
  return {{"quant_method", "quark"},
          {"global_quant_config",
           {{"weight", quark_weight_spec(recipe.scale_mode)},
            {"input_tensors", input},
            {"output_tensors", nullptr},
            {"bias", nullptr},
            {"target_device", nullptr}}},
          {"layer_quant_config", Json::object()},
          {"layer_type_quant_config", Json::object()},
          {"exclude", exclude},
          {"algo_config", nullptr},
          {"softmax_quant_spec", nullptr},
          {"kv_cache_quant_config", Json::object()},
          {"kv_cache_post_rope", false},
          {"quant_mode", "eager_mode"},
          {"version", "0.11.1"},  // the form's version: that of the published GLM checkpoints
          {"export",
           {{"kv_cache_group", Json::array()},
            {"min_kv_scale", 0.0},
            {"pack_method", "reorder"},
            {"weight_format", "real_quantized"},
            {"weight_merge_groups", nullptr}}}};
}

Json fp8_config(const Recipe& recipe, const std::vector<Module>& modules, const std::vector<std::string>& tensors) {
  std::unordered_set<std::string> packed;
  for (const Module& m : modules) {
    if (output_format(recipe, m) == WeightFormat::fp8_block) packed.insert(m.name);
  }
  std::vector<std::string> kept;
  for (const std::string& tensor : tensors) {
    const std::string name = tensor.ends_with(".weight") ? tensor.substr(0, tensor.size() - 7) : tensor;
    if (!tensor.ends_with(".weight_scale_inv") && !packed.contains(name)) kept.push_back(name);
  }
  std::sort(kept.begin(), kept.end());
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}},
          {"modules_to_not_convert", kept}};
}

}  // namespace

Result<std::vector<Module>> find_modules(const tensor::Checkpoint& checkpoint, const spec::ModelConfig& config) {
  std::unordered_map<std::string, const std::string*> stored;  // inventory name -> name in the checkpoint
  for (const auto& t : checkpoint.tensors()) stored.emplace(spec::canonical_name(t.name), &t.name);
  std::vector<Module> out;
  for (const spec::ExpectedTensor& t : spec::expected_tensors(config)) {
    if (!t.is_linear) continue;
    const auto it = stored.find(t.name);
    if (it == stored.end()) continue;
    const std::string module = it->second->substr(0, it->second->size() - std::string_view(".weight").size());
    INGOT_ASSIGN(const tensor::WeightView view, tensor::linear_view(checkpoint, module));
    out.push_back({module, t.kind, t.layer, view.rows, view.cols, view.format});
  }
  return out;
}

WeightFormat Recipe::format_of(const std::string& module) const {
  const auto it = formats.find(module);
  return it == formats.end() ? WeightFormat::bf16 : it->second;
}

Result<Recipe> make_recipe(const RecipeOptions& options, const spec::ModelConfig& config, const std::vector<Module>& modules) {
  std::optional<WeightFormat> scheme;
  if (!options.scheme.empty()) {
    if (options.scheme != "mxfp4" && options.scheme != "fp8-block")
      return fail("--scheme {} is not known: expected mxfp4 or fp8-block", options.scheme);
    INGOT_ASSIGN(scheme, parse_format(options.scheme, "--scheme"));
  }
  Recipe recipe;
  recipe.scale_mode = options.scale_mode;
  recipe.name = options.preset;
  if (recipe.name.empty()) recipe.name = scheme == WeightFormat::fp8_block ? "all-linear" : "amd";
  const bool is_preset = recipe.name == "amd" || recipe.name == "all-linear";
  if (is_preset && !scheme) return fail("--scheme is required with preset {}: mxfp4 or fp8-block", recipe.name);
  RecipeFile file;
  if (!is_preset) {
    INGOT_ASSIGN(file, read_recipe_file(options, scheme));
  }

  std::vector<ModulePattern> excludes;
  for (const std::string& text : options.excludes) {
    INGOT_ASSIGN(ModulePattern pattern, parse_pattern(text, "--exclude"));
    excludes.push_back(std::move(pattern));
  }
  std::vector<int64_t> exclude_hits(excludes.size()), rule_hits(file.rules.size()), rule_refused(file.rules.size());
  for (const Module& m : modules) {
    WeightFormat format = WeightFormat::bf16;
    if (is_preset) {
      if (recipe.name == "amd" ? in_amd(m, config) : in_all_linear(m)) format = *scheme;
    } else {
      format = in_all_linear(m) ? file.fallback : WeightFormat::bf16;
      for (size_t i = 0; i < file.rules.size(); ++i) {
        if (!file.rules[i].pattern.matches(m.name)) continue;
        const bool refused = never_packed(m) && file.rules[i].format != WeightFormat::bf16;
        ++(refused ? rule_refused : rule_hits)[i];
        format = refused ? WeightFormat::bf16 : file.rules[i].format;
        break;
      }
    }
    for (size_t i = 0; i < excludes.size(); ++i) {
      if (!excludes[i].matches(m.name)) continue;
      ++exclude_hits[i];
      format = WeightFormat::bf16;
    }
    if (format != WeightFormat::bf16 && format != m.source) recipe.formats.emplace(m.name, format);
  }
  for (size_t i = 0; i < excludes.size(); ++i) {
    if (exclude_hits[i] > 0) continue;
    if (!options.allow_unmatched_excludes)
      return fail_hint("check the name against `ingot inspect`, or give --allow-unmatched-excludes",
                       "--exclude {} matches no linear weight of the checkpoint", excludes[i].text());
    recipe.notes.push_back(fmt::format("--exclude {} matches no linear weight of the checkpoint", excludes[i].text()));
  }
  for (size_t i = 0; i < file.rules.size(); ++i) {
    if (rule_refused[i] > 0)
      recipe.notes.push_back(fmt::format("rule {} also matches {} modules that are never packed (embedding, router, weights_proj): kept",
                                         file.rules[i].pattern.text(), rule_refused[i]));
    if (rule_hits[i] == 0 && rule_refused[i] == 0)
      return fail_hint("an earlier rule may take all that it matches", "{}: rule {} matches no linear weight of the checkpoint",
                       recipe.name, file.rules[i].pattern.text());
  }
  INGOT_TRY(check_packable(recipe, modules));
  note_fused(recipe, modules);
  note_mixed_config(recipe, modules);
  return recipe;
}

Result<Recipe> make_recipe(const RecipeOptions& options, const spec::ModelConfig& config, const tensor::Checkpoint& checkpoint) {
  INGOT_ASSIGN(const std::vector<Module> modules, find_modules(checkpoint, config));
  return make_recipe(options, config, modules);
}

WeightFormat output_format(const Recipe& recipe, const Module& module) {
  const WeightFormat format = recipe.format_of(module.name);
  return format == WeightFormat::bf16 ? module.source : format;
}

Result<ScaleMode> parse_scale_mode(std::string_view text) {
  for (const ScaleMode mode : {ScaleMode::even, ScaleMode::floor, ScaleMode::ceil, ScaleMode::mse}) {
    if (scale_mode_name(mode) == text) return mode;
  }
  return fail("--scale-mode {} is not known: expected even, floor, ceil or mse", text);
}

std::string_view scale_mode_name(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::even: return "even";
    case ScaleMode::floor: return "floor";
    case ScaleMode::ceil: return "ceil";
    case ScaleMode::mse: return "mse";
  }
  return "?";
}

Json quantization_config(const Recipe& recipe, const std::vector<Module>& modules, const std::vector<std::string>& tensors) {
  bool any_mxfp4 = false, any_fp8 = false;
  for (const Module& m : modules) {
    any_mxfp4 |= output_format(recipe, m) == WeightFormat::mxfp4;
    any_fp8 |= output_format(recipe, m) == WeightFormat::fp8_block;
  }
  if (any_mxfp4) return quark_config(recipe, modules);
  if (any_fp8) return fp8_config(recipe, modules, tensors);
  return nullptr;
}

}  // namespace ingot::quant
