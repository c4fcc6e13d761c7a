// ScriptedRunner: a runner without a model, for tests of everything above exec. The logits of the next token come from a function of the
// tokens before it. Its cache holds token ids and is read back through the page tables, so a scheduler that mixes up pages shows as a
// wrong context. Draws with the real sampler. Run by one thread; the hooks are set before it starts.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "exec/runner.h"
#include "exec/sampler.h"

namespace ingot::testing {

class ScriptedRunner final : public exec::Runner {
 public:
  struct Context {
    sched::RequestId request = 0;
    std::span<const int32_t> tokens;  // prompt and completion so far, read from the cache
    int32_t num_generated = 0;
  };
  // Fills the logits (vocab_size), which come as zeros.
  using Script = std::function<void(const Context&, std::span<float> logits)>;
  // Called before each step: may sleep, look at the plan, or fail the step.
  using BeforeStep = std::function<Result<>(const sched::BatchPlan&)>;

  struct Options {
    int64_t num_pages = 0;  // as the scheduler's
    int64_t page_size = 0;
    int64_t vocab_size = 0;
    Script script;
    BeforeStep before_step;  // may be empty
  };
  explicit ScriptedRunner(Options options)
      : options_(std::move(options)), slots_(static_cast<size_t>(options_.num_pages * options_.page_size), -1) {}

  // Says these tokens, then the last one for ever: end the list with a stop token.
  static Script says(std::vector<int32_t> answer) {
    return [answer = std::move(answer)](const Context& context, std::span<float> logits) {
      const size_t index = std::min(static_cast<size_t>(context.num_generated), answer.size() - 1);
      logits[static_cast<size_t>(answer[index])] = 100.0f;
    };
  }

  Result<sched::BatchResult> run(const sched::BatchPlan& plan) override {
    if (options_.before_step) INGOT_TRY(options_.before_step(plan));
    for (const sched::BatchItem& item : plan.items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) slot(item, static_cast<size_t>(item.start) + i) = item.token_ids[i];
    }
    sched::BatchResult result;
    for (const sched::BatchItem& item : plan.items) {
      if (!item.sample) continue;
      tokens_.resize(static_cast<size_t>(item.start) + item.token_ids.size());
      for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = slot(item, i);
      logits_.assign(static_cast<size_t>(options_.vocab_size), 0.0f);
      options_.script({item.request, tokens_, item.num_generated}, logits_);
      INGOT_ASSIGN(auto drawn, sampler_.sample(logits_, *item.sampling, item.num_generated));
      result.sampled.push_back({item.request, drawn.token_id, std::move(drawn.logprob)});
    }
    return result;
  }

 private:
  int32_t& slot(const sched::BatchItem& item, size_t position) {
    const auto page_size = static_cast<size_t>(options_.page_size);
    INGOT_CHECK(position / page_size < item.pages.size(), "request {}: position {} has no page", item.request, position);
    const size_t index = static_cast<size_t>(item.pages[position / page_size]) * page_size + position % page_size;
    INGOT_CHECK(index < slots_.size(), "request {}: slot {} does not exist", item.request, index);
    return slots_[index];
  }

  const Options options_;
  std::vector<int32_t> slots_;  // (num_pages * page_size): token ids in the place of latents
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
  exec::Sampler sampler_;
};

}  // namespace ingot::testing
