// The real model under the real scheduler, with the requests that speculation has gone wrong with elsewhere: for tests that compare
// answers.
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "exec/glm_runner.h"
#include "sched/scheduler.h"
#include "text/tokenizer.h"

namespace ingot::test_support {

using sched::FinishReason;
using sched::Request;
using sched::RequestId;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::pair<int32_t, float>> top;
  std::vector<float> prompt_logprobs;
  std::vector<std::pair<int32_t, float>> prompt_top;
  FinishReason finish = FinishReason::none;
  int64_t drafted = 0, accepted = 0, cached = 0;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && top == other.top && prompt_logprobs == other.prompt_logprobs &&
           prompt_top == other.prompt_top && finish == other.finish;
  }
};

// Stands for a stop string: done with the n-th token.
struct StopAfter final : sched::TokenWatcher {
  explicit StopAfter(int count) : left(count) {}
  bool on_token(int32_t) override { return --left == 0; }
  int left;
};

// Stands for a grammar: what may come next depends on what came before.
struct Rhythm final : sched::TokenConstraint {
  void restrict(std::span<float> logits) override {
    for (size_t id = static_cast<size_t>(sum % 3); id < logits.size(); id += 3) logits[id] = -std::numeric_limits<float>::infinity();
  }
  void on_token(int32_t token_id) override { sum += token_id; }
  int64_t sum = 1;
};

class House {
 public:
  // On `device`, or the CPU when it is null.
  House(const std::filesystem::path& model, const sched::SchedulerOptions& options, const exec::GlmRunnerOptions& runner,
        const std::shared_ptr<gpu::Accelerator>& device = nullptr)
      : scheduler(options) {
    glm = model::Glm::load(model, {}, device).value();
    auto cache = model::KvCache::create(glm->config(), {tensor::LatentFormat::bf16, options.num_pages, options.page_size}, device).value();
    runner_ = std::make_unique<exec::GlmRunner>(glm, std::move(cache), std::make_shared<ThreadPool>(2), runner);
  }

  void submit(RequestId id, Request request) {
    request.id = id;
    request.sink = [this, id](const sched::TokenEvent& event) {
      Answer& answer = answers[id];
      answer.tokens.insert(answer.tokens.end(), event.token_ids.begin(), event.token_ids.end());
      for (const auto& l : event.logprobs) {
        answer.logprobs.push_back(l.logprob);
        answer.top.insert(answer.top.end(), l.top.begin(), l.top.end());
      }
      INGOT_CHECK(event.prompt_logprobs.empty() || answer.prompt_logprobs.empty(), "logprobs of a prompt are told twice");
      for (const auto& l : event.prompt_logprobs) {
        answer.prompt_logprobs.push_back(l.logprob);
        answer.prompt_top.insert(answer.prompt_top.end(), l.top.begin(), l.top.end());
      }
      answer.finish = event.finish;
      answer.drafted += event.num_drafted;
      answer.accepted += event.num_accepted;
      answer.cached = event.cached_tokens;
    };
    scheduler.submit(std::move(request));
  }
  void step() {
    const sched::BatchPlan plan = scheduler.plan(1);
    steps += !plan.items.empty();
    const auto result = runner_->run(plan);
    INGOT_CHECK(result.has_value(), "{}", result.error().text());
    for (const sched::PageSave& save : plan.saves) saved[save.key] = *save.to;
    scheduler.commit(plan, *result);
    scheduler.verify();
  }
  void run() {
    while (scheduler.has_work()) step();
  }

  sched::Scheduler scheduler;
  std::shared_ptr<model::Glm> glm;
  std::map<RequestId, Answer> answers;
  std::map<sched::PageKey, sched::PageBytes> saved;  // pages that went to the host tier
  int64_t steps = 0;                                 // that had rows

 private:
  std::unique_ptr<exec::GlmRunner> runner_;
};

inline sched::SchedulerOptions options(int64_t num_pages, int64_t page_size, int64_t context_length, int32_t num_steps) {
  sched::SchedulerOptions o;
  o.num_pages = num_pages;
  o.page_size = page_size;
  o.chunked_prefill_size = 96;
  o.max_running_requests = 12;
  o.context_length = context_length;
  o.draft.num_steps = num_steps;
  return o;
}

// Conversations cut where the model is to speak.
inline std::vector<std::vector<int32_t>> demo_prompts(size_t count) {
  const auto tokenizer = text::Tokenizer::load(INGOT_SOURCE_DIR "/models/demo/tokenizer.json").value();
  std::ifstream file(INGOT_SOURCE_DIR "/models/demo-calibration.jsonl");
  std::vector<std::vector<int32_t>> prompts;
  const std::string turn = "<|assistant|>";
  for (std::string line; prompts.size() < count && std::getline(file, line);) {
    const std::string text = Json::parse(line)["text"];
    for (size_t at = text.find(turn); at != std::string::npos && prompts.size() < count; at = text.find(turn, at + 1)) {
      const size_t thought = text.compare(at + turn.size(), 15, "<think></think>") == 0 ? 15 : 7;
      auto ids = tokenizer->encode(text.substr(0, at + turn.size() + thought)).value();
      if (ids.size() < 90) prompts.push_back(std::move(ids));
    }
  }
  INGOT_CHECK(prompts.size() == count, "{} prompts", prompts.size());
  return prompts;
}

inline constexpr int kNumVariants = 11;
inline constexpr int64_t kContext = 112;

// The same request in one of the ways that have gone wrong elsewhere.
inline Request variant(int number, size_t index, std::vector<int32_t> prompt) {
  Request request;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 14;
  request.sampling.stop_token_ids = {6108, 6115, 6117};
  request.sampling.top_logprobs = 0;
  request.sampling.seed = 1000 + index;
  const auto i = static_cast<int32_t>(index);
  switch (number) {
    case 0: break;
    case 1: request.sampling.max_tokens = 1 + i % 10; break;
    case 2: request.sampling.ignore_eos = true, request.sampling.stop_token_ids = {}; break;  // runs over its own end
    case 3: request.watcher = std::make_shared<StopAfter>(1 + i % 9); break;
    case 4:
      request.sampling.presence_penalty = 0.7f, request.sampling.frequency_penalty = 0.4f, request.sampling.repetition_penalty = 1.3f;
      break;
    case 5:
      for (int32_t id = 0; id < 300; ++id) request.sampling.logit_bias.emplace_back(id * 19 + i % 19, id % 2 == 0 ? -100.0f : 2.0f);
      break;
    case 6: request.sampling.temperature = 1.0f, request.sampling.min_p = 0.05f; break;
    case 7: request.sampling.temperature = 0.8f, request.sampling.top_p = 0.9f, request.sampling.top_k = 40; break;
    case 8: request.constraint = std::make_shared<Rhythm>(); break;
    case 9: request.sampling.max_tokens = 1000, request.sampling.stop_token_ids = {}; break;  // to the context limit
    case 10: request.sampling.top_logprobs = 3; break;
    default: INGOT_CHECK(false);
  }
  // Those at the context limit are long anyway; some of the others ask for less speculation.
  if (number != 9) request.max_draft_tokens = index % 5 == 0 ? i % 4 : sched::kMaxDraftTokens;
  request.prompt = std::move(prompt);
  return request;
}

}  // namespace ingot::test_support
