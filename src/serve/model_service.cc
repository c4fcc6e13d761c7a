#include "serve/model_service.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"
#include "exec/device_drafter.h"
#include "exec/glm_runner.h"
#include "kernels/device/device_kernels.h"
#include "model/memory_plan.h"
#include "model/step_report.h"
#include "spec/model_config.h"
#include "text/grammar.h"

namespace ingot::serve {

namespace {
namespace fs = std::filesystem;
constexpr size_t kMaxTextFile = 64 << 20;
constexpr int64_t kMaxPageSize = 4096;
// Without --max-total-tokens: room for so many full contexts, where the memory allows. A page costs the host's memory only once it is used;
// on a GPU there is room for as many contexts as may run at once.
constexpr int64_t kHostContexts = 4;
// Without --mem-fraction-static: of the memory that the model leaves, for the caches.
constexpr double kHostFraction = 0.5, kDeviceFraction = 0.9;
constexpr int64_t kAssumedHostMemory = int64_t{4} << 30;  // where the system does not tell what is free
constexpr double kGigabyte = 1e9;

Result<> check_range(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return fail("{} {} is out of range: expected {} to {}", flag, value, min, max);
}

Result<> check_seconds(const char* flag, double value) {
  constexpr double kMost = 1e6;
  if (value >= 0 && value <= kMost) return {};
  return fail("{} {} is out of range: expected 0 to {} seconds", flag, value, kMost);
}

std::chrono::milliseconds milliseconds(double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)); }

Result<> check_flags(const ServiceOptions& options) {
  if (options.tp != 1) return fail_hint("leave it at 1", "--tp {} is not supported yet: this build runs a model on one device", options.tp);
  INGOT_TRY(check_range("--dp", options.dp, 1, 256));
  if (options.schedule_policy != "fcfs" && options.schedule_policy != "lpm")
    return fail_hint("use fcfs or lpm", "--schedule-policy {} is unknown", options.schedule_policy);
  if (!(options.mem_fraction_static >= 0 && options.mem_fraction_static < 1))
    return fail("--mem-fraction-static {} is out of range: expected less than 1, or 0 for the default", options.mem_fraction_static);
  INGOT_TRY(check_seconds("--queue-timeout", options.queue_timeout));
  INGOT_TRY(check_seconds("--request-timeout", options.request_timeout));
  INGOT_TRY(check_seconds("--watchdog-timeout", options.watchdog_timeout));
  if (options.watchdog_timeout <= 0) return fail("--watchdog-timeout must be more than 0 seconds");
  if (!(options.hicache_size >= 0)) return fail("--hicache-size {} is out of range: expected gigabytes", options.hicache_size);
  if (!(options.hicache_dir_size > 0)) return fail("--hicache-dir-size {} is out of range: expected gigabytes", options.hicache_dir_size);
  const bool has_host_tier = options.hicache_size > 0 || !options.hicache_dir.empty();
  if (options.disable_radix_cache && has_host_tier)
    return fail_hint("leave one of them out", "--disable-radix-cache and --hicache-size or --hicache-dir contradict each other");
  INGOT_TRY(check_range("--page-size", options.page_size, 1, kMaxPageSize));
  INGOT_TRY(check_range("--chunked-prefill-size", options.chunked_prefill_size, 1, 1 << 20));
  INGOT_TRY(check_range("--max-running-requests", options.max_running_requests, 1, 1 << 16));
  INGOT_TRY(check_range("--max-queued-requests", options.max_queued_requests, 1, 1 << 20));
  INGOT_TRY(check_range("--max-total-tokens", options.max_total_tokens, 0, int64_t{1} << 31));
  INGOT_TRY(check_range("--threads", options.threads, 0, 4096));
  INGOT_ASSIGN(const KvEventsConfig kv_events, parse_kv_events_config(options.kv_events));
  if (kv_events.enabled && options.disable_radix_cache)
    return fail("--kv-events-config needs the prefix cache: leave out --disable-radix-cache");
  return options.speculation.check();
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

// A line of /proc/meminfo in bytes; 0 when there is none.
int64_t host_memory(std::string_view name) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == name) return kib * 1024;
  }
  return 0;
}

int64_t weight_bytes(const tensor::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const tensor::TensorInfo& t : checkpoint.tensors()) bytes += static_cast<int64_t>(checkpoint.data(t).size());
  return bytes;
}

// The context that is asked for: the model's when the flag says nothing.
Result<int64_t> wanted_context(const ServiceOptions& options, const spec::ModelConfig& config) {
  const int64_t trained = config.max_position_embeddings;
  if (options.context_length < 0 || options.context_length > trained)
    return fail("--context-length {} is out of range: the model's max_position_embeddings is {}", options.context_length, trained);
  return options.context_length > 0 ? options.context_length : trained;
}

// `memory` with what the caches want.
model::MemoryRequest with_caches(const ServiceOptions& options, int64_t context, int64_t bytes_per_token, model::MemoryRequest memory) {
  const auto pages = [&](int64_t tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  memory.replicas = options.dp;
  // Of the host not all that is free: the mapped weights need the other part when they are read.
  memory.fraction = options.mem_fraction_static > 0 ? options.mem_fraction_static : memory.mapped ? kHostFraction : kDeviceFraction;
  memory.page_bytes = options.page_size * bytes_per_token;
  memory.page_tokens = options.page_size;
  memory.all_pages = options.max_total_tokens > 0;
  memory.pages = memory.all_pages ? std::max<int64_t>(options.max_total_tokens / options.page_size, 1)
                                  : pages(context * (memory.mapped ? kHostContexts : options.max_running_requests));
  return memory;
}

// The context that a cache of `held` tokens allows.
Result<int64_t> allowed_context(const ServiceOptions& options, int64_t wanted, int64_t held) {
  if (held < wanted) {
    if (options.context_length > 0) {
      return fail_hint("give more --max-total-tokens or less --context-length",
                       "--context-length {} does not fit: the cache holds {} tokens", options.context_length, held);
    }
    log_warn("context length lowered from {} to {} tokens: that is what the cache holds", wanted, held);
  }
  const int64_t context = std::min(wanted, held);
  if (context < 2) return fail("--context-length {} leaves no room for a prompt and an answer", context);
  return context;
}
}  // namespace

Result<tensor::LatentFormat> parse_cache_format(const std::string& flag) {
  if (flag == "auto") return tensor::LatentFormat::bf16;
  if (const auto format = tensor::latent_format_of(flag)) return *format;
  return fail_hint("use auto, bf16, fp8_e4m3, fp8_ds_mla or f32", "--kv-cache-dtype {} is not supported", flag);
}

Result<gpu::DeviceMatmul> parse_device_matmul(const std::string& flag) {
  if (flag == "f32") return gpu::DeviceMatmul::lanes;
  if (flag == "bf16") return gpu::DeviceMatmul::tiles;
  if (flag == "fast") return gpu::DeviceMatmul::fast;
  return fail_hint("use f32, bf16 or fast", "--device-matmul {} is unknown", flag);
}

Result<std::shared_ptr<gpu::Accelerator>> open_device(const ServiceOptions& options) {
  std::shared_ptr<gpu::Accelerator> device;
  if (options.device == "cpu") return device;
  if (options.device != "auto" && options.device != "cuda" && options.device != "hip")
    return fail_hint("use auto, cpu, cuda or hip", "--device {} is unknown", options.device);
  auto opened = kernels::open_accelerator(options.device);
  if (opened) {
    device = std::move(*opened);
    log_info("device: {}", device->info().text());
  } else if (options.device == "auto") {
    log_info("device: cpu ({})", opened.error().text());
  } else {
    return fail("--device {}: {}", options.device, opened.error().text());
  }
  return device;
}

namespace {
Result<Json> read_template_kwargs(const std::string& flag, const RequestDefaults& defaults) {
  if (flag.empty()) return Json::object();
  INGOT_ASSIGN(const Json given, parse_json(flag, "--default-chat-template-kwargs"));
  auto kwargs = parse_template_kwargs(given, defaults);
  if (!kwargs) return fail("--default-chat-template-kwargs: {}", kwargs.error().message);
  return std::move(*kwargs);
}
}  // namespace

Result<std::shared_ptr<ServedModel>> load_served_model(const ServiceOptions& options) {
  INGOT_TRY(check_flags(options));
  std::error_code ec;
  if (!fs::is_directory(options.model, ec)) return fail("{} is not a folder with a checkpoint", options.model.string());
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.model));
  INGOT_ASSIGN(const spec::GenerationConfig generation, spec::load_generation_config(options.model));

  auto served = std::make_shared<ServedModel>();
  served->name = options.served_model_name;
  if (served->name.empty()) served->name = fs::weakly_canonical(options.model, ec).filename().string();
  served->created = unix_seconds();
  served->forced_acceptance = options.speculation.force_acceptance.value_or(0);
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
  INGOT_ASSIGN(defaults.template_kwargs, read_template_kwargs(options.default_chat_template_kwargs, defaults));
  auto grammars =
      text::GrammarCompiler::create(served->tokenizer, {.vocab_size = config.vocab_size, .stop_token_ids = defaults.eos_token_ids});
  if (grammars) {
    served->grammars = std::move(*grammars);
  } else {
    log_warn("answers can't be constrained (response_format, tool_choice required): {}", grammars.error().text());
  }
  log_info("model {}: {}, {} layers, vocabulary {}, {}", served->name, config.architecture, config.num_hidden_layers, config.vocab_size,
           served->chat_template ? "chat template found" : "no chat template: only /v1/completions");
  log_info("sampling defaults: temperature {}, top_p {}, top_k {}; end of sequence ids {}", defaults.temperature, defaults.top_p,
           defaults.top_k, fmt::join(defaults.eos_token_ids, " "));
  return served;
}

Result<MadeRunner> make_glm_runner(const ServiceOptions& options, std::shared_ptr<model::Glm> glm, model::KvCache cache,
                                   std::shared_ptr<ThreadPool> pool) {
  MadeRunner made;
  exec::GlmRunnerOptions runner;
  runner.verify = options.speculation.verify_options();
  runner.speculate = options.speculation.wanted() && glm->has_mtp();
  if (runner.speculate) {
    made.draft.num_steps = options.speculation.depth();
    made.draft.adaptive = options.speculation.adaptive;
    if (made.draft.adaptive) {
      const int64_t rows = std::min<int64_t>(options.chunked_prefill_size, options.max_running_requests * (1 + made.draft.num_steps));
      INGOT_ASSIGN(made.draft.cost, exec::measure_step_cost(*glm, cache, *pool, rows));
      const auto ms = [](double seconds) { return 1e3 * seconds; };
      log_info("measured for adaptive speculation: a step of 1 row {:.3f} ms, of {} rows {:.3f} ms; a draft pass {:.3f} ms",
               ms(made.draft.cost.step.seconds(1)), 1 + made.draft.num_steps, ms(made.draft.cost.step.seconds(1 + made.draft.num_steps)),
               ms(made.draft.cost.pass.seconds(1)));
    }
  }
  made.runner = std::make_unique<exec::GlmRunner>(std::move(glm), std::move(cache), std::move(pool), runner);
  return made;
}

Result<ModelService> load_service(const ServiceOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  INGOT_ASSIGN(const tensor::LatentFormat format, parse_cache_format(options.kv_cache_dtype));
  model::GlmOptions glm_options;
  INGOT_ASSIGN(glm_options.device_matmul, parse_device_matmul(options.device_matmul));
  INGOT_ASSIGN(const std::shared_ptr<ServedModel> served, load_served_model(options));
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.model));
  INGOT_ASSIGN(const std::shared_ptr<gpu::Accelerator> device, open_device(options));
  const int64_t bytes_per_token = model::KvCache::bytes_per_token(config, format);
  INGOT_ASSIGN(const int64_t context, wanted_context(options, config));
  model::MemoryRequest memory;
  if (device) {
    // Before anything is copied: a model that cannot fit is refused at once.
    INGOT_ASSIGN(const gpu::MemoryInfo info, device->driver().memory());
    memory.where = device->info().name;
    memory.total = info.total_bytes;
    memory.free = info.free_bytes;
    INGOT_ASSIGN(const tensor::Checkpoint checkpoint, tensor::Checkpoint::open(options.model));
    memory.weights = weight_bytes(checkpoint);
    INGOT_TRY(model::plan_memory(with_caches(options, context, bytes_per_token, memory)));
  }
  // Each replica loads the checkpoint anew: the mapped pages of the file are shared on the CPU; scratch memory, and a GPU's weights, are
  // not.
  INGOT_ASSIGN(std::shared_ptr<model::Glm> first, model::Glm::load(options.model, glm_options, device));
  model::StepLimits limits;
  limits.logit_rows = options.max_running_requests * (1 + options.speculation.depth());
  limits.rows = std::max(options.chunked_prefill_size, limits.logit_rows);
  limits.context_length = context;
  limits.cache_format = format;
  if (first->has_mtp() && options.speculation.wanted()) limits.kept_rows = exec::DeviceDrafter::kept_rows(options.max_running_requests);
  if (device) {
    memory.weights = static_cast<int64_t>(device->allocated_bytes());
    const auto report = model::reserve_and_report(*first, limits);
    if (!report)
      return fail_hint("lower --chunked-prefill-size, --max-running-requests or --context-length",
                       "no memory for steps of {} rows, {} of them with logits, beside {} MB of weights: {}", limits.rows,
                       limits.logit_rows, memory.weights / 1'000'000, report.error().message);
    for (const std::string& line : *report) log_info("{}", line);
    memory.workspace = static_cast<int64_t>(device->allocated_bytes()) - memory.weights;
    INGOT_ASSIGN(const model::GraphMemory graphs, model::measure_graph_memory(*first));
    INGOT_ASSIGN(const gpu::MemoryInfo now, device->driver().memory());
    // What the driver took for itself: loaded code, stacks, the graphs of the measurement.
    const int64_t of_driver = memory.free - now.free_bytes - memory.weights - memory.workspace;
    memory.graphs = std::max<int64_t>(of_driver, 0) + graphs.bytes;
    log_info("graphs: up to {} of some {} launches, {} bytes a launch", graphs.graphs, graphs.nodes, graphs.node_bytes);
  } else {
    memory.where = "the host";
    memory.total = host_memory("MemTotal:");
    const int64_t available = host_memory("MemAvailable:");
    memory.free = available > 0 ? available : kAssumedHostMemory;
    memory.weights = weight_bytes(first->checkpoint());
    memory.mapped = true;
  }
  INGOT_ASSIGN(const model::MemoryPlan plan, model::plan_memory(with_caches(options, context, bytes_per_token, memory)));
  for (const std::string& line : plan.lines()) log_info("{}", line);
  INGOT_ASSIGN(served->defaults.context_length, allowed_context(options, context, plan.num_pages * options.page_size));
  CacheShape cache;
  cache.num_pages = plan.num_pages;
  cache.page_bytes = options.page_size * bytes_per_token;
  cache.context_length = served->defaults.context_length;
  cache.dtype = tensor::latent_format_name(format);
  log_info("cache: {}{}, {} pages of {} tokens, {} bytes a token, {:.1f} MB{}; context length {}", cache.dtype,
           options.kv_cache_dtype == "auto" ? " (auto)" : "", cache.num_pages, options.page_size, bytes_per_token,
           static_cast<double>(cache.num_pages * cache.page_bytes) / 1e6,
           options.dp > 1 ? fmt::format(" a replica, {} replicas", options.dp) : "", cache.context_length);
  const int threads = std::max(ThreadPool::threads_of(options.threads) / options.dp, 1);
  log_info("steps: up to {} rows, up to {} requests at once, {} more may wait; {} threads", options.chunked_prefill_size,
           options.max_running_requests, options.max_queued_requests,
           options.dp > 1 ? fmt::format("{} x {}", options.dp, threads) : std::to_string(threads));
  if (!first->has_mtp()) {
    log_info("speculation: none, the checkpoint has no MTP layer");
  } else if (!options.speculation.wanted()) {
    log_info("speculation: none (--speculative-algorithm none)");
  } else {
    log_info("speculation: NEXTN, {}{} drafts a step{}", options.speculation.adaptive ? "up to " : "", options.speculation.depth(),
             options.speculation.use_rejection_sampling ? ", rejection sampling" : "");
  }
  if (!options.hicache_dir.empty()) {
    // Pages of a server that did not keep up the MTP layer have no rows of it, and those of another machine have other bits.
    std::string contents = cache.dtype;
    if (options.speculation.wanted() && first->has_mtp()) contents += " with MTP";
    if (device) contents += fmt::format(" on a GPU in {}", options.device_matmul);
    INGOT_ASSIGN(cache.model_identity, exec::model_identity(options.model, contents, options.page_size));
  }
  const auto make_runner = [&](int) -> Result<MadeRunner> {
    std::shared_ptr<model::Glm> glm = std::exchange(first, nullptr);
    if (glm == nullptr) {
      std::shared_ptr<gpu::Accelerator> another;
      if (device) {
        INGOT_ASSIGN(another, kernels::open_accelerator(options.device));
      }
      INGOT_ASSIGN(glm, model::Glm::load(options.model, glm_options, another));
      gpu::Stream stream;
      INGOT_TRY(glm->reserve(stream, limits));
    }
    INGOT_ASSIGN(auto kv, model::KvCache::create(config, {.format = format, .num_pages = plan.num_pages, .page_size = options.page_size},
                                                 glm->device()));
    return make_glm_runner(options, std::move(glm), std::move(kv), std::make_shared<ThreadPool>(threads));
  };
  INGOT_ASSIGN(ModelService service, assemble_service(options, served, cache, make_runner));
  log_info("loaded in {:.2f} s", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  return service;
}

Result<ModelService> assemble_service(const ServiceOptions& options, std::shared_ptr<const ServedModel> model, const CacheShape& cache,
                                      const RunnerFactory& make_runner) {
  ModelService service;
  service.model = std::move(model);
  Engine::Options engine;
  engine.scheduler = {.num_pages = cache.num_pages,
                      .page_size = options.page_size,
                      .chunked_prefill_size = options.chunked_prefill_size,
                      .max_running_requests = options.max_running_requests,
                      .context_length = cache.context_length,
                      .policy = options.schedule_policy == "lpm" ? sched::Policy::lpm : sched::Policy::fcfs,
                      .prefix_cache = !options.disable_radix_cache,
                      .draft = {}};  // each runner has its own
  engine.max_queued_requests = options.max_queued_requests;
  engine.queue_timeout = milliseconds(options.queue_timeout);
  engine.request_timeout = milliseconds(options.request_timeout);
  engine.stall_limit = milliseconds(options.watchdog_timeout);

  const auto page_bytes = static_cast<double>(cache.page_bytes);
  if (options.hicache_size > 0) {
    engine.scheduler.host_pages = static_cast<int64_t>(options.hicache_size * kGigabyte / options.dp / page_bytes);
    if (engine.scheduler.host_pages < 1) {
      return fail("--hicache-size {} is too small: a page has {} bytes, and each of {} replicas needs one", options.hicache_size,
                  cache.page_bytes, options.dp);
    }
  } else if (!options.hicache_dir.empty()) {
    engine.scheduler.host_pages = cache.num_pages;
  }
  if (engine.scheduler.host_pages > 0) {
    log_info("host tier: {} pages, {:.1f} MB{}", engine.scheduler.host_pages,
             static_cast<double>(engine.scheduler.host_pages) * page_bytes / 1e6, options.dp > 1 ? " a replica" : "");
  }
  if (!options.hicache_dir.empty()) {
    exec::PageStore::Options store;
    store.dir = options.hicache_dir;
    store.max_bytes = static_cast<int64_t>(options.hicache_dir_size * kGigabyte);
    store.model_identity = cache.model_identity;
    store.page_size = options.page_size;
    store.page_bytes = cache.page_bytes;
    INGOT_ASSIGN(service.store, exec::PageStore::open(store));
    engine.store = service.store.get();
  }

  INGOT_ASSIGN(const KvEventsConfig kv_events, parse_kv_events_config(options.kv_events));
  if (kv_events.enabled) {
    INGOT_ASSIGN(service.kv_events, KvEventPublisher::start(kv_events, service.model->name, options.page_size));
    engine.scheduler.cache_events = true;
    engine.cache_events = [publisher = service.kv_events.get()](int replica, std::vector<sched::CacheEvent>& events) {
      return publisher->push(replica, events);
    };
  }

  if (options.log_requests || !options.request_log.empty()) {
    INGOT_ASSIGN(service.request_log, RequestLog::open(options.request_log.string()));
    engine.observers.push_back(service.request_log.get());
  }
  if (!options.trace_dir.empty()) {
    INGOT_ASSIGN(service.step_trace, StepTrace::open(options.trace_dir));
    engine.observers.push_back(service.step_trace.get());
  }

  std::vector<MadeRunner> made;
  int32_t draft_positions = 0;
  for (int replica = 0; replica < options.dp; ++replica) {
    INGOT_ASSIGN(made.emplace_back(), make_runner(replica));
    const int32_t depth = made.back().draft.num_steps;
    if (depth == 0 && options.speculation.required()) {
      return fail_hint("leave the --speculative flags out", "{}: the checkpoint has no MTP layer, so nothing can be drafted",
                       options.speculation.force_acceptance ? "--speculative-force-acceptance" : "--speculative-algorithm NEXTN");
    }
    draft_positions = std::max(draft_positions, depth);
  }

  MetricsCacheInfo info;
  info.page_size = options.page_size;
  info.pages = cache.num_pages;
  info.host_pages = engine.scheduler.host_pages;
  info.max_context = cache.context_length;
  info.cache_dtype = cache.dtype;
  info.prefix_caching = !options.disable_radix_cache;
  info.draft_positions = draft_positions;
  info.forced_acceptance = service.model->forced_acceptance;
  service.metrics = std::make_unique<Metrics>(service.model->name, options.dp, info);
  if (service.store) service.metrics->set_disk_tier([store = service.store.get()] { return store->stats(); });
  engine.observers.push_back(service.metrics.get());
  engine.forced_acceptance = service.model->forced_acceptance;

  std::vector<std::unique_ptr<Engine>> engines;
  for (int replica = 0; replica < options.dp; ++replica) {
    MadeRunner& next = made[static_cast<size_t>(replica)];
    engine.replica = replica;
    engine.scheduler.draft = std::move(next.draft);
    engines.push_back(std::make_unique<Engine>(engine, std::move(next.runner)));
  }
  service.worker = WorkerInfo{.model_path = options.model,
                              .tokens = cache.num_pages * options.page_size,
                              .page_size = options.page_size,
                              .host_tokens = engine.scheduler.host_pages * options.page_size,
                              .chunked_prefill_size = options.chunked_prefill_size,
                              .max_running_requests = options.max_running_requests,
                              .max_queued_requests = options.max_queued_requests,
                              .cache_dtype = cache.dtype,
                              .device = options.device,
                              .schedule_policy = options.schedule_policy,
                              .draft_steps = draft_positions,
                              .prefix_caching = !options.disable_radix_cache};
  service.dispatcher = std::make_unique<Dispatcher>(std::move(engines), options.page_size, cache.num_pages + engine.scheduler.host_pages);
  return service;
}

}  // namespace ingot::serve
