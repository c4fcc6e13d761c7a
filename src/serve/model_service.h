// From a checkpoint folder to running engines: tokenizer, chat template, generation defaults, models, caches, runners. Says what it
// decided, one line each. Called once at start by `ingot serve`, `generate` and `chat`.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "exec/page_store.h"
#include "model/glm.h"
#include "sched/draft_policy.h"
#include "serve/dispatcher.h"
#include "serve/kv_events.h"
#include "serve/metrics.h"
#include "serve/openai_api.h"
#include "serve/request_log.h"
#include "serve/speculation.h"
#include "serve/step_trace.h"
#include "serve/worker_api.h"
#include "tensor/latent_format.h"

namespace ingot::serve {

// Flag names follow SGLang's; 0 and "auto" mean: decide.
struct ServiceOptions {
  std::filesystem::path model;
  std::string served_model_name;        // empty: the folder's name
  std::string device = "auto";          // cpu, cuda, hip; auto: a GPU when there is one
  std::string device_matmul = "f32";    // how a GPU multiplies: f32; bf16: activations rounded; fast: and by native kernels
  std::string kv_cache_dtype = "auto";  // auto (bf16), bf16, fp8_e4m3, fp8_ds_mla, f32
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 512;
  int64_t max_running_requests = 32;  // of each replica, as all that follows
  int64_t max_queued_requests = 1024;
  int64_t context_length = 0;    // 0: max_position_embeddings, less when the memory is too small for it
  int64_t max_total_tokens = 0;  // tokens the cache holds; 0: from context length and free memory
  // Of the memory that the model leaves, for the caches of all replicas; 0: 0.5 of the host's, 0.9 of a GPU's.
  double mem_fraction_static = 0;
  std::string schedule_policy = "fcfs";  // fcfs or lpm
  bool disable_radix_cache = false;
  double hicache_size = 0;            // GB of host memory for cached prefixes; 0: as much as the cache itself with hicache_dir, else none
  std::filesystem::path hicache_dir;  // where cached prefixes survive a restart; empty: nowhere
  double hicache_dir_size = 20;       // GB of disk there
  double queue_timeout = 0;           // seconds; 0: none
  double request_timeout = 0;
  double watchdog_timeout = 20;  // a phase of the engine that takes longer makes /health fail
  bool log_requests = false;     // a line a request: to the log, or to request_log
  std::filesystem::path request_log;
  std::filesystem::path trace_dir;
  std::string default_chat_template_kwargs;  // a JSON object, under the chat_template_kwargs of requests; empty: none
  std::string kv_events;                     // vLLM's --kv-events-config, JSON; empty: none
  SpeculationOptions speculation;
  int threads = 0;  // of all replicas together; 0: one per processor
  int tp = 1;
  int dp = 1;
};

// What serves; in order of destruction from the last one up: the engines go first.
struct ModelService {
  std::shared_ptr<const ServedModel> model;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<RequestLog> request_log;
  std::unique_ptr<StepTrace> step_trace;
  std::unique_ptr<exec::PageStore> store;
  std::unique_ptr<KvEventPublisher> kv_events;
  WorkerInfo worker;
  std::unique_ptr<Dispatcher> dispatcher;
};

// What --kv-cache-dtype means; "auto" is bf16. Errors name the flag.
Result<tensor::LatentFormat> parse_cache_format(const std::string& flag);

// What --device-matmul means. Errors name the flag.
Result<gpu::DeviceMatmul> parse_device_matmul(const std::string& flag);
// The GPU that options.device names; null: the CPU. Says which. Errors name the flag: an unknown name, no such GPU, or one that cannot be
// used.
Result<std::shared_ptr<gpu::Accelerator>> open_device(const ServiceOptions& options);

// What the caches are made of.
struct CacheShape {
  int64_t num_pages = 0;  // of each replica
  int64_t page_bytes = 0;
  int64_t context_length = 0;
  std::string dtype;
  uint64_t model_identity = 0;  // with hicache_dir
};

// A runner, and how deep it is to draft: num_steps 0 when it has no draft source.
struct MadeRunner {
  std::unique_ptr<exec::Runner> runner;
  sched::DraftPolicy draft;
};
using RunnerFactory = std::function<Result<MadeRunner>(int replica)>;

// The model's own runner, as options.speculation, chunked_prefill_size and max_running_requests say.
// Errors: a GPU that fails while its steps are measured.
Result<MadeRunner> make_glm_runner(const ServiceOptions& options, std::shared_ptr<model::Glm> glm, model::KvCache cache,
                                   std::shared_ptr<ThreadPool> pool);

// Checks the flags and reads all but the weights: tokenizer, chat template, defaults. Context length and cache are still to be decided.
Result<std::shared_ptr<ServedModel>> load_served_model(const ServiceOptions& options);

// Puts engines around runners, with all that observes them. load_service() ends here; tests come with runners of their own.
// Errors: a runner that cannot draft although options.speculation requires it.
Result<ModelService> assemble_service(const ServiceOptions& options, std::shared_ptr<const ServedModel> model, const CacheShape& cache,
                                      const RunnerFactory& make_runner);

// Errors name the flag, file or field, what was found and what would be right.
Result<ModelService> load_service(const ServiceOptions& options);

}  // namespace ingot::serve
