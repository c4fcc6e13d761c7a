// From a checkpoint folder to a running engine: tokenizer, chat template, generation defaults, model, cache, runner. Says what it decided,
// one line each. Called once at start by `ingot serve`, `generate` and `chat`.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/engine.h"
#include "serve/openai_api.h"

namespace ingot::serve {

// Flag names follow SGLang's; 0 and "auto" mean: decide.
struct ServiceOptions {
  std::filesystem::path model;
  std::string served_model_name;        // empty: the folder's name
  std::string kv_cache_dtype = "auto";  // auto (bf16), bf16, fp8_e4m3, f32
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 512;
  int64_t max_running_requests = 32;
  int64_t max_queued_requests = 1024;
  int64_t context_length = 0;    // 0: max_position_embeddings, less when the memory is too small for it
  int64_t max_total_tokens = 0;  // tokens the cache holds; 0: from context length and free memory
  int threads = 0;               // 0: one per processor
  int tp = 1;
  int dp = 1;
};

struct ModelService {
  std::shared_ptr<const ServedModel> model;
  std::unique_ptr<Engine> engine;
};

// Errors name the flag, file or field, what was found and what would be right.
Result<ModelService> load_service(const ServiceOptions& options);

}  // namespace ingot::serve
