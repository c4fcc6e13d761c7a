// `ingot eval set MODEL --data FILE`: answers a file of tasks through the scheduler and the engine, as the server would, greedily, and
// scores the answers. Called by main.cc alone; eval_divergence.cc shares the reading of files.
//
// A line of the file and its rule are those of `ingot eval demo` (eval/demo_tasks.h), which asks a server. This one runs the model itself,
// so that activations can be rounded, drafts forced, and special tokens seen. bf16_ok and bf16_output, what some other program answered,
// are compared with when they are there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "eval/demo_tasks.h"
#include "eval/paired.h"
#include "serve/openai_api.h"
#include "serve/speculation.h"
#include "tensor/quantize.h"
#include "text/tokenizer.h"

namespace ingot::apps {

struct EvalSetOptions {
  std::filesystem::path model;
  std::filesystem::path data;
  int64_t limit = 0;                    // tasks from the start of the file; 0: all
  int64_t batch = 32;                   // sequences in a batch
  int64_t max_tokens = 0;               // of an answer; 0: by kind, as the published figures were made
  std::string device = "auto";          // cpu, cuda, hip; auto: a GPU when there is one
  std::string device_matmul = "f32";    // see `ingot serve --device-matmul`
  std::string activations = "f32";      // f32, fp8 or mxfp4
  std::string kv_cache_dtype = "auto";  // auto (bf16), bf16, fp8_e4m3, fp8_ds_mla or f32
  int threads = 0;                      // 0: one per processor
  serve::SpeculationOptions speculation;
  std::filesystem::path compare;  // results of an earlier run; empty: none
  std::filesystem::path out;      // where results go; empty: nowhere
};

// The exit status; the report goes to standard output, errors to standard error.
int run_eval_set(const EvalSetOptions& options);

// f32, fp8 or mxfp4. Errors name the flag.
Result<tensor::ActivationFormat> parse_activations(std::string_view name);
// The conversation of a line (messages, tools, enable_thinking, reasoning_effort) as a client would ask for it. Errors name the field.
Result<serve::ChatRequest> chat_request_of(const Json& line, const serve::ServedModel& model);
// The objects of a file with one a line. Errors name file and line.
Result<std::vector<Json>> read_json_lines(const std::filesystem::path& path, int64_t limit);

struct TaskResult {
  std::string id;
  std::string kind;
  bool ok = false;
  std::string finish;  // "stop" or "length"
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;
  std::string output;                                       // whole, special tokens included
  std::vector<std::pair<std::string, std::string>> groups;  // ("steps", "2"), ("family", "f_pct"), ...
  std::optional<bool> recorded_ok;                          // bf16_ok of the task
  std::optional<bool> same_output;                          // output == bf16_output
  serve::SpeculationCounts speculation;
};

// Paired with earlier results by id. Errors: a file that is no result of `eval set`, or has none of the ids.
Result<eval::PairedDifference> compare_results(const std::vector<TaskResult>& now, const Json& earlier);

Json results_json(const EvalSetOptions& options, const std::vector<TaskResult>& results);
std::string results_text(const std::vector<TaskResult>& results);

}  // namespace ingot::apps
