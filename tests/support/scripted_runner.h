// ScriptedRunner: a runner without a model, for tests of everything above exec. The logits of the next token come from a function of the
// tokens before it. Its cache holds token ids and is read back through the page tables, so a scheduler that mixes up pages shows as a
// wrong context; the copies between the tiers are made, too. Draws with the real sampler, and verifies drafts of a scripted source.
// Run by one thread; the hooks are set before it starts.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "exec/draft_source.h"
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
    BeforeStep before_step;                     // may be empty
    std::shared_ptr<exec::DraftSource> drafts;  // may be null: then nothing is drafted
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
    const size_t page_bytes = static_cast<size_t>(options_.page_size) * sizeof(int32_t);
    for (const sched::PageSave& save : plan.saves) {
      save.to->resize(page_bytes);
      std::memcpy(save.to->data(), first_slot(save.page), page_bytes);
    }
    for (const sched::PageLoad& load : plan.loads) {
      INGOT_CHECK(load.from->size() == page_bytes, "a page of {} bytes is loaded", load.from->size());
      std::memcpy(first_slot(load.page), load.from->data(), page_bytes);
    }
    for (const sched::BatchItem& item : plan.items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) slot(item, static_cast<size_t>(item.start) + i) = item.token_ids[i];
    }
    sched::BatchResult result;
    for (const sched::BatchItem& item : plan.items) {
      if (!item.sample) continue;
      INGOT_ASSIGN(auto sampled, draw(item));
      result.sampled.push_back(std::move(sampled));
    }
    return result;
  }

 private:
  Result<sched::SampledTokens> draw(const sched::BatchItem& item) {
    const size_t end = static_cast<size_t>(item.start) + item.token_ids.size();
    tokens_.resize(end);
    for (size_t i = 0; i < end; ++i) tokens_[i] = slot(item, i);
    std::vector<int32_t> drafts;
    if (options_.drafts && item.num_draft > 0) options_.drafts->propose(item, tokens_, drafts);
    INGOT_CHECK(static_cast<int32_t>(drafts.size()) <= item.num_draft);
    // All drafts' rows are written, as a real verification does; only those that were drawn again are kept.
    for (size_t i = 0; i < drafts.size(); ++i) slot(item, end + i) = drafts[i];
    sched::SampledTokens sampled;
    sampled.request = item.request;
    sampled.num_drafted = static_cast<int32_t>(drafts.size());
    for (size_t i = 0;; ++i) {
      const auto num_generated = item.num_generated + static_cast<int32_t>(i);
      logits_.assign(static_cast<size_t>(options_.vocab_size), 0.0f);
      options_.script({item.request, tokens_, num_generated}, logits_);
      INGOT_ASSIGN(auto drawn, sampler_.sample(logits_, *item.sampling, num_generated));
      sampled.token_ids.push_back(drawn.token_id);
      if (item.sampling->top_logprobs >= 0) sampled.logprobs.push_back(std::move(drawn.logprob));
      if (i == drafts.size() || drafts[i] != drawn.token_id) return sampled;
      tokens_.push_back(drawn.token_id);
    }
  }

  int32_t* first_slot(int32_t page) { return &slots_.at(static_cast<size_t>(page) * static_cast<size_t>(options_.page_size)); }

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

// Drafts that are each right (what the script likes best) with a given probability: 1 accepts all, 0 rejects all.
class ScriptedDrafts final : public exec::DraftSource {
 public:
  ScriptedDrafts(ScriptedRunner::Script script, int64_t vocab_size, double truth, uint64_t seed = 1)
      : script_(std::move(script)), logits_(static_cast<size_t>(vocab_size)), truth_(truth), rng_(seed) {}

  void propose(const sched::BatchItem& item, std::span<const int32_t> context, std::vector<int32_t>& drafts) override {
    std::vector<int32_t> tokens(context.begin(), context.end());
    for (int32_t i = 0; i < item.num_draft; ++i) {
      std::fill(logits_.begin(), logits_.end(), 0.0f);
      script_({item.request, tokens, item.num_generated + i}, logits_);
      auto token = static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
      if (rng_.uniform() >= truth_) token = token == 0 ? 1 : token - 1;
      drafts.push_back(token);
      tokens.push_back(token);
    }
  }

 private:
  ScriptedRunner::Script script_;
  std::vector<float> logits_;
  double truth_;
  Rng rng_;
};

}  // namespace ingot::testing
