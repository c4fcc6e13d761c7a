// `ingot eval gsm8k|gpqa|bfcl|tau2|demo`: asks a server the questions of a published evaluation and scores its answers by the published
// rule. Any OpenAI-compatible server (--url), or one of our own that is started for this (--model). Called by main.cc alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/task.h"

namespace CLI {
class App;
}

namespace ingot::apps {

struct EvalTaskOptions {
  // Where to ask.
  std::string url;    // a server that runs
  std::string model;  // or a checkpoint folder
  std::vector<std::string> server_flags;
  std::string served_model_name;  // empty: the first that the server lists
  std::string api_key;
  double timeout_s = 3600;  // of an answer
  double start_timeout_s = 900;
  int max_retries = 8;
  int concurrency = 32;
  // What to ask.
  std::vector<std::filesystem::path> data;
  int64_t limit = 0;       // questions from the start; 0: all
  int64_t max_tokens = 0;  // of an answer; 0: the rule's
  std::optional<bool> enable_thinking;
  std::string rule = "lm-eval";                       // gsm8k
  std::vector<std::string> sets = {"simple_python"};  // bfcl
  int repeats = 4;                                    // gpqa
  uint64_t seed = 0;                                  // gpqa
  double temperature = 0.5;                           // gpqa
  std::string domain = "retail";                      // tau2
  std::string split = "base";                         // tau2
  int trials = 1;                                     // tau2
  std::string user = "model";                         // tau2: model, or scripted
  std::string user_url;                               // tau2: whose model plays the customer; empty: the server under test
  std::string user_model;                             // tau2: its name; empty: the first listed
  std::string user_api_key;                           // tau2
  // What to write.
  std::string out;       // OUT.json and OUT.jsonl; empty: nothing is kept
  std::string baseline;  // a result of an earlier run; empty: none
};

struct EvalTaskFlags {
  EvalTaskOptions gsm8k, gpqa, bfcl, tau2, demo;
};
// The subcommands under `eval`.
void add_eval_task_flags(CLI::App* eval, EvalTaskFlags& flags);
// The exit status of the one that was given; none: not one of these.
std::optional<int> run_eval_task(const CLI::App* eval, const EvalTaskFlags& flags);

// The exit status; the report goes to standard output, progress, warnings and errors to standard error.
int run_eval_task(const std::string& name, const EvalTaskOptions& options);
// The task `name` (all but tau2, which is conversations) with these options. Errors name the flag, or the file and the line.
Result<eval::Task> make_task(const std::string& name, const EvalTaskOptions& options);

}  // namespace ingot::apps
