// `ingot bench serve` and `ingot bench single`: a load on an OpenAI-compatible server, ours or another. Called by main.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ingot::apps {

// Where the load goes.
struct BenchTargetOptions {
  std::string url, model;                 // one of them: a server that runs, or a checkpoint to serve
  std::vector<std::string> server_flags;  // of `ingot serve`, with model
  std::string tokenizer;                  // folder or file; default: the model's
  std::string served_model_name, api_key;
  std::string endpoint = "completions";  // or chat
  std::string count_tokens = "usage";    // logprobs, continuous-usage
  double temperature = 0;
  bool ignore_eos = true;
  std::string speculation;  // on, off; empty: as the server does
  std::string extra_body;   // JSON object
  double timeout_s = 600;
  double start_timeout_s = 600;
};

struct BenchServeOptions {
  BenchTargetOptions target;
  std::string workload = "article";
  double scale = 1, time_scale = 1;
  std::optional<int64_t> input_len, output_len, prefix_len, num_groups, turns, num_requests, concurrency;
  std::optional<double> range_ratio, rate;
  std::string arrival;
  uint64_t seed = 1;
  std::optional<int64_t> warmup_requests;
  double warmup_s = 0, duration_s = 0;
  std::string goodput, find_knee;
  int knee_repeats = 3;
  double knee_tolerance = 0.05;
  std::string json, html;
  bool quiet = false;
};

struct BenchSingleOptions {
  BenchTargetOptions target;
  std::string workload = "aa-single";  // or aa-short
  double scale = 1;
  int64_t runs = 8;
  bool compare_speculation = false;  // without and with it, in turns
  uint64_t seed = 1;
  std::string json;
  bool quiet = false;
};

void add_bench_serve_flags(CLI::App* app, BenchServeOptions& options);
void add_bench_single_flags(CLI::App* app, BenchSingleOptions& options);

// Exit codes: 0; 1 when nothing could be measured, with the reason on standard error; 3 when requests failed (the report says which).
int run_bench_serve(const BenchServeOptions& options);
int run_bench_single(const BenchSingleOptions& options);

}  // namespace ingot::apps
