// Flags of the evaluations that ask a server: apart from their code, since CLI11 takes ten seconds to compile.
#include <CLI/CLI.hpp>

#include "apps/eval_task.h"

namespace ingot::apps {

namespace {

CLI::App* add_task(CLI::App* eval, const char* name, const char* what, const char* data, EvalTaskOptions& o) {
  CLI::App* app = eval->add_subcommand(name, what);
  auto* url = app->add_option("--url", o.url, "a server that runs: http://HOST:PORT");
  auto* model = app->add_option("--model", o.model, "or a checkpoint folder: `ingot serve` is started on a free port, and stopped");
  url->excludes(model);
  app->add_option("--server-flag", o.server_flags, "of `ingot serve`, with --model: --server-flag=--dp=2; may be given several times")
      ->allow_extra_args(false);
  app->add_option("--data", o.data, data)->required();
  app->add_option("--baseline", o.baseline, "OUT.json of an earlier run: the paired difference from it");
  app->add_option("--out", o.out, "OUT.json gets the result, OUT.jsonl each answer as it comes; a run that was broken off goes on there");
  app->add_option("--concurrency", o.concurrency, "requests at once")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--limit", o.limit, "questions from the start; 0: all")->check(CLI::NonNegativeNumber)->capture_default_str();
  app->add_option("--max-tokens", o.max_tokens, "of an answer; default: the rule's")->check(CLI::PositiveNumber);
  app->add_option("--served-model-name", o.served_model_name, "default: the first that the server lists");
  app->add_option("--api-key", o.api_key, "sent as a Bearer token");
  app->add_option("--max-retries", o.max_retries, "of a request that met 429, 5xx or a broken connection")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--timeout", o.timeout_s, "seconds an answer may take")->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--start-timeout", o.start_timeout_s, "seconds that a server of --model may take to be ready")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return app;
}

void add_thinking(CLI::App* app, EvalTaskOptions& o) {
  app->add_option("--enable-thinking", o.enable_thinking, "true or false, for the chat template; default: the template's");
}

}  // namespace

void add_eval_task_flags(CLI::App* eval, EvalTaskFlags& flags) {
  CLI::App* gsm8k =
      add_task(eval, "gsm8k", "GSM8K's 1,319 word problems", "folder: test.jsonl, train.jsonl, lm_eval_fewshot_indices.json", flags.gsm8k);
  gsm8k->add_option("--rule", flags.gsm8k.rule, "prompt and marks of: lm-eval, sglang (200 questions), vllm, inferencex, or chat")
      ->capture_default_str();
  add_thinking(gsm8k, flags.gsm8k);

  CLI::App* gpqa =
      add_task(eval, "gpqa", "GPQA-Diamond, from your own copy; no question is printed or stored", "gpqa_diamond.csv", flags.gpqa);
  gpqa->add_option("--repeats", flags.gpqa.repeats, "of each question, choices in another order")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  gpqa->add_option("--seed", flags.gpqa.seed, "of the orders, and of sampling")->capture_default_str();
  gpqa->add_option("--temperature", flags.gpqa.temperature)->check(CLI::NonNegativeNumber)->capture_default_str();
  add_thinking(gpqa, flags.gpqa);

  CLI::App* bfcl = add_task(eval, "bfcl", "BFCL's single-turn tool calls", "folder: BFCL_v4_*.json and possible_answer/", flags.bfcl);
  bfcl->add_option("--set", flags.bfcl.sets, "simple_python, multiple, live_simple, ...; several with commas; all")
      ->delimiter(',')
      ->capture_default_str();
  add_thinking(bfcl, flags.bfcl);

  flags.tau2.temperature = 0;
  flags.tau2.concurrency = 8;
  CLI::App* tau2 = add_task(eval, "tau2", "tau2-bench's conversations: databases, words, assertions; no LLM judge",
                            "folder: domains/ and user_simulator/", flags.tau2);
  tau2->add_option("--domain", flags.tau2.domain, "retail, airline or telecom")->capture_default_str();
  tau2->add_option("--split", flags.tau2.split, "base (all 114, 50 or 114 tasks), or its parts train and test")->capture_default_str();
  tau2->add_option("--trials", flags.tau2.trials, "of each task, with seeds from 300 on")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  tau2->add_option("--temperature", flags.tau2.temperature, "of the agent")->check(CLI::NonNegativeNumber)->capture_default_str();
  tau2->add_option("--user", flags.tau2.user, "who plays the customer: model, or scripted (reproducible, for smoke tests)")
      ->check(CLI::IsMember({"model", "scripted"}))
      ->capture_default_str();
  tau2->add_option("--user-url", flags.tau2.user_url, "server of the customer's model; default: the one under test");
  tau2->add_option("--user-model-name", flags.tau2.user_model, "default: the first that server lists");
  tau2->add_option("--user-api-key", flags.tau2.user_api_key, "sent to it as a Bearer token");

  add_task(eval, "demo", "the demo model's sets, or others of their form (tools/demo_model)", ".jsonl files, or a folder of them",
           flags.demo);
}

std::optional<int> run_eval_task(const CLI::App* eval, const EvalTaskFlags& flags) {
  for (const auto& [name, options] : {std::pair("gsm8k", &flags.gsm8k), std::pair("gpqa", &flags.gpqa), std::pair("bfcl", &flags.bfcl),
                                      std::pair("tau2", &flags.tau2), std::pair("demo", &flags.demo)})
    if (eval->got_subcommand(name)) return run_eval_task(name, *options);
  return std::nullopt;
}

}  // namespace ingot::apps
