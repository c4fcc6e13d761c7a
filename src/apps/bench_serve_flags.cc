// Flags of `ingot bench serve` and `ingot bench single`: apart from their code, since CLI11 takes ten seconds to compile.
#include <CLI/CLI.hpp>

#include "apps/bench_serve.h"

namespace ingot::apps {

namespace {
void add_target_flags(CLI::App* app, BenchTargetOptions& o) {
  auto* url = app->add_option("--url", o.url, "a server that runs: http://HOST:PORT");
  auto* model = app->add_option("--model", o.model, "or a checkpoint folder: `ingot serve` is started on a free port, and stopped");
  url->excludes(model);
  app->add_option("--server-flag", o.server_flags, "of `ingot serve`, with --model: --server-flag=--dp=2; may be given several times")
      ->allow_extra_args(false);
  app->add_option("--tokenizer", o.tokenizer, "folder or tokenizer.json: makes prompts of exact token counts; default: the model's");
  app->add_option("--served-model-name", o.served_model_name, "default: the first that the server lists");
  app->add_option("--api-key", o.api_key, "sent as a Bearer token");
  app->add_option("--endpoint", o.endpoint, "completions, or chat (its template's tokens count as input)")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app->add_option("--count-tokens", o.count_tokens,
                  "how an event tells its tokens: usage (of the whole answer), logprobs, or continuous-usage (vLLM, SGLang)")
      ->check(CLI::IsMember({"usage", "logprobs", "continuous-usage"}))
      ->capture_default_str();
  app->add_option("--temperature", o.temperature)->capture_default_str();
  app->add_flag("--no-ignore-eos{false}", o.ignore_eos, "answers may end by themselves; for servers that know no ignore_eos");
  app->add_option("--speculation", o.speculation, "on or off: sent with each request; default: as the server does")
      ->check(CLI::IsMember({"on", "off"}));
  app->add_option("--extra-body", o.extra_body, "a JSON object: put into each request");
  app->add_option("--timeout", o.timeout_s, "seconds a request may take")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--start-timeout", o.start_timeout_s, "seconds that a server of --model may take to be ready")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}
}  // namespace

void add_bench_serve_flags(CLI::App* app, BenchServeOptions& o) {
  add_target_flags(app, o.target);
  app->add_option("--workload", o.workload,
                  "article, aa-single, aa-short, shared-prefix, random-1k1k, random-8k1k, agent, mooncake:FILE, azure:FILE or jsonl:FILE")
      ->capture_default_str();
  app->add_option("--scale", o.scale, "all token counts of the workload are multiplied by it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--time-scale", o.time_scale, "recorded gaps between requests are so many times as long")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--input-len", o.input_len, "in place of the workload's")->check(CLI::PositiveNumber);
  app->add_option("--output-len", o.output_len, "in place of the workload's")->check(CLI::PositiveNumber);
  app->add_option("--prefix-len", o.prefix_len, "tokens of --input-len that a group shares")->check(CLI::NonNegativeNumber);
  app->add_option("--prefix-groups", o.num_groups, "groups with a prefix of their own")->check(CLI::PositiveNumber);
  app->add_option("--range-ratio", o.range_ratio, "lengths are drawn from [ratio * length, length]")->check(CLI::Range(0.0, 1.0));
  app->add_option("--turns", o.turns, "of a session of the agent workload")->check(CLI::PositiveNumber);
  app->add_option("--rate", o.rate, "open loop: requests a second")->check(CLI::PositiveNumber);
  app->add_option("--arrival", o.arrival, "of an open loop: poisson, constant or trace")
      ->check(CLI::IsMember({"poisson", "constant", "trace"}));
  app->add_option("--concurrency", o.concurrency, "closed loop: so many requests (or sessions) at a time")->check(CLI::PositiveNumber);
  app->add_option("--num-requests", o.num_requests, "measured ones; agent: sessions; default: the workload's")->check(CLI::PositiveNumber);
  app->add_option("--duration", o.duration_s, "seconds after the warm-up; 0: until all requests are sent")->check(CLI::NonNegativeNumber);
  app->add_option("--warmup-requests", o.warmup_requests,
                  "sent before those that are measured; default: the concurrency, or one a prefix group")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--warmup", o.warmup_s, "seconds whose requests are not measured")->check(CLI::NonNegativeNumber)->capture_default_str();
  app->add_option("--seed", o.seed, "equal seeds give equal prompts, lengths and arrivals")->capture_default_str();
  app->add_option("--goodput", o.goodput, "objectives of a request: ttft<=5s,tpot<=50ms,e2e<=30s");
  app->add_option("--find-knee", o.find_knee,
                  "search the highest rate that holds: ttft_p95<=5s[,tpot_p95<=50ms]; --rate is where it starts");
  app->add_option("--knee-repeats", o.knee_repeats, "searches, each with another seed: they give the interval")
      ->check(CLI::Range(1, 10))
      ->capture_default_str();
  app->add_option("--knee-tolerance", o.knee_tolerance, "a search ends when the rates that hold and fail are so close")
      ->check(CLI::Range(0.005, 1.0))
      ->capture_default_str();
  app->add_option("--json", o.json, "write the report here, too, every request in it; -: to standard output, in place of the text");
  app->add_option("--html", o.html, "write a page with plots here");
  app->add_flag("--quiet", o.quiet, "no progress on standard error");
}

void add_bench_single_flags(CLI::App* app, BenchSingleOptions& o) {
  add_target_flags(app, o.target);
  app->add_option(
         "--workload", o.workload,
         "aa-single: 10k in, 1.5k out; aa-short: 1k in, 1k out; unique prompts of random words; or jsonl:FILE: prompts of your own")
      ->capture_default_str();
  app->add_option("--scale", o.scale, "both lengths are multiplied by it")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--runs", o.runs, "measured requests of each kind, behind one of warm-up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_flag("--compare-speculation", o.compare_speculation, "without and with speculation, in turns");
  app->add_option("--seed", o.seed, "of the prompts")->capture_default_str();
  app->add_option("--json", o.json, "write the report here, too; -: to standard output, in place of the text");
  app->add_flag("--quiet", o.quiet, "no progress on standard error");
}

}  // namespace ingot::apps
