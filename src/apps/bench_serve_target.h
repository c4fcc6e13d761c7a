// The server that a load goes to, opened: our own process when a model is given, prompts of its tokenizer, the client. Called by the bench
// commands that drive a server.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench_serve.h"
#include "load/load_run.h"
#include "load/server_process.h"

namespace ingot::apps {

struct OpenTarget {
  std::unique_ptr<load::ServerProcess> server;  // null: somebody else's
  std::shared_ptr<const load::PromptMaker> prompts;
  std::unique_ptr<load::LoadRunner> runner;  // probed
  std::vector<std::pair<std::string, std::string>> facts;
  Json setup = Json::object();
  std::vector<std::string> warnings;
};

// Flags that do not go together, told before anything is started or read. Errors name them.
Result<> check_target(const BenchTargetOptions& options);

// Of options that were checked. Errors name the flag, or say what the server answered.
// `recorded`: the prompts are a file's.
Result<OpenTarget> open_target(const BenchTargetOptions& options, bool recorded);

// Writes a report; "-" is standard output. Errors: the path and the system's reason.
Result<> write_report(const std::string& path, const std::string& text);

}  // namespace ingot::apps
