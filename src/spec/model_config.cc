#include "spec/model_config.h"

#include <cmath>
#include <limits>

#include "base/file_map.h"

namespace ingot::spec {
namespace {

// config.json of a model with a long exclude list is about 100 kB.
constexpr size_t kMaxConfigBytes = 16 << 20;

// Reads fields and remembers the first error, which names the field.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }
  const Json& get(const char* name) const { return object_[name]; }

  // An integer in [low, high]. Absent: `fallback`, or an error when that is below `low`.
  int64_t integer(const char* name, int64_t low, int64_t high, int64_t fallback = std::numeric_limits<int64_t>::min()) {
    if (!has(name)) {
      if (fallback == std::numeric_limits<int64_t>::min()) complain(fmt::format("{} is missing", name));
      return fallback;
    }
    const Json& value = object_[name];
    if (!value.is_number_integer()) {
      complain(fmt::format("{} must be an integer, found {}", name, short_text(value)));
      return low;
    }
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      complain(fmt::format("{} must be from {} to {}, found {}", name, low, high, short_text(value)));
      return low;
    }
    const auto number = value.get<int64_t>();
    if (number < low || number > high) complain(fmt::format("{} must be from {} to {}, found {}", name, low, high, number));
    return number;
  }
  double number(const char* name, double low, double high, double fallback) {
    if (!has(name)) return fallback;
    const Json& value = object_[name];
    if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high)) {
      complain(fmt::format("{} must be a number from {} to {}, found {}", name, low, high, short_text(value)));
      return fallback;
    }
    return value.get<double>();
  }
  bool boolean(const char* name, bool fallback) {
    if (!has(name)) return fallback;
    if (!object_[name].is_boolean()) {
      complain(fmt::format("{} must be true or false, found {}", name, short_text(object_[name])));
      return fallback;
    }
    return object_[name].get<bool>();
  }
  std::string string(const char* name, std::string fallback) {
    if (!has(name)) return fallback;
    if (!object_[name].is_string()) {
      complain(fmt::format("{} must be a string, found {}", name, short_text(object_[name])));
      return fallback;
    }
    return object_[name].get<std::string>();
  }
  // Absent is fine; another value than `only` is refused.
  void only(const char* name, const Json& only_value, const char* why) {
    if (has(name) && object_[name] != only_value) {
      complain(fmt::format("{} = {} is not supported: {}", name, short_text(object_[name]), why));
    }
  }
  std::vector<int32_t> ids(const char* name, int64_t vocab_size) {
    std::vector<int32_t> out;
    if (!has(name)) return out;
    const Json list = object_[name].is_array() ? object_[name] : Json::array({object_[name]});
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
        complain(fmt::format("{} must hold token ids from 0 to {}, found {}", name, vocab_size - 1, short_text(id)));
        return {};
      }
      out.push_back(id.get<int32_t>());
    }
    return out;
  }

  void complain(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }

  static std::string short_text(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 77) + "..." : text;
  }

 private:
  const Json& object_;
  std::string error_;
};

// "full"/"shared" lists, "FS" patterns, or the rule of frequency and offset: spec section 1.2.
void read_indexer_types(Fields& f, ModelConfig& c) {
  const auto layers = static_cast<size_t>(c.num_hidden_layers);
  if (f.has("indexer_types")) {
    const Json& list = f.get("indexer_types");
    if (!list.is_array() || list.size() != layers) {
      return f.complain(fmt::format("indexer_types must be a list of {} entries (num_hidden_layers), found {}", layers,
                                    list.is_array() ? std::to_string(list.size()) : Fields::short_text(list)));
    }
    for (const Json& entry : list) {
      if (entry != "full" && entry != "shared") {
        return f.complain(
            fmt::format("indexer_types[{}] must be \"full\" or \"shared\", found {}", c.indexer_types.size(), Fields::short_text(entry)));
      }
      c.indexer_types.push_back(entry == "full" ? IndexerType::full : IndexerType::shared);
    }
  } else if (f.has("index_topk_pattern")) {
    const std::string pattern = f.string("index_topk_pattern", "");
    if (pattern.size() != layers || pattern.find_first_not_of("FS") != std::string::npos) {
      return f.complain(fmt::format("index_topk_pattern must be {} letters F or S (num_hidden_layers), found {}", layers,
                                    Fields::short_text(f.get("index_topk_pattern"))));
    }
    for (char letter : pattern) c.indexer_types.push_back(letter == 'F' ? IndexerType::full : IndexerType::shared);
  } else {
    const int64_t freq = f.integer("index_topk_freq", 1, 1 << 20, 1);
    const int64_t offset = f.integer("index_skip_topk_offset", 0, 1 << 20, 2);
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      c.indexer_types.push_back(std::max<int64_t>(i - offset + 1, 0) % std::max<int64_t>(freq, 1) == 0 ? IndexerType::full
                                                                                                       : IndexerType::shared);
    }
  }
  if (!c.indexer_types.empty() && c.indexer_types[0] != IndexerType::full) {
    f.complain("indexer_types[0] must be \"full\": a shared layer reuses the list of a full layer before it");
  }
}

void read_mlp_types(Fields& f, ModelConfig& c) {
  const auto layers = static_cast<size_t>(c.num_hidden_layers);
  f.only("moe_layer_freq", 1, "only 1 is known");
  if (!f.has("mlp_layer_types")) {
    const int64_t dense = f.integer("first_k_dense_replace", 0, c.num_hidden_layers, 0);
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.mlp_layer_types.push_back(i < dense ? MlpType::dense : MlpType::sparse);
    return;
  }
  const Json& list = f.get("mlp_layer_types");
  if (!list.is_array() || list.size() != layers) {
    return f.complain(fmt::format("mlp_layer_types must be a list of {} entries (num_hidden_layers), found {}", layers,
                                  list.is_array() ? std::to_string(list.size()) : Fields::short_text(list)));
  }
  for (const Json& entry : list) {
    if (entry != "dense" && entry != "sparse") {
      return f.complain(fmt::format("mlp_layer_types[{}] must be \"dense\" or \"sparse\", found {}", c.mlp_layer_types.size(),
                                    Fields::short_text(entry)));
    }
    c.mlp_layer_types.push_back(entry == "dense" ? MlpType::dense : MlpType::sparse);
  }
}

void read_rope(Fields& f, ModelConfig& c) {
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!f.has(name)) continue;
    const Json& rope = f.get(name);
    if (!rope.is_object()) return f.complain(fmt::format("{} must be an object, found {}", name, Fields::short_text(rope)));
    Fields r(rope);
    for (const char* type_name : {"rope_type", "type"}) {
      const std::string type = r.string(type_name, "default");
      if (type != "default") {
        return f.complain(fmt::format("{}.{} = \"{}\" is not supported: only \"default\" (no scaling) is known for this architecture", name,
                                      type_name, type));
      }
    }
    c.rope_theta = r.number("rope_theta", 1.0, 1e12, f.number("rope_theta", 1.0, 1e12, 1e6));
    if (r.failed()) return f.complain(fmt::format("{}.{}", name, r.error()));
    return;
  }
  c.rope_theta = f.number("rope_theta", 1.0, 1e12, 1e6);
}

void read_names(Fields& f, const Json& object, const char* field, const std::string& path, std::vector<std::string>& out) {
  if (!object.contains(field) || object[field].is_null()) return;
  if (!object[field].is_array())
    return f.complain(fmt::format("{}.{} must be a list of names, found {}", path, field, Fields::short_text(object[field])));
  for (const Json& name : object[field]) {
    if (!name.is_string()) return f.complain(fmt::format("{}.{} must be a list of names, found {}", path, field, Fields::short_text(name)));
    out.push_back(name.get<std::string>());
  }
}

void read_quark(Fields& f, const Json& q, QuantConfig& out) {
  out.method = QuantConfig::Method::quark_mxfp4;
  out.weight_block_rows = 1;
  out.weight_block_cols = 32;
  read_names(f, q, "exclude", "quantization_config", out.excludes);
  // The specification may sit in the global entry or in any per-layer pattern.
  auto check_spec = [&](const std::string& path, const Json& entry) {
    if (!entry.is_object() || !entry.contains("weight") || !entry["weight"].is_object()) return;
    const Json& weight = entry["weight"];
    auto expect = [&](const char* name, const Json& want) {
      if (weight.contains(name) && !weight[name].is_null() && weight[name] != want) {
        f.complain(
            fmt::format("{}.weight.{} = {} is not supported: expected {}", path, name, Fields::short_text(weight[name]), want.dump()));
      }
    };
    expect("dtype", "fp4");
    expect("scale_format", "e8m0");
    expect("group_size", 32);
  };
  if (q.contains("global_quant_config")) check_spec("quantization_config.global_quant_config", q["global_quant_config"]);
  if (q.contains("layer_quant_config") && q["layer_quant_config"].is_object()) {
    for (const auto& [pattern, entry] : q["layer_quant_config"].items())
      check_spec(fmt::format("quantization_config.layer_quant_config[\"{}\"]", pattern), entry);
  }
}

void read_quant(Fields& f, ModelConfig& c) {
  if (!f.has("quantization_config")) return;
  const Json& q = f.get("quantization_config");
  if (!q.is_object()) return f.complain(fmt::format("quantization_config must be an object, found {}", Fields::short_text(q)));
  Fields fields(q);
  const std::string method = fields.string("quant_method", "");
  if (method == "quark") return read_quark(f, q, c.quant);
  if (method != "fp8")
    return f.complain(fmt::format("quantization_config.quant_method = \"{}\" is not supported: expected \"fp8\" or \"quark\"", method));
  c.quant.method = QuantConfig::Method::fp8_block;
  if (fields.has("fmt") && fields.get("fmt") != "e4m3") {
    return f.complain(
        fmt::format("quantization_config.fmt = {} is not supported: expected \"e4m3\"", Fields::short_text(fields.get("fmt"))));
  }
  if (fields.has("weight_block_size") && fields.get("weight_block_size") != Json::array({128, 128})) {
    return f.complain(fmt::format("quantization_config.weight_block_size = {} is not supported: expected [128, 128]",
                                  Fields::short_text(fields.get("weight_block_size"))));
  }
  c.quant.weight_block_rows = 128;
  c.quant.weight_block_cols = 128;
  read_names(f, q, "modules_to_not_convert", "quantization_config", c.quant.excludes);
}

}  // namespace

Result<ModelConfig> parse_model_config(const Json& config) {
  if (!config.is_object()) return fail("config.json must be an object, found {}", Fields::short_text(config));
  Fields f(config);
  ModelConfig c;
  constexpr const char* kArchitecture = "GlmMoeDsaForCausalLM";
  if (!f.has("architectures") || !f.get("architectures").is_array() || f.get("architectures").size() != 1 ||
      f.get("architectures")[0] != kArchitecture) {
    return fail("config.json: architectures = {} is not supported: expected [\"{}\"]",
                f.has("architectures") ? Fields::short_text(f.get("architectures")) : "(absent)", kArchitecture);
  }
  c.architecture = kArchitecture;
  f.only("model_type", "glm_moe_dsa", "expected \"glm_moe_dsa\"");
  c.dtype = f.string("dtype", f.string("torch_dtype", "bfloat16"));

  // Upper bounds are ten times and more beyond any published model: they keep products of sizes far from overflow.
  constexpr int64_t kMaxWidth = 1 << 20;
  c.hidden_size = f.integer("hidden_size", 1, kMaxWidth);
  c.num_hidden_layers = f.integer("num_hidden_layers", 1, 4096);
  c.num_nextn_predict_layers = f.integer("num_nextn_predict_layers", 0, 1, 0);
  c.intermediate_size = f.integer("intermediate_size", 1, kMaxWidth);
  c.moe_intermediate_size = f.integer("moe_intermediate_size", 1, kMaxWidth);
  c.n_routed_experts = f.integer("n_routed_experts", 1, 4096);
  c.n_shared_experts = f.integer("n_shared_experts", 0, 64, 0);
  c.num_experts_per_tok = f.integer("num_experts_per_tok", 1, 64);
  if (!f.failed() && c.num_experts_per_tok > c.n_routed_experts) {
    f.complain(fmt::format("num_experts_per_tok is {}, more than n_routed_experts {}", c.num_experts_per_tok, c.n_routed_experts));
  }
  c.routed_scaling_factor = static_cast<float>(f.number("routed_scaling_factor", 0, 1e6, 1.0));
  c.norm_topk_prob = f.boolean("norm_topk_prob", true);
  c.num_attention_heads = f.integer("num_attention_heads", 1, 4096);
  c.q_lora_rank = f.integer("q_lora_rank", 1, kMaxWidth);
  c.kv_lora_rank = f.integer("kv_lora_rank", 1, kMaxWidth);
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim", 1, 8192);
  c.qk_rope_head_dim = f.integer("qk_rope_head_dim", 2, 8192);
  c.v_head_dim = f.integer("v_head_dim", 1, 8192);
  c.rope_interleave = f.boolean("rope_interleave", true);
  c.index_head_dim = f.integer("index_head_dim", 2, 8192);
  c.index_n_heads = f.integer("index_n_heads", 1, 4096);
  c.index_topk = f.integer("index_topk", 1, 1 << 24);
  c.indexer_rope_interleave = f.boolean("indexer_rope_interleave", true);
  c.index_share_for_mtp_iteration = f.boolean("index_share_for_mtp_iteration", false);
  c.max_position_embeddings = f.integer("max_position_embeddings", 1, 1 << 30);
  c.rms_norm_eps = f.number("rms_norm_eps", 1e-12, 1.0, 1e-5);
  c.vocab_size = f.integer("vocab_size", 1, 1 << 24);
  c.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  if (!f.failed()) c.eos_token_ids = f.ids("eos_token_id", c.vocab_size);

  f.only("scoring_func", "sigmoid", "only \"sigmoid\" is known");
  f.only("topk_method", "noaux_tc", "only \"noaux_tc\" (selection by biased scores) is known");
  f.only("hidden_act", "silu", "only \"silu\" is known");
  f.only("attention_bias", false, "the architecture has no biases");
  f.only("n_group", 1, "grouped expert selection is not part of this architecture's published models");
  f.only("topk_group", 1, "grouped expert selection is not part of this architecture's published models");
  if (!f.failed() && c.qk_rope_head_dim % 2 != 0) f.complain(fmt::format("qk_rope_head_dim must be even, found {}", c.qk_rope_head_dim));
  if (!f.failed() && c.index_head_dim < c.qk_rope_head_dim) {
    f.complain(fmt::format("index_head_dim {} must be at least qk_rope_head_dim {}: the indexer rotates that many", c.index_head_dim,
                           c.qk_rope_head_dim));
  }
  if (!f.failed()) {
    const int64_t qk = f.integer("qk_head_dim", 1, 16384, c.qk_head_dim());
    if (!f.failed() && qk != c.qk_head_dim()) {
      f.complain(fmt::format("qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}", qk, c.qk_head_dim()));
    }
  }
  read_rope(f, c);
  if (!f.failed()) read_indexer_types(f, c);
  if (!f.failed()) read_mlp_types(f, c);
  read_quant(f, c);
  if (f.failed()) return fail("config.json: {}", f.error());
  return c;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& model_dir) {
  std::error_code ec;
  if (!std::filesystem::exists(model_dir, ec)) return fail("no such folder: {}", model_dir.string());
  const auto path = model_dir / "config.json";
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  INGOT_ASSIGN(const Json config, parse_json(text, path.string()));
  auto parsed = parse_model_config(config);
  if (!parsed) return fail("{}: {}", model_dir.string(), parsed.error().text());
  return parsed;
}

Result<GenerationConfig> load_generation_config(const std::filesystem::path& model_dir) {
  GenerationConfig out;
  const auto path = model_dir / "generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return out;
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  INGOT_ASSIGN(const Json config, parse_json(text, path.string()));
  if (!config.is_object()) return fail("{} must be an object", path.string());
  Fields f(config);
  if (f.has("temperature")) out.temperature = static_cast<float>(f.number("temperature", 0, 100, 1));
  if (f.has("top_p")) out.top_p = static_cast<float>(f.number("top_p", 0, 1, 1));
  if (f.has("top_k")) out.top_k = f.integer("top_k", 0, std::numeric_limits<int32_t>::max(), 0);
  out.eos_token_ids = f.ids("eos_token_id", 1 << 24);
  if (f.failed()) return fail("{}: {}", path.string(), f.error());
  return out;
}

}  // namespace ingot::spec
