// The server that a load goes to, opened: our own process when a model is given, prompts of its tokenizer, the client. Called by the
// commands that drive a server: bench serve, bench single, and the tasks of eval.
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

// Either a server that runs, or a model to start one for. Errors name the flags.
Result<> check_url_or_model(const std::string& url, const std::string& model, const std::vector<std::string>& server_flags);

struct ServeCommand {
  std::string model;
  std::string api_key;             // empty: none
  std::vector<std::string> flags;  // further ones of `ingot serve`
  double timeout_s = 600;          // until it is ready
};
// Our own program as a server on a free port.
Result<std::unique_ptr<load::ServerProcess>> start_server(const ServeCommand& serve);

// Flags that do not go together, told before anything is started or read. Errors name them.
Result<> check_target(const BenchTargetOptions& options);

// Of options that were checked. Errors name the flag, or say what the server answered.
// `recorded`: the prompts are a file's.
Result<OpenTarget> open_target(const BenchTargetOptions& options, bool recorded);

// Writes a report; "-" is standard output. Errors: the path and the system's reason.
Result<> write_report(const std::string& path, const std::string& text);

}  // namespace ingot::apps
