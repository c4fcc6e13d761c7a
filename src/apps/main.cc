// The command line: flags to options structs, one subcommand a file. With service_flags.cc the only file that includes CLI11 (ten seconds
// to compile).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "apps/bench_model.h"
#include "apps/bench_prefix_cache.h"
#include "apps/bench_tokenizer.h"
#include "apps/chat.h"
#include "apps/generate.h"
#include "apps/inspect.h"
#include "apps/serve.h"
#include "apps/service_flags.h"

namespace ingot::apps {
namespace {

// Every translation unit is compiled for x86-64-v3; say so instead of dying of an illegal instruction.
bool processor_is_supported() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return true;
  std::fputs("ingot: this processor lacks AVX2, FMA or BMI2; ingot needs x86-64-v3 (Haswell, Zen or later)\n", stderr);
  return false;
}

void add_sampling_flags(CLI::App* app, SamplingFlags& s) {
  app->add_option("--max-tokens", s.max_tokens, "longest answer; default: to the end of the context");
  app->add_option("--temperature", s.temperature, "0: greedy; default: the model's");
  app->add_option("--top-p", s.top_p, "default: the model's");
  app->add_option("--top-k", s.top_k, "-1: off");
  app->add_option("--min-p", s.min_p, "0: off");
  app->add_option("--seed", s.seed, "makes sampling repeatable");
  app->add_option("--stop", s.stop, "ends the answer before this text; may be given several times")->allow_extra_args(false);
  app->add_option("--enable-thinking", s.enable_thinking, "true or false; default: the template's");
  app->add_option("--reasoning-effort", s.reasoning_effort, "none, minimal, low, medium, high, xhigh or max");
}

int main(int argc, char** argv) {
  if (!processor_is_supported()) return 1;
  CLI::App app{"Ingot: GLM-5-class models from checkpoint to service"};
  app.require_subcommand(1);
  app.set_version_flag("--version", INGOT_VERSION);

  InspectOptions inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "what a checkpoint is: tensors, formats, what is missing, memory plan");
  inspect_app->add_option("model", inspect.model, "checkpoint folder")->required();
  inspect_app->add_flag("--json", inspect.json, "machine-readable");

  GenerateOptions generate;
  CLI::App* generate_app = app.add_subcommand("generate", "one answer: its text on standard output, figures on standard error");
  add_model_flags(generate_app, generate.service);
  generate_app->add_option("--prompt", generate.prompt, "the user's message")->required();
  generate_app->add_flag("--raw", generate.raw, "continue the text itself, without the chat template");
  add_sampling_flags(generate_app, generate.sampling);
  generate_app->add_option("--log-level", generate.log_level, "debug, info, warn, error or off")->capture_default_str();

  ChatOptions chat;
  CLI::App* chat_app = app.add_subcommand("chat", "a conversation in the terminal; /reset forgets it, /exit ends");
  add_model_flags(chat_app, chat.service);
  chat_app->add_option("--system", chat.system, "system message");
  add_sampling_flags(chat_app, chat.sampling);
  chat_app->add_option("--log-level", chat.log_level, "debug, info, warn, error or off")->capture_default_str();

  ServeOptions serve;
  CLI::App* serve_app = app.add_subcommand("serve", "an OpenAI-compatible HTTP server");
  add_serve_flags(serve_app, serve);

  CLI::App* bench_app = app.add_subcommand("bench", "speed on this machine");
  bench_app->require_subcommand(1);
  BenchModelOptions bench_model;
  CLI::App* bench_model_app = bench_app->add_subcommand("model", "prefill and decode, beside this machine's measured roofs");
  bench_model_app->add_option("model", bench_model.model, "checkpoint folder")->required();
  bench_model_app->add_option("--prompt-len", bench_model.prompt_len)->capture_default_str();
  bench_model_app->add_option("--decode-len", bench_model.decode_len)->capture_default_str();
  bench_model_app->add_option("--batches", bench_model.batches, "sequences that decode together")->delimiter(',')->capture_default_str();
  bench_model_app->add_option("--chunk", bench_model.chunk, "tokens of a prefill step")->capture_default_str();
  bench_model_app->add_option("--runs", bench_model.runs)->capture_default_str();
  bench_model_app->add_option("--kv-cache-dtype", bench_model.kv_dtype, "bf16, fp8_e4m3 or f32")->capture_default_str();
  bench_model_app->add_option("--threads", bench_model.threads, "0: one per processor")->capture_default_str();
  bench_model_app->add_flag("--json", bench_model.json, "machine-readable");
  BenchTokenizerOptions bench_tokenizer;
  CLI::App* bench_tokenizer_app = bench_app->add_subcommand("tokenizer", "encoding speed on a text file, one thread");
  bench_tokenizer_app->add_option("--tokenizer", bench_tokenizer.tokenizer, "a tokenizer.json")->required();
  bench_tokenizer_app->add_option("--text", bench_tokenizer.text_file, "the text, UTF-8")->required();
  bench_tokenizer_app->add_option("--runs", bench_tokenizer.runs)->capture_default_str();
  bench_tokenizer_app->add_option("--ids-out", bench_tokenizer.ids_out, "write the ids here, int32 little endian");
  BenchPrefixCacheOptions bench_prefix;
  CLI::App* bench_prefix_app = bench_app->add_subcommand("prefix-cache", "hit ratio of the prefix cache on a recorded load, simulated");
  bench_prefix_app->add_option("--trace", bench_prefix.trace, "requests in Mooncake's format, one JSON object a line")->required();
  bench_prefix_app->add_option("--pool-tokens", bench_prefix.pool_tokens, "sizes of the KV cache: 65536, 100k, 1M; all: nothing is evicted")
      ->delimiter(',')
      ->capture_default_str();
  bench_prefix_app->add_option("--host-tokens", bench_prefix.host_tokens, "size of the host tier; 0: none")->capture_default_str();
  bench_prefix_app->add_option("--page-size", bench_prefix.page_size, "tokens a cache page")->capture_default_str();
  bench_prefix_app->add_option("--chunked-prefill-size", bench_prefix.chunked_prefill_size, "token budget of a step")
      ->capture_default_str();
  bench_prefix_app->add_option("--max-running-requests", bench_prefix.max_running_requests, "sequences in a batch")->capture_default_str();
  bench_prefix_app->add_option("--policy", bench_prefix.policy, "fcfs, or lpm: longest cached prefix first")->capture_default_str();
  bench_prefix_app->add_option("--step-ms", bench_prefix.step_ms, "simulated: fixed part of a step")->capture_default_str();
  bench_prefix_app->add_option("--tokens-per-second", bench_prefix.tokens_per_second, "simulated: rows a second")->capture_default_str();
  bench_prefix_app->add_flag("--json", bench_prefix.json, "machine-readable");

  CLI11_PARSE(app, argc, argv);
  if (inspect_app->parsed()) return run_inspect(inspect);
  if (generate_app->parsed()) return run_generate(generate);
  if (chat_app->parsed()) return run_chat(chat);
  if (serve_app->parsed()) return run_serve(serve);
  if (bench_model_app->parsed()) return run_bench_model(bench_model);
  if (bench_tokenizer_app->parsed()) return run_bench_tokenizer(bench_tokenizer);
  if (bench_prefix_app->parsed()) return run_bench_prefix_cache(bench_prefix);
  return 2;
}

}  // namespace
}  // namespace ingot::apps

int main(int argc, char** argv) { return ingot::apps::main(argc, argv); }
