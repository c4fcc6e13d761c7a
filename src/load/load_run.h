// Runs a plan against a server: an open loop sends by the clock whatever comes back, a closed loop keeps N sessions going. One io thread
// (the caller's) sends, receives and takes times; a second one makes the texts ahead of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "load/figures.h"
#include "load/http_loop.h"
#include "load/prompt_maker.h"
#include "load/sample.h"
#include "plan/workload.h"

namespace ingot::load {

struct Target {
  enum class Endpoint : uint8_t { completions, chat };
  enum class Count : uint8_t { usage, logprobs, continuous_usage };  // how tokens of an event are told
  std::string url, api_key;
  std::string model;  // empty: the first that the server lists
  Endpoint endpoint = Endpoint::completions;
  Count count = Count::usage;
  double temperature = 0;
  bool ignore_eos = true;
  std::optional<bool> speculation;  // the request's field `speculative`; empty: not sent
  Json extra_body = Json::object();
  double timeout_s = 600;
};

struct RunOptions {
  int64_t concurrency = 0;  // sessions at a time; 0: an open loop, by arrival_s
  double offered_rate = 0;  // of the open loop, for the report
  int64_t warmup_requests = 0;
  double warmup_s = 0;
  double duration_s = 0;  // after the warm-up; nothing is sent any more then. 0: until the plan ends
  std::vector<Objective> goodput;
  std::function<void(int64_t ended, int64_t planned)> progress;  // may be empty; on the io thread, about once a second
};

struct RunResult {
  std::vector<Sample> samples;  // in order of sending
  RunFacts facts;
};

class LoadRunner {
 public:
  // Errors: the URL, a host without an address.
  static Result<std::unique_ptr<LoadRunner>> create(Target target, std::shared_ptr<const PromptMaker> prompts);

  // Finds the model's name and how many tokens the server puts around a prompt, by one short request. Errors: a server that does not
  // answer, or refuses; both with what it said.
  Result<> probe();
  const Target& target() const { return target_; }
  // Of the requests from now on.
  void set_speculation(std::optional<bool> speculation) { target_.speculation = speculation; }
  std::optional<int64_t> overhead() const { return overhead_; }  // empty: the server tells no usage

  RunResult run(const std::vector<plan::PlannedRequest>& plan, const RunOptions& options);

  // A GET's answer as JSON. Errors: no such answer.
  Result<Json> get(const std::string& target);

 private:
  LoadRunner(Target target, std::shared_ptr<const PromptMaker> prompts, std::unique_ptr<HttpLoop> loop)
      : target_(std::move(target)), prompts_(std::move(prompts)), loop_(std::move(loop)) {}
  std::string body_of(const plan::PlannedRequest& request, const std::vector<std::string>& answers) const;
  friend class Run;

  Target target_;
  std::shared_ptr<const PromptMaker> prompts_;
  std::unique_ptr<HttpLoop> loop_;
  std::optional<int64_t> overhead_;
};

}  // namespace ingot::load
