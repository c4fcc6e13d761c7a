#include "serve/model_service.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"
#include "exec/glm_runner.h"
#include "model/glm.h"
#include "spec/model_config.h"

namespace ingot::serve {

namespace {
namespace fs = std::filesystem;
constexpr size_t kMaxTextFile = 64 << 20;
constexpr int64_t kMaxPageSize = 4096;
// Without --max-total-tokens: room for so many full contexts, where the memory allows. A page costs memory only once it is used.
constexpr int64_t kDefaultContexts = 4;

Result<tensor::DType> cache_dtype(const std::string& name) {
  if (name == "auto" || name == "bf16") return tensor::DType::bf16;
  if (name == "fp8_e4m3") return tensor::DType::f8_e4m3;
  if (name == "f32") return tensor::DType::f32;
  return fail_hint("use auto, bf16, fp8_e4m3 or f32", "--kv-cache-dtype {} is not supported", name);
}

Result<> check_range(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return fail("{} {} is out of range: expected {} to {}", flag, value, min, max);
}

Result<> check_flags(const ServiceOptions& options) {
  if (options.tp != 1) return fail_hint("leave it at 1", "--tp {} is not supported yet: this build runs a model on one device", options.tp);
  if (options.dp != 1)
    return fail_hint("start several servers behind a router", "--dp {} is not supported yet: this build runs one replica", options.dp);
  INGOT_TRY(check_range("--page-size", options.page_size, 1, kMaxPageSize));
  INGOT_TRY(check_range("--chunked-prefill-size", options.chunked_prefill_size, 1, 1 << 20));
  INGOT_TRY(check_range("--max-running-requests", options.max_running_requests, 1, 1 << 16));
  INGOT_TRY(check_range("--max-queued-requests", options.max_queued_requests, 1, 1 << 20));
  INGOT_TRY(check_range("--max-total-tokens", options.max_total_tokens, 0, int64_t{1} << 31));
  INGOT_TRY(check_range("--threads", options.threads, 0, 4096));
  return {};
}

// bos_token and eos_token of tokenizer_config.json, which some templates print; as text or as {"content": text}.
Result<Json> read_special_tokens(const fs::path& model) {
  Json out = Json::object();
  std::error_code ignored;
  if (!fs::exists(model / "tokenizer_config.json", ignored)) return out;
  INGOT_ASSIGN(const std::string text, read_file(model / "tokenizer_config.json", kMaxTextFile));
  INGOT_ASSIGN(const Json config, parse_json(text, (model / "tokenizer_config.json").string()));
  if (!config.is_object()) return out;
  for (const char* name : {"bos_token", "eos_token"}) {
    Json token = config.value(name, Json());
    if (token.is_object()) token = Json(token.value("content", Json()));
    if (token.is_string()) out[name] = token;
  }
  return out;
}

// The template's source: chat_template.jinja, else tokenizer_config.json's; empty when there is none.
Result<std::string> read_template(const fs::path& model) {
  std::error_code ignored;
  if (fs::exists(model / "chat_template.jinja", ignored)) return read_file(model / "chat_template.jinja", kMaxTextFile);
  if (!fs::exists(model / "tokenizer_config.json", ignored)) return std::string();
  INGOT_ASSIGN(const std::string text, read_file(model / "tokenizer_config.json", kMaxTextFile));
  INGOT_ASSIGN(const Json config, parse_json(text, (model / "tokenizer_config.json").string()));
  const Json found = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array()) {
    for (const Json& entry : found) {
      if (entry.is_object() && entry.value("name", Json()) == "default" && entry.value("template", Json()).is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return std::string();
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return int64_t{4} << 30;
}

struct CachePlan {
  int64_t context_length = 0;
  int64_t num_pages = 0;
};

Result<CachePlan> plan_cache(const ServiceOptions& options, const spec::ModelConfig& config, int64_t bytes_per_token) {
  const int64_t trained = config.max_position_embeddings;
  if (options.context_length < 0 || options.context_length > trained) {
    return fail("--context-length {} is out of range: the model's max_position_embeddings is {}", options.context_length, trained);
  }
  CachePlan plan;
  plan.context_length = options.context_length > 0 ? options.context_length : trained;
  const auto pages = [&](int64_t tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  if (options.max_total_tokens > 0) {
    plan.num_pages = std::max<int64_t>(options.max_total_tokens / options.page_size, 1);
  } else {
    // Half of what is free: the mapped weights need the other part when they are read.
    const int64_t affordable = available_memory_bytes() / 2 / bytes_per_token / options.page_size;
    plan.num_pages = std::clamp<int64_t>(affordable, 1, pages(plan.context_length * kDefaultContexts));
  }
  const int64_t held = plan.num_pages * options.page_size;
  if (held < plan.context_length) {
    if (options.context_length > 0) {
      return fail_hint("give more --max-total-tokens or less --context-length",
                       "--context-length {} does not fit: the cache holds {} tokens", options.context_length, held);
    }
    log_warn("context length lowered from {} to {} tokens: that is what the cache holds", plan.context_length, held);
    plan.context_length = held;
  }
  if (plan.context_length < 2) return fail("--context-length {} leaves no room for a prompt and an answer", plan.context_length);
  return plan;
}
}  // namespace

Result<ModelService> load_service(const ServiceOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  INGOT_TRY(check_flags(options));
  INGOT_ASSIGN(const tensor::DType dtype, cache_dtype(options.kv_cache_dtype));
  std::error_code ec;
  if (!fs::is_directory(options.model, ec)) return fail("{} is not a folder with a checkpoint", options.model.string());
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.model));
  INGOT_ASSIGN(const spec::GenerationConfig generation, spec::load_generation_config(options.model));

  auto served = std::make_shared<ServedModel>();
  served->name = options.served_model_name;
  if (served->name.empty()) served->name = fs::weakly_canonical(options.model, ec).filename().string();
  served->created = unix_seconds();
  INGOT_ASSIGN(served->tokenizer, text::Tokenizer::load(options.model / "tokenizer.json"));
  auto& defaults = served->defaults;
  INGOT_ASSIGN(defaults.chat_template_source, read_template(options.model));
  INGOT_ASSIGN(defaults.special_tokens, read_special_tokens(options.model));
  if (!defaults.chat_template_source.empty()) {
    INGOT_ASSIGN(served->chat_template, text::ChatTemplate::parse(defaults.chat_template_source, "the model's chat template"));
  }
  defaults.temperature = generation.temperature.value_or(1.0f);
  defaults.top_p = generation.top_p.value_or(1.0f);
  defaults.top_k = static_cast<int32_t>(generation.top_k.value_or(0));
  defaults.eos_token_ids = generation.eos_token_ids.empty() ? config.eos_token_ids : generation.eos_token_ids;
  defaults.vocab_size = config.vocab_size;
  log_info("model {}: {}, {} layers, vocabulary {}, {}", served->name, config.architecture, config.num_hidden_layers, config.vocab_size,
           served->chat_template ? "chat template found" : "no chat template: only /v1/completions");
  log_info("sampling defaults: temperature {}, top_p {}, top_k {}; end of sequence ids {}", defaults.temperature, defaults.top_p,
           defaults.top_k, fmt::join(defaults.eos_token_ids, " "));

  INGOT_ASSIGN(auto glm, model::Glm::load(options.model));
  const int64_t bytes_per_token = model::KvCache::bytes_per_token(config, dtype);
  INGOT_ASSIGN(const CachePlan plan, plan_cache(options, config, bytes_per_token));
  INGOT_ASSIGN(auto cache, model::KvCache::create(config, {.dtype = dtype, .num_pages = plan.num_pages, .page_size = options.page_size}));
  auto pool = std::make_shared<ThreadPool>(options.threads);
  defaults.context_length = plan.context_length;
  log_info("cache: {}, {} pages of {} tokens, {} bytes a token, {:.1f} MB; context length {}",
           options.kv_cache_dtype == "auto" ? "bf16 (auto)" : options.kv_cache_dtype, plan.num_pages, options.page_size, bytes_per_token,
           static_cast<double>(plan.num_pages * options.page_size * bytes_per_token) / 1e6, plan.context_length);
  log_info("steps: up to {} rows, up to {} requests at once, {} more may wait; {} threads", options.chunked_prefill_size,
           options.max_running_requests, options.max_queued_requests, pool->num_threads());

  Engine::Options engine_options;
  engine_options.scheduler = {.num_pages = plan.num_pages,
                              .page_size = options.page_size,
                              .chunked_prefill_size = options.chunked_prefill_size,
                              .max_running_requests = options.max_running_requests,
                              .context_length = plan.context_length};
  engine_options.max_queued_requests = options.max_queued_requests;
  ModelService service;
  service.engine = std::make_unique<Engine>(
      engine_options, std::make_unique<exec::GlmRunner>(std::shared_ptr<model::Glm>(std::move(glm)), std::move(cache), std::move(pool)));
  service.model = std::move(served);
  log_info("loaded in {:.2f} s", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  return service;
}

}  // namespace ingot::serve
