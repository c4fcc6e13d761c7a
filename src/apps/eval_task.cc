#include "apps/eval_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/bench_serve_target.h"
#include "base/file_map.h"
#include "base/log.h"
#include "eval/asker.h"
#include "eval/bfcl.h"
#include "eval/demo_tasks.h"
#include "eval/gpqa.h"
#include "eval/gsm8k.h"
#include "eval/report.h"
#include "eval/runner.h"
#include "eval/tau2_run.h"
#include "load/server_process.h"

namespace ingot::apps {
namespace {

constexpr size_t kMaxFile = size_t{1} << 30;

Result<std::filesystem::path> one_path(const EvalTaskOptions& options) {
  if (options.data.size() != 1) return fail("--data: expected one path, got {}", options.data.size());
  return options.data.front();
}

// Questions in one request each, or tau2's conversations.
struct Work {
  eval::Task task;
  std::optional<eval::Tau2Task> tau2;
  eval::Tau2Options tau2_options;
};

Result<Work> make_work(const std::string& name, const EvalTaskOptions& options) {
  Work work;
  if (name != "tau2") {
    INGOT_ASSIGN(work.task, make_task(name, options));
    return work;
  }
  eval::Tau2Options& tau2 = work.tau2_options;
  INGOT_ASSIGN(tau2.data, one_path(options));
  tau2.domain = options.domain;
  tau2.split = options.split;
  tau2.trials = options.trials;
  tau2.temperature = options.temperature;
  if (options.max_tokens > 0) tau2.max_tokens = options.max_tokens;
  tau2.scripted_user = options.user == "scripted";
  if (tau2.scripted_user && !(options.user_url.empty() && options.user_model.empty()))
    return fail("--user scripted needs no --user-url and no --user-model-name");
  tau2.user_name = tau2.scripted_user ? "scripted"
                                      : fmt::format("{} at {}", options.user_model.empty() ? "the first model" : options.user_model,
                                                    options.user_url.empty() ? "the server under test" : options.user_url);
  INGOT_ASSIGN(work.tau2, eval::make_tau2(tau2));
  auto& questions = work.tau2->task.questions;
  if (options.limit > 0 && static_cast<size_t>(options.limit) < questions.size()) questions.resize(static_cast<size_t>(options.limit));
  work.task = work.tau2->task;
  return work;
}

Result<eval::RunResult> run_work(const Work& work, const EvalTaskOptions& options, const eval::RunOptions& run, eval::Asker& asker,
                                 const eval::Asker::Options& ask) {
  if (!work.tau2) return eval::run_task(work.task, run, asker);
  eval::Tau2Endpoints endpoints;
  endpoints.agent = endpoints.user = ask;
  endpoints.user_model = options.user_model.empty() ? run.model : options.user_model;
  if (!options.user_url.empty()) {
    endpoints.user.url = options.user_url;
    endpoints.user.api_key = options.user_api_key;
    if (options.user_model.empty()) {
      INGOT_ASSIGN(const auto user, eval::Asker::create(endpoints.user));
      INGOT_ASSIGN(endpoints.user_model, user->first_model());
    }
  }
  return eval::run_tau2(*work.tau2, work.tau2_options, run, endpoints);
}

// "pass^1 80.0 %, pass^2 66.7 %": the chance that all of k trials of a task are right.
std::string pass_text(const std::vector<eval::Item>& items, int trials) {
  std::map<std::string, std::pair<int, int>> tasks;
  for (const eval::Item& item : items) {
    auto& [successes, n] = tasks[item.cluster];
    successes += item.score.ok, ++n;
  }
  std::vector<std::pair<int, int>> counts;
  for (const auto& [id, count] : tasks)
    if (count.second == trials) counts.push_back(count);
  if (counts.empty()) return fmt::format("pass^k: none, for no task was asked all of its {} times (--limit)", trials);
  std::string text;
  for (int k = 1; k <= trials; ++k) text += fmt::format("{}pass^{} {:.2f} %", k > 1 ? ", " : "", k, 100 * eval::pass_hat_k(counts, k));
  return text;
}

Result<> run(const std::string& name, const EvalTaskOptions& options) {
  INGOT_TRY(check_url_or_model(options.url, options.model, options.server_flags));
  INGOT_ASSIGN(const Work work, make_work(name, options));
  const eval::Task& task = work.task;
  std::optional<Json> baseline;
  if (!options.baseline.empty()) {
    INGOT_ASSIGN(const std::string text, read_file(options.baseline, kMaxFile));
    INGOT_ASSIGN(baseline, parse_json(text, options.baseline));
    // A file that can't be compared with is refused before an hour of answers, not after.
    std::vector<eval::Item> none;
    for (const auto& question : task.questions) none.emplace_back().id = question.id;
    INGOT_TRY(eval::compare_with(*baseline, task, none));
  }
  std::unique_ptr<load::ServerProcess> server;
  eval::Asker::Options ask;
  ask.url = options.url;
  ask.api_key = options.api_key;
  ask.timeout_s = options.timeout_s;
  ask.max_retries = options.max_retries;
  if (!options.model.empty()) {
    log_info("starting ingot serve {}", options.model);
    ServeCommand serve{.model = options.model, .api_key = options.api_key, .flags = options.server_flags};
    serve.timeout_s = options.start_timeout_s;
    INGOT_ASSIGN(server, start_server(serve));
    ask.url = server->url();
  }
  INGOT_ASSIGN(const auto asker, eval::Asker::create(ask));
  eval::RunOptions run_options;
  run_options.concurrency = options.concurrency;
  run_options.model = options.served_model_name;
  if (run_options.model.empty()) {
    INGOT_ASSIGN(run_options.model, asker->first_model());
  }
  if (!options.out.empty()) run_options.items = options.out + ".jsonl";
  INGOT_ASSIGN(const eval::RunResult result, run_work(work, options, run_options, *asker, ask));

  const eval::Report report = eval::make_report(task, result.items);
  std::optional<eval::PairedDifference> difference;
  if (baseline) {
    INGOT_ASSIGN(difference, eval::compare_with(*baseline, task, result.items));
    if (const std::string warning = eval::baseline_warning(*baseline, task, difference->pairs); !warning.empty()) log_warn("{}", warning);
  }
  eval::ReportHead head;
  head.url = options.model.empty() ? options.url : "ingot serve " + options.model;
  for (const std::string& flag : options.server_flags) head.url += " " + flag;
  head.model = run_options.model;
  head.seconds = result.seconds;
  head.resumed = result.resumed;
  head.baseline = options.baseline;
  std::fputs(eval::report_text(head, task, report, difference).c_str(), stdout);
  if (work.tau2) fmt::print("{}\n", pass_text(result.items, options.trials));
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("cannot write to standard output");
  if (!options.out.empty())
    INGOT_TRY(write_report(options.out + ".json", eval::report_json(head, task, report, result.items, difference).dump(1) + "\n"));
  for (const std::string& warning : eval::report_warnings(report)) log_warn("{}", warning);
  return {};
}

}  // namespace

Result<eval::Task> make_task(const std::string& name, const EvalTaskOptions& options) {
  eval::Task task;
  if (name == "gsm8k") {
    eval::Gsm8kOptions gsm8k;
    INGOT_ASSIGN(gsm8k.data, one_path(options));
    INGOT_ASSIGN(gsm8k.rule, eval::parse_gsm8k_rule(options.rule));
    gsm8k.max_tokens = options.max_tokens;
    gsm8k.enable_thinking = options.enable_thinking;
    INGOT_ASSIGN(task, eval::make_gsm8k(gsm8k));
  } else if (name == "gpqa") {
    eval::GpqaOptions gpqa;
    INGOT_ASSIGN(gpqa.data, one_path(options));
    gpqa.repeats = options.repeats;
    gpqa.seed = options.seed;
    gpqa.temperature = options.temperature;
    if (options.max_tokens > 0) gpqa.max_tokens = options.max_tokens;
    gpqa.enable_thinking = options.enable_thinking;
    INGOT_ASSIGN(task, eval::make_gpqa(gpqa));
  } else if (name == "bfcl") {
    eval::BfclOptions bfcl;
    INGOT_ASSIGN(bfcl.data, one_path(options));
    bfcl.sets = options.sets == std::vector<std::string>{"all"} ? eval::bfcl_sets() : options.sets;
    if (options.max_tokens > 0) bfcl.max_tokens = options.max_tokens;
    bfcl.enable_thinking = options.enable_thinking;
    INGOT_ASSIGN(task, eval::make_bfcl(bfcl));
  } else {
    eval::DemoOptions demo;
    demo.data = options.data;
    demo.max_tokens = options.max_tokens;
    INGOT_ASSIGN(task, eval::make_demo_tasks(demo));
  }
  if (options.limit > 0 && static_cast<size_t>(options.limit) < task.questions.size())
    task.questions.resize(static_cast<size_t>(options.limit));
  return task;
}

int run_eval_task(const std::string& name, const EvalTaskOptions& options) {
  if (auto done = run(name, options); !done) {
    std::fprintf(stderr, "ingot eval %s: %s\n", name.c_str(), done.error().text().c_str());
    return 1;
  }
  return 0;
}

}  // namespace ingot::apps
