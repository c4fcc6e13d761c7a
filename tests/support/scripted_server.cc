// scripted_server: `ingot serve` with all its flags around a scripted model (scripted_model.h says what it answers), for load tests and for
// tests that need a certain text, tool call or pace. Of the checkpoint it reads all but the weights. Runs until SIGTERM or SIGINT.
// With --draft-truth the model has a draft layer, of which the script says the truth so often.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/service_flags.h"
#include "base/log.h"
#include "support/scripted_model.h"

namespace ingot::testing {
namespace {

struct ScriptedOptions {
  apps::ServeOptions serve;
  std::filesystem::path script;
  std::filesystem::path step_log;
  double step_ms = 0;
  std::optional<double> draft_truth;
};

Result<> run(const ScriptedOptions& options) {
  const serve::ServiceOptions& service = options.serve.service;
  INGOT_ASSIGN(const auto model, serve::load_served_model(service));
  serve::CacheShape cache;
  cache.page_bytes = service.page_size * static_cast<int64_t>(sizeof(int32_t));
  cache.num_pages = service.max_total_tokens / service.page_size;
  cache.context_length = service.context_length;
  cache.dtype = "tokens";
  if (cache.num_pages < 1 || cache.context_length < 2) return fail("--max-total-tokens and --context-length must be given");
  model->defaults.context_length = std::min(cache.context_length, cache.num_pages * service.page_size);
  const serve::SpeculationOptions& speculation = service.speculation;
  const auto make_runner = [&](int replica) -> Result<serve::MadeRunner> {
    INGOT_ASSIGN(auto scripted, ScriptedModel::load(model->tokenizer, model->defaults.eos_token_ids, options.script));
    PacedRunner::Options runner;
    runner.num_pages = cache.num_pages;
    runner.page_size = service.page_size;
    runner.vocab_size = model->defaults.vocab_size;
    runner.step_ns = static_cast<int64_t>(options.step_ms * 1e6);
    if (replica == 0) runner.step_log = options.step_log;
    const bool drafts = options.draft_truth && speculation.wanted();
    if (drafts) runner.drafts_truth = *options.draft_truth;
    runner.verify = speculation.verify_options();
    INGOT_ASSIGN(auto paced, PacedRunner::create(runner, std::move(scripted)));
    serve::MadeRunner made;
    made.runner = std::move(paced);
    if (!drafts) return made;
    made.draft.num_steps = speculation.depth();
    made.draft.adaptive = speculation.adaptive;
    if (speculation.adaptive) {
      // A step of the script costs the same whatever its rows; a draft costs next to nothing.
      made.draft.cost.step.points = {{1, 1e-3}, {64, 1e-3}};
      made.draft.cost.pass.points = {{1, 1e-6}};
    }
    return made;
  };
  INGOT_ASSIGN(auto assembled, serve::assemble_service(service, model, cache, make_runner));
  return serve::serve_until_signal(assembled, options.serve.server);
}

int main(int argc, char** argv) {
  CLI::App app{"scripted_server: ingot serve with a scripted model"};
  ScriptedOptions options;
  auto& service = options.serve.service;
  service.served_model_name = "scripted";
  service.page_size = 16;
  service.max_total_tokens = 16384 * 16;
  service.context_length = 4096;
  service.max_running_requests = 4096;
  service.max_queued_requests = 4096;
  service.chunked_prefill_size = 8192;
  apps::add_serve_flags(&app, options.serve);
  app.add_option("--script", options.script, "answers, JSON lines (tests/support/scripted_model.h); none: every answer counts");
  app.add_option("--step-ms", options.step_ms, "steps end at multiples of so many milliseconds; 0: as soon as they can");
  app.add_option("--step-log", options.step_log, "gets the end of each step: int64 nanoseconds of CLOCK_MONOTONIC");
  app.add_option("--draft-truth", options.draft_truth, "drafts, each right with this probability: 0 rejects all, 1 accepts all")
      ->check(CLI::Range(0.0, 1.0));
  CLI11_PARSE(app, argc, argv);
  if (!init_log(options.serve.log_level)) {
    std::fprintf(stderr, "scripted_server: --log-level %s is unknown\n", options.serve.log_level.c_str());
    return 1;
  }
  serve::block_signals();
  const auto served = run(options);
  if (served) return 0;
  std::fprintf(stderr, "scripted_server: %s\n", served.error().text().c_str());
  return 1;
}

}  // namespace
}  // namespace ingot::testing

int main(int argc, char** argv) { return ingot::testing::main(argc, argv); }
