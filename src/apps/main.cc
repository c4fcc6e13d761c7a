// The command line: flags to options structs, one subcommand a file. With *_flags.cc the only files that include CLI11 (ten seconds
// to compile).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "apps/bench_compare.h"
#include "apps/bench_kernels.h"
#include "apps/bench_prefix_cache.h"
#include "apps/bench_serve.h"
#include "apps/bench_shard.h"
#include "apps/bench_speculation.h"
#include "apps/bench_step.h"
#include "apps/bench_tokenizer.h"
#include "apps/chat.h"
#include "apps/eval_divergence.h"
#include "apps/eval_set.h"
#include "apps/eval_task.h"
#include "apps/generate.h"
#include "apps/inspect.h"
#include "apps/quantize.h"
#include "apps/serve.h"
#include "apps/service_flags.h"
#include "base/log.h"

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
  init_log("info");  // to standard error: what a command prints may be JSON. Commands with --log-level set theirs
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

  QuantizeFlags quantize;
  CLI::App* quantize_app = app.add_subcommand("quantize", "a checkpoint in fewer bits: MXFP4 or FP8 blocks, as the published ones are");
  quantize_app->add_option("source", quantize.source, "checkpoint folder: bf16, f32 or FP8 blocks")->required();
  quantize_app->add_option("target", quantize.target, "new or empty folder")->required();
  quantize_app->add_option("--scheme", quantize.scheme, "mxfp4 or fp8-block");
  quantize_app->add_option("--preset", quantize.preset,
                           "amd: experts of the main layers; all-linear: attention, indexer, MLPs, experts, eh_proj; or a recipe file. "
                           "Default: amd for mxfp4, all-linear for fp8-block");
  quantize_app->add_option("--exclude", quantize.excludes, "modules to copy: a name, a glob or re:REGEX; may be given several times")
      ->allow_extra_args(false);
  quantize_app->add_flag("--allow-unmatched-excludes", quantize.allow_unmatched_excludes, "an exclude may match nothing");
  quantize_app->add_option("--scale-mode", quantize.scale_mode, "of MXFP4 scales: even (Quark's), floor, ceil or mse")
      ->capture_default_str();
  quantize_app->add_option("--calibrate", quantize.calibrate, "choose MXFP4 codes by these texts: JSON lines with \"text\" or \"tokens\"");
  quantize_app->add_option("--calibrate-tokens", quantize.calibrate_tokens, "of the texts, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  quantize_app->add_option("--shard-size", quantize.shard_gb, "largest output file, GB")->capture_default_str();
  quantize_app->add_flag("--resume", quantize.resume, "go on where an earlier run with the same options ended");
  quantize_app->add_flag("--dry-run", quantize.dry_run, "print the plan, sizes, time and memory; write nothing");
  quantize_app->add_option("--report", quantize.report, "error of each tensor: a .json, .csv or .html file to write");
  quantize_app->add_option("--threads", quantize.threads, "0: one per processor")->capture_default_str();

  CLI::App* bench_app = app.add_subcommand("bench", "speed on this machine");
  bench_app->require_subcommand(1);
  BenchServeOptions bench_serve;
  CLI::App* bench_serve_app = bench_app->add_subcommand("serve", "a load on an OpenAI-compatible server, ours or another");
  add_bench_serve_flags(bench_serve_app, bench_serve);
  BenchSingleOptions bench_single;
  CLI::App* bench_single_app = bench_app->add_subcommand("single", "one request at a time on such a server: what one user sees");
  add_bench_single_flags(bench_single_app, bench_single);
  BenchStepOptions bench_step;
  CLI::App* bench_step_app = bench_app->add_subcommand("step", "decode steps and prompts, beside this machine's measured roofs");
  add_bench_step_flags(bench_step_app, bench_step);
  BenchKernelsOptions bench_kernels;
  CLI::App* bench_kernels_app = bench_app->add_subcommand("kernels", "every operation of a step, beside the roof that binds it");
  add_bench_kernels_flags(bench_kernels_app, bench_kernels);
  BenchSpeculationOptions bench_speculation;
  CLI::App* bench_speculation_app = bench_app->add_subcommand("speculation", "what the MTP layer's drafts cost and earn");
  bench_speculation_app->add_option("model", bench_speculation.model, "checkpoint folder")->required();
  bench_speculation_app->add_option("--data", bench_speculation.data, "tasks, as of `ingot eval set`")->required();
  bench_speculation_app->add_option("--limit", bench_speculation.limit, "tasks from the start of the file")->capture_default_str();
  bench_speculation_app->add_option("--max-tokens", bench_speculation.max_tokens, "of an answer")->capture_default_str();
  bench_speculation_app->add_option("--speculative-num-steps", bench_speculation.num_steps, "drafted a step")->capture_default_str();
  bench_speculation_app->add_option("--batches", bench_speculation.batches, "sequences that decode together")
      ->delimiter(',')
      ->capture_default_str();
  bench_speculation_app->add_option("--runs", bench_speculation.runs)->capture_default_str();
  bench_speculation_app->add_option("--temperature", bench_speculation.temperature)->capture_default_str();
  bench_speculation_app->add_flag("--speculative-use-rejection-sampling", bench_speculation.rejection_sampling, "as of `ingot serve`");
  bench_speculation_app->add_option("--kv-cache-dtype", bench_speculation.kv_cache_dtype, "bf16, fp8_e4m3, fp8_ds_mla or f32")
      ->capture_default_str();
  bench_speculation_app->add_option("--threads", bench_speculation.threads, "0: one per processor")->capture_default_str();
  bench_speculation_app->add_option("--device", bench_speculation.device, "cpu, cuda, hip, or auto: a GPU when there is one")
      ->capture_default_str();
  bench_speculation_app->add_option("--device-matmul", bench_speculation.device_matmul, "on a GPU: f32, bf16 or fast")
      ->capture_default_str();
  bench_speculation_app->add_flag("--no-graphs", bench_speculation.no_graphs, "launch every kernel of a GPU's step, replay nothing");
  bench_speculation_app->add_flag("--json", bench_speculation.json, "machine-readable");
  BenchTokenizerOptions bench_tokenizer;
  CLI::App* bench_tokenizer_app = bench_app->add_subcommand("tokenizer", "encoding speed on a text file, one thread");
  bench_tokenizer_app->add_option("--tokenizer", bench_tokenizer.tokenizer, "a tokenizer.json")->required();
  bench_tokenizer_app->add_option("--text", bench_tokenizer.text_file, "the text, UTF-8")->required();
  bench_tokenizer_app->add_option("--runs", bench_tokenizer.runs)->capture_default_str();
  bench_tokenizer_app->add_option("--ids-out", bench_tokenizer.ids_out, "write the ids here, int32 little endian");
  BenchShardOptions shard;
  CLI::App* shard_app = bench_app->add_subcommand("shard", "one tensor-parallel rank with random weights, timed operation by operation");
  shard_app->add_option("--spec", shard.spec, "glm-5.2 or tiny")->capture_default_str();
  shard_app->add_option("--tp", shard.tp, "ranks that share the model: 1, 2, 4 or 8")->capture_default_str();
  shard_app->add_option("--layers", shard.layers, "0: all; else so many, of every kind")->capture_default_str();
  shard_app->add_option("--weights", shard.weights, "of the experts: mxfp4, fp8 or bf16")->capture_default_str();
  shard_app->add_option("--attention-weights", shard.attention_weights, "bf16 or fp8; default: fp8 with fp8, else bf16");
  shard_app->add_option("--mtp-weights", shard.mtp_weights, "of the MTP layer's experts; default: bf16 with mxfp4, else as --weights");
  shard_app->add_option("--kv-dtype", shard.kv_dtype, "bf16, fp8_e4m3, fp8_ds_mla or f32")->capture_default_str();
  shard_app->add_option("--routing", shard.routing, "uniform, or zipf: popular experts")->capture_default_str();
  shard_app->add_option("--tokens", shard.tokens, "rows of decode steps; multiples of 6: 6 rows a sequence")
      ->delimiter(',')
      ->capture_default_str();
  shard_app->add_option("--context", shard.context, "positions that a decoded row sees")->capture_default_str();
  shard_app->add_option("--prefill", shard.prefill, "rows of the prefill step; 0: none")->capture_default_str();
  shard_app->add_option("--cached", shard.cached, "positions before them")->capture_default_str();
  shard_app->add_option("--runs", shard.runs, "of each step")->capture_default_str();
  shard_app->add_option("--time-limit", shard.time_limit_s, "seconds of a step's runs; fewer are made when it is over")
      ->capture_default_str();
  shard_app->add_option("--device", shard.device, "cpu, cuda, hip, or auto: a GPU when there is one")->capture_default_str();
  shard_app->add_option("--device-matmul", shard.device_matmul, "on a GPU: f32, bf16 or fast")->capture_default_str();
  shard_app->add_flag("--no-graphs{false}", shard.graphs, "launch every kernel, replay nothing");
  shard_app->add_flag("--check", shard.check, "compare layers with the plain kernels first; exit code 3 when one is wrong");
  shard_app->add_flag("--project", shard.project, "what a node of eight GPUs would do");
  shard_app->add_option("--json", shard.json, "write the report here, too; -: to standard output, in place of the text");
  BenchCompareOptions compare;
  CLI::App* compare_app =
      bench_app->add_subcommand("compare", "two reports side by side: of `ingot bench serve`, `single`, `step`, `kernels` or `shard`");
  compare_app->add_option("a", compare.a, "a JSON file")->required();
  compare_app->add_option("b", compare.b, "another")->required();
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

  CLI::App* eval_app = app.add_subcommand("eval", "what a checkpoint is worth: against another one, or on tasks with answers");
  eval_app->require_subcommand(1);
  EvalDivergenceOptions divergence;
  CLI::App* divergence_app = eval_app->add_subcommand("divergence", "how far one checkpoint's predictions are from another's");
  divergence_app->add_option("reference", divergence.reference, "checkpoint folder")->required();
  divergence_app->add_option("candidate", divergence.candidate, "checkpoint folder")->required();
  divergence_app->add_option("--data", divergence.data, "documents: .jsonl with messages or prompt, or plain text")->required();
  divergence_app->add_option("--max-tokens", divergence.max_tokens, "of a document")->capture_default_str();
  divergence_app->add_option("--limit", divergence.limit, "documents; 0: all")->capture_default_str();
  divergence_app->add_option("--activations", divergence.activations, "inputs of quantised linears: f32, fp8 or mxfp4")
      ->capture_default_str();
  divergence_app->add_option("--threads", divergence.threads, "kernel threads; 0: one per processor")->capture_default_str();
  divergence_app->add_option("--json", divergence.json, "write the report here, too");
  EvalSetOptions eval_set;
  CLI::App* eval_set_app = eval_app->add_subcommand("set", "answers a file of tasks and scores the answers");
  eval_set_app->add_option("model", eval_set.model, "checkpoint folder")->required();
  eval_set_app->add_option("--data", eval_set.data, "tasks, one JSON object a line")->required();
  eval_set_app->add_option("--limit", eval_set.limit, "tasks from the start; 0: all")->capture_default_str();
  eval_set_app->add_option("--batch", eval_set.batch, "sequences in a batch")->capture_default_str();
  eval_set_app->add_option("--max-tokens", eval_set.max_tokens, "of an answer; 0: word 220, tool 260, retr 60")->capture_default_str();
  eval_set_app->add_option("--device", eval_set.device, "cpu, cuda, hip, or auto: a GPU when there is one")->capture_default_str();
  eval_set_app->add_option("--device-matmul", eval_set.device_matmul, "on a GPU: f32, bf16 or fast")->capture_default_str();
  eval_set_app->add_option("--activations", eval_set.activations, "inputs of quantised linears: f32, fp8 or mxfp4")->capture_default_str();
  eval_set_app->add_option("--kv-cache-dtype", eval_set.kv_cache_dtype, "auto (bf16), bf16, fp8_e4m3, fp8_ds_mla or f32")
      ->capture_default_str();
  eval_set_app->add_option("--threads", eval_set.threads, "kernel threads; 0: one per processor")->capture_default_str();
  add_speculation_flags(eval_set_app, eval_set.speculation);
  eval_set_app->add_option("--compare", eval_set.compare, "results of an earlier run: a paired test against them");
  eval_set_app->add_option("--out", eval_set.out, "write results here");

  EvalTaskFlags eval_tasks;
  add_eval_task_flags(eval_app, eval_tasks);

  CLI11_PARSE(app, argc, argv);
  if (inspect_app->parsed()) return run_inspect(inspect);
  if (generate_app->parsed()) return run_generate(generate);
  if (chat_app->parsed()) return run_chat(chat);
  if (serve_app->parsed()) return run_serve(serve);
  if (quantize_app->parsed()) return run_quantize(quantize);
  if (bench_serve_app->parsed()) return run_bench_serve(bench_serve);
  if (bench_single_app->parsed()) return run_bench_single(bench_single);
  if (bench_step_app->parsed()) return run_bench_step(bench_step);
  if (bench_kernels_app->parsed()) return run_bench_kernels(bench_kernels);
  if (bench_speculation_app->parsed()) return run_bench_speculation(bench_speculation);
  if (shard_app->parsed()) return run_bench_shard(shard);
  if (compare_app->parsed()) return run_bench_compare(compare);
  if (bench_tokenizer_app->parsed()) return run_bench_tokenizer(bench_tokenizer);
  if (bench_prefix_app->parsed()) return run_bench_prefix_cache(bench_prefix);
  if (divergence_app->parsed()) return run_eval_divergence(divergence);
  if (eval_set_app->parsed()) return run_eval_set(eval_set);
  if (const auto status = run_eval_task(eval_app, eval_tasks)) return *status;
  return 2;
}

}  // namespace
}  // namespace ingot::apps

int main(int argc, char** argv) { return ingot::apps::main(argc, argv); }
