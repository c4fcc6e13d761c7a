#include "apps/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "spec/module_pattern.h"
#include "tensor/linear.h"

namespace ingot::apps {
namespace {

using spec::ExpectedTensor;
using spec::ModelConfig;
using spec::TensorKind;
using tensor::Checkpoint;
using tensor::TensorInfo;
using tensor::WeightFormat;

// A chunk of this many tokens is what the workspace estimate is for: the default of --chunked-prefill-size.
constexpr int64_t kChunk = 512;

std::string bytes_text(int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

// 1234567 -> "1,234,567"
std::string number_text(int64_t value) {
  std::string text = std::to_string(value);
  for (auto i = static_cast<ptrdiff_t>(text.size()) - 3; i > 0; i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

std::string dtype_format(tensor::DType type) {
  if (type == tensor::DType::bf16) return "bf16";
  if (type == tensor::DType::f32) return "f32";
  return std::string(tensor::dtype_name(type));
}

struct Bytes {
  int64_t latent = 0, index = 0;
  int64_t total() const { return latent + index; }
};

// Cache bytes a token over all layers, the MTP layer's included. Index keys are f32 beside an f32 cache, else bf16.
Bytes cache_bytes(const ModelConfig& c, int64_t latent_size, int64_t index_size) {
  Bytes out;
  for (int64_t i = 0; i < c.total_layers(); ++i) {
    out.latent += c.latent_dim() * latent_size;
    if (c.has_indexer(i)) out.index += c.index_head_dim * index_size;
  }
  return out;
}

// Activations of one step of kChunk tokens at `context` positions, in f32: the larger of attention's and the MLP's, and the logits of one
// row.
int64_t workspace_bytes(const ModelConfig& c, int64_t context) {
  const int64_t attention = c.q_lora_rank + 2 * c.num_attention_heads * (c.latent_dim() + c.qk_head_dim() + c.v_head_dim) +
                            2 * c.latent_dim() + c.index_n_heads * c.index_head_dim + c.index_topk + context;
  const int64_t moe = c.num_experts_per_tok * (3 * c.moe_intermediate_size + c.hidden_size) + c.n_routed_experts;
  const int64_t row = 3 * c.hidden_size + std::max({attention, moe, 3 * c.intermediate_size});
  return 4 * (kChunk * row + c.vocab_size);
}

// Why a tensor that the model has no place for may be there.
std::string unused_reason(const std::string& name, const ModelConfig& c) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (name.starts_with(kPrefix)) {
    const int64_t layer = std::atoll(name.c_str() + kPrefix.size());
    if (layer >= c.total_layers()) {
      return fmt::format("the model has {} layers{}", c.total_layers(),
                         c.num_nextn_predict_layers == 0 ? "; num_nextn_predict_layers is 0, so an MTP layer is not read" : "");
    }
    if (name.find(".self_attn.indexer.") != std::string::npos)
      return "this layer is \"shared\" in indexer_types: it reuses an earlier layer's list";
    if (name.ends_with("weight_scale") || name.ends_with("weight_scale_inv")) return "a scale whose weight is not packed";
  }
  return "no tensor of this architecture has this name";
}

std::string missing_reason(const ExpectedTensor& t, const Checkpoint& checkpoint) {
  if (t.layer < 0) return "required by every model of this architecture";
  const std::string prefix = fmt::format("model.layers.{}.", t.layer);
  const auto& all = checkpoint.tensors();
  const auto it =
      std::lower_bound(all.begin(), all.end(), prefix, [](const TensorInfo& info, const std::string& p) { return info.name < p; });
  if (it == all.end() || !it->name.starts_with(prefix)) return fmt::format("the checkpoint has no tensor of layer {} at all", t.layer);
  return fmt::format("expected {} by config.json", tensor::shape_text(t.shape));
}

// Which excludes of quantization_config match which modules, on checkpoint names.
class Excludes {
 public:
  explicit Excludes(const std::vector<std::string>& patterns) {
    for (const auto& pattern : patterns) {
      auto parsed = spec::ModulePattern::parse(pattern);
      patterns_.push_back({pattern, parsed ? std::optional(std::move(*parsed)) : std::nullopt, 0});  // a faulty one matches nothing
      if (patterns_.back().is(Form::name)) exact_[pattern] = patterns_.size() - 1;
    }
  }

  bool matches(const std::string& module) {
    bool any = false;
    // A list has thousands of names, a checkpoint tens of thousands of modules: names are looked up from the module upwards.
    for (size_t end = module.size(); end != std::string::npos && end > 0; end = module.rfind('.', end - 1)) {
      const auto it = exact_.find(module.substr(0, end));
      if (it != exact_.end()) {
        ++patterns_[it->second].hits;
        any = true;
      }
    }
    for (auto& p : patterns_) {
      const bool hit = p.pattern && !p.is(Form::name) && p.pattern->matches(module);
      p.hits += hit ? 1 : 0;
      any |= hit;
    }
    return any;
  }

  void fill(InspectReport& report) const {
    report.num_excludes = static_cast<int64_t>(patterns_.size());
    for (const auto& p : patterns_) {
      ++report.excludes_by_form[p.is(Form::name) ? "exact" : p.is(Form::glob) ? "glob" : "regex"];
      if (p.hits == 0) report.excludes_without_match.push_back(p.text);
    }
  }

 private:
  using Form = spec::ModulePattern::Form;
  struct Pattern {
    std::string text;
    std::optional<spec::ModulePattern> pattern;  // none: faulty
    int64_t hits;
    bool is(Form form) const { return pattern && pattern->form() == form; }
  };
  std::vector<Pattern> patterns_;
  std::unordered_map<std::string, size_t> exact_;
};

void count(InspectReport& report, const ExpectedTensor& t, const std::string& format, int64_t tensors, int64_t bytes) {
  std::string kind(spec::tensor_kind_name(t.kind));
  if (t.layer >= report.config.num_hidden_layers) kind = "MTP: " + kind;
  TensorCount& c = report.by_kind[kind][format];
  c.tensors += tensors;
  c.elements += t.elements();
  c.bytes += bytes;
  report.elements += t.elements();
}

}  // namespace

Result<InspectReport> inspect_checkpoint(const std::string& model) {
  InspectReport report;
  INGOT_ASSIGN(report.config, spec::load_model_config(model));
  INGOT_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model));
  const ModelConfig& config = report.config;
  report.active_parameters = spec::active_parameters(config);
  report.num_shards = static_cast<int64_t>(checkpoint.shards().size());
  for (const auto& shard : checkpoint.shards()) report.file_bytes += static_cast<int64_t>(shard.file_bytes);
  for (const TensorInfo& t : checkpoint.tensors()) {
    TensorCount& c = report.by_dtype[std::string(tensor::dtype_name(t.dtype))];
    ++c.tensors;
    c.elements += t.elements();
    c.bytes += static_cast<int64_t>(t.bytes);
    report.tensor_bytes += static_cast<int64_t>(t.bytes);
  }
  report.num_tensors = static_cast<int64_t>(checkpoint.tensors().size());

  Excludes excludes(config.quant.excludes);
  std::unordered_set<std::string_view> used;
  for (const ExpectedTensor& t : spec::expected_tensors(config)) {
    const TensorInfo* info = checkpoint.find(t.name);
    const std::string module(t.module());
    const bool excluded = !config.quant.excludes.empty() && excludes.matches(module);
    if (info == nullptr) {
      if (!t.optional) report.missing.push_back({t.name, missing_reason(t, checkpoint)});
      continue;
    }
    used.insert(info->name);
    if (!t.is_linear) {
      // The router's bias is refused in bf16 by the loader: rounding it changes which experts are chosen.
      const bool needs_f32 = t.kind == TensorKind::router_bias;
      if (info->shape != t.shape || (info->dtype != tensor::DType::f32 && (needs_f32 || info->dtype != tensor::DType::bf16))) {
        report.faulty.push_back(
            {t.name, fmt::format("expected {} {}, found {} {}", needs_f32 ? "F32" : "BF16 or F32", tensor::shape_text(t.shape),
                                 tensor::dtype_name(info->dtype), tensor::shape_text(info->shape))});
      }
      count(report, t, dtype_format(info->dtype), 1, static_cast<int64_t>(info->bytes));
      continue;
    }
    report.excluded_modules += excluded ? 1 : 0;  // linears alone: norms and biases are never packed
    const auto view = tensor::linear_view(checkpoint, module, t.shape[0], t.shape[1]);
    if (!view) {
      report.faulty.push_back({t.name, view.error().text()});
      continue;
    }
    int64_t bytes = static_cast<int64_t>(info->bytes), tensors = 1;
    const TensorInfo* scale = checkpoint.find(tensor::scale_tensor_name(module, view->format));
    if (scale != nullptr) {
      used.insert(scale->name);
      bytes += static_cast<int64_t>(scale->bytes);
      ++tensors;
    }
    const bool packed = view->format == WeightFormat::mxfp4 || view->format == WeightFormat::fp8_block;
    if (excluded && packed)
      report.exclude_conflicts.push_back(
          {module, fmt::format("excluded by quantization_config, but packed as {}", tensor::weight_format_name(view->format))});
    count(report, t, std::string(tensor::weight_format_name(view->format)), tensors, bytes);
  }
  excludes.fill(report);
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (!used.contains(t.name)) report.unused.push_back({t.name, unused_reason(t.name, config)});
  }
  return report;
}

namespace {

struct CacheForm {
  const char* name;
  int64_t latent_size, index_size;
};
constexpr CacheForm kCacheForms[] = {{"bf16", 2, 2}, {"fp8_e4m3", 1, 2}, {"f32", 4, 4}};

Json count_json(const TensorCount& c) { return {{"tensors", c.tensors}, {"elements", c.elements}, {"bytes", c.bytes}}; }

Json reasons_json(const std::vector<NamedReason>& list) {
  Json out = Json::array();
  for (const auto& entry : list) out.push_back({{"name", entry.name}, {"reason", entry.reason}});
  return out;
}

struct LayerCounts {
  int64_t full = 0, shared = 0, dense = 0, sparse = 0;
};
LayerCounts layer_counts(const ModelConfig& c) {
  LayerCounts out;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    ++(c.has_indexer(i) ? out.full : out.shared);
    ++(c.is_moe(i) ? out.sparse : out.dense);
  }
  return out;
}

const char* method_name(spec::QuantConfig::Method method) {
  switch (method) {
    case spec::QuantConfig::Method::none: return "none";
    case spec::QuantConfig::Method::fp8_block: return "fp8 (128x128 blocks)";
    case spec::QuantConfig::Method::quark_mxfp4: return "quark MXFP4";
  }
  return "?";
}

std::string reasons_text(const char* title, const std::vector<NamedReason>& list) {
  if (list.empty()) return fmt::format("{}: none\n", title);
  constexpr size_t kShown = 12;
  std::string out = fmt::format("{}: {}\n", title, number_text(static_cast<int64_t>(list.size())));
  for (size_t i = 0; i < std::min(list.size(), kShown); ++i) out += fmt::format("  {}: {}\n", list[i].name, list[i].reason);
  if (list.size() > kShown) out += fmt::format("  ... and {} more (--json lists all)\n", list.size() - kShown);
  return out;
}

}  // namespace

Json report_json(const InspectReport& r) {
  const ModelConfig& c = r.config;
  const LayerCounts layers = layer_counts(c);
  Json out;
  out["architecture"] = c.architecture;
  out["sizes"] = {{"hidden_size", c.hidden_size},
                  {"num_hidden_layers", c.num_hidden_layers},
                  {"num_nextn_predict_layers", c.num_nextn_predict_layers},
                  {"num_attention_heads", c.num_attention_heads},
                  {"q_lora_rank", c.q_lora_rank},
                  {"kv_lora_rank", c.kv_lora_rank},
                  {"qk_nope_head_dim", c.qk_nope_head_dim},
                  {"qk_rope_head_dim", c.qk_rope_head_dim},
                  {"v_head_dim", c.v_head_dim},
                  {"index_n_heads", c.index_n_heads},
                  {"index_head_dim", c.index_head_dim},
                  {"index_topk", c.index_topk},
                  {"intermediate_size", c.intermediate_size},
                  {"moe_intermediate_size", c.moe_intermediate_size},
                  {"n_routed_experts", c.n_routed_experts},
                  {"n_shared_experts", c.n_shared_experts},
                  {"num_experts_per_tok", c.num_experts_per_tok},
                  {"vocab_size", c.vocab_size},
                  {"max_position_embeddings", c.max_position_embeddings},
                  {"rope_theta", c.rope_theta}};
  out["layers"] = {{"full", layers.full},
                   {"shared", layers.shared},
                   {"dense", layers.dense},
                   {"moe", layers.sparse},
                   {"mtp", c.num_nextn_predict_layers}};
  out["parameters"] = {{"total", r.elements}, {"active", r.active_parameters}};
  out["files"] = {{"shards", r.num_shards}, {"bytes", r.file_bytes}};
  out["tensors"] = {{"count", r.num_tensors}, {"bytes", r.tensor_bytes}};
  for (const auto& [dtype, n] : r.by_dtype) out["by_dtype"][dtype] = count_json(n);
  for (const auto& [kind, formats] : r.by_kind) {
    for (const auto& [format, n] : formats) out["by_kind"][kind][format] = count_json(n);
  }
  out["missing"] = reasons_json(r.missing);
  out["unused"] = reasons_json(r.unused);
  out["faulty"] = reasons_json(r.faulty);
  out["quantization"] = {{"method", method_name(c.quant.method)},
                         {"excludes", r.num_excludes},
                         {"excluded_modules", r.excluded_modules},
                         {"excludes_by_form", r.excludes_by_form},
                         {"excludes_without_match", r.excludes_without_match},
                         {"exclude_conflicts", reasons_json(r.exclude_conflicts)}};
  Json& memory = out["memory"];
  memory["weights_bytes"] = r.tensor_bytes;
  for (const CacheForm& form : kCacheForms) {
    const Bytes bytes = cache_bytes(c, form.latent_size, form.index_size);
    memory["cache_bytes_per_token"][form.name] = {{"latents", bytes.latent}, {"index_keys", bytes.index}, {"total", bytes.total()}};
  }
  memory["workspace_bytes"] = {
      {"chunk_tokens", kChunk}, {"context_8192", workspace_bytes(c, 8192)}, {"context_131072", workspace_bytes(c, 131072)}};
  return out;
}

std::string report_text(const InspectReport& r) {
  const ModelConfig& c = r.config;
  const LayerCounts layers = layer_counts(c);
  std::string out =
      fmt::format("{}, {} parameters, {} active a token\n", c.architecture, number_text(r.elements), number_text(r.active_parameters));
  out += fmt::format("{} tensors, {} in {} file{}\n\n", number_text(r.num_tensors), bytes_text(r.tensor_bytes), r.num_shards,
                     r.num_shards == 1 ? "" : "s");
  out += fmt::format("layers     {} main: {} full, {} shared; {} dense, {} MoE; {} MTP\n", c.num_hidden_layers, layers.full, layers.shared,
                     layers.dense, layers.sparse, c.num_nextn_predict_layers);
  out += fmt::format("hidden     {}, vocabulary {}, positions {}, rope theta {}\n", c.hidden_size, number_text(c.vocab_size),
                     number_text(c.max_position_embeddings), c.rope_theta);
  out += fmt::format("attention  {} heads: {} nope + {} rope, {} value; latents: q {}, kv {} + {}\n", c.num_attention_heads,
                     c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.q_lora_rank, c.kv_lora_rank, c.qk_rope_head_dim);
  out += fmt::format("indexer    {} heads of {}, top {}\n", c.index_n_heads, c.index_head_dim, c.index_topk);
  out += fmt::format("experts    {} routed of {}, {} a token, {} shared; dense MLP {}\n\n", c.n_routed_experts, c.moe_intermediate_size,
                     c.num_experts_per_tok, c.n_shared_experts, c.intermediate_size);

  out += fmt::format("{:<24} {:<10} {:>9} {:>18} {:>12}\n", "kind", "format", "tensors", "elements", "bytes");
  for (const auto& [kind, formats] : r.by_kind) {
    for (const auto& [format, n] : formats) {
      out += fmt::format("{:<24} {:<10} {:>9} {:>18} {:>12}{}\n", kind, format, number_text(n.tensors), number_text(n.elements),
                         bytes_text(n.bytes), formats.size() > 1 ? "  (mixed)" : "");
    }
  }
  out += "\n";
  for (const auto& [dtype, n] : r.by_dtype) {
    out += fmt::format("{:<24} {:<10} {:>9} {:>18} {:>12}\n", "stored as", dtype, number_text(n.tensors), number_text(n.elements),
                       bytes_text(n.bytes));
  }
  out += "\n" + reasons_text("missing", r.missing) + reasons_text("unused", r.unused) + reasons_text("faulty", r.faulty);

  out += fmt::format("\nquantization: {}", method_name(c.quant.method));
  if (r.num_excludes > 0) {
    out += fmt::format("; {} excludes", number_text(r.num_excludes));
    for (const auto& [form, n] : r.excludes_by_form) out += fmt::format(", {} {}", number_text(n), form);
    out += fmt::format("; they cover {} modules\n", number_text(r.excluded_modules));
    out += fmt::format("excludes that match nothing: {}\n",
                       r.excludes_without_match.empty() ? "none" : number_text(static_cast<int64_t>(r.excludes_without_match.size())));
    for (size_t i = 0; i < std::min<size_t>(r.excludes_without_match.size(), 12); ++i) out += "  " + r.excludes_without_match[i] + "\n";
    out += reasons_text("excluded, yet packed", r.exclude_conflicts);
  } else {
    out += "\n";
  }

  out += fmt::format("\nmemory: weights {}\n", bytes_text(r.tensor_bytes));
  out += fmt::format("{:<10} {:>14} {:>12} {:>14} {:>14} {:>14}\n", "KV cache", "latents/token", "index/token", "total/token", "8k tokens",
                     "128k tokens");
  for (const CacheForm& form : kCacheForms) {
    const Bytes bytes = cache_bytes(c, form.latent_size, form.index_size);
    out += fmt::format("{:<10} {:>14} {:>12} {:>14} {:>14} {:>14}\n", form.name, number_text(bytes.latent) + " B",
                       number_text(bytes.index) + " B", number_text(bytes.total()) + " B", bytes_text(bytes.total() * 8192),
                       bytes_text(bytes.total() * 131072));
  }
  out += fmt::format("workspace  about {} for a chunk of {} tokens at 8k, {} at 128k\n", bytes_text(workspace_bytes(c, 8192)), kChunk,
                     bytes_text(workspace_bytes(c, 131072)));
  return out;
}

int run_inspect(const InspectOptions& options) {
  const auto report = inspect_checkpoint(options.model);
  if (!report) {
    fmt::print(stderr, "ingot inspect: {}\n", report.error().text());
    return 1;
  }
  if (options.json) {
    fmt::print("{}\n", report_json(*report).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}", report_text(*report));
  }
  if (report->missing.empty() && report->faulty.empty()) return 0;
  fmt::print(stderr, "ingot inspect: the checkpoint is not complete: {} tensors are missing, {} are faulty\n", report->missing.size(),
             report->faulty.size());
  return 1;
}

}  // namespace ingot::apps
