// Runs tau2 conversations against servers, several at once, and keeps each as runner.h does.
#pragma once

#include "eval/asker.h"
#include "eval/runner.h"
#include "eval/tau2.h"

namespace ingot::eval {

struct Tau2Options {
  std::filesystem::path data;
  std::string domain = "retail";
  std::string split = "base";  // all tasks; train and test are its parts
  int trials = 1;
  int64_t max_tokens = 4096;  // of a message
  double temperature = 0;
  Tau2Limits limits;
  bool scripted_user = false;  // else a model
  std::string user_name;       // how the result calls the user: a URL and model, or "scripted"
};

struct Tau2Task {
  Tau2Data data;
  Task task;  // a question a task and trial, with the first request as its body
};
Result<Tau2Task> make_tau2(const Tau2Options& options);

struct Tau2Endpoints {
  Asker::Options agent, user;
  std::string user_model;
};
// Errors: as run_task.
Result<RunResult> run_tau2(const Tau2Task& tau2, const Tau2Options& options, const RunOptions& run, const Tau2Endpoints& endpoints);

}  // namespace ingot::eval
