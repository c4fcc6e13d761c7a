// ScriptedRunner: a runner without a model, for tests of everything above exec. The logits of the next token come from a function of the
// tokens before it. Its cache holds token ids and is read back through the page tables, so a scheduler that mixes up pages shows as a
// wrong context; the copies between the tiers are made, too. Draws and verifies with the real verifier; drafts are of a scripted source.
// Run by one thread; the hooks are set before it starts.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "exec/draft_source.h"
#include "exec/prompt_scores.h"
#include "exec/runner.h"
#include "exec/verify.h"

namespace ingot::testing {

class ScriptedRunner final : public exec::Runner {
 public:
  struct Context {
    sched::RequestId request = 0;
    std::span<const int32_t> tokens;  // prompt and completion so far, read from the cache
    int32_t num_generated = 0;        // -1: the tokens are a beginning of the prompt, whose next token is scored
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
    exec::VerifyOptions verify = {};
  };
  explicit ScriptedRunner(Options options)
      : options_(std::move(options)),
        verifier_(options_.verify),
        slots_(static_cast<size_t>(options_.num_pages * options_.page_size), -1) {}

  // Says these tokens, then the last one for ever: end the list with a stop token.
  static Script says(std::vector<int32_t> answer) {
    return [answer = std::move(answer)](const Context& context, std::span<float> logits) {
      const size_t index = std::min(static_cast<size_t>(std::max(context.num_generated, 0)), answer.size() - 1);
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
      if (item.num_scored > 0) {
        INGOT_ASSIGN(auto scored, score(item));
        result.scored.push_back(std::move(scored));
      }
      if (!item.sample) continue;
      INGOT_ASSIGN(auto sampled, draw(item));
      result.sampled.push_back(std::move(sampled));
    }
    return result;
  }

 private:
  Result<sched::ScoredTokens> score(const sched::BatchItem& item) {
    INGOT_CHECK(item.first_scored >= 0 && item.first_scored + item.num_scored <= static_cast<int32_t>(item.token_ids.size()));
    sched::ScoredTokens scored{item.request, {}};
    for (int32_t index = 0; index < item.num_scored; ++index) {
      tokens_.resize(static_cast<size_t>(item.start + item.first_scored + index + 1));
      for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = slot(item, i);
      logits_.assign(static_cast<size_t>(options_.vocab_size), 0.0f);
      options_.script({item.request, tokens_, -1}, logits_);
      INGOT_ASSIGN(auto logprob, exec::score(sampler_, item, index, logits_));
      scored.logprobs.push_back(std::move(logprob));
    }
    return scored;
  }

  Result<sched::SampledTokens> draw(const sched::BatchItem& item) {
    const size_t end = static_cast<size_t>(item.start) + item.token_ids.size();
    INGOT_CHECK(item.context.size() == end, "request {}: {} tokens are known, {} have rows", item.request, item.context.size(), end);
    tokens_.resize(end);
    for (size_t i = 0; i < end; ++i) tokens_[i] = slot(item, i);
    exec::Draft draft;
    if (options_.drafts && item.num_draft > 0) options_.drafts->propose(item, draft);
    INGOT_CHECK(draft.size() <= item.num_draft);
    // All drafts' rows are written behind the known ones, as a real verification does, then those that held are put in their places.
    for (size_t i = 0; i < draft.token_ids.size(); ++i) slot(item, end + i) = draft.token_ids[i];
    INGOT_ASSIGN(auto sampled, verifier_.verify(item, draft, [&](size_t row) { return row_of(item, draft, end, row); }));
    for (size_t i = 0; i + 1 < sampled.token_ids.size(); ++i) slot(item, end + i) = sampled.token_ids[i];
    return sampled;
  }

  // What follows the first `end` tokens and the drafts on the way to draft row - 1.
  std::span<const float> row_of(const sched::BatchItem& item, const exec::Draft& draft, size_t end, size_t row) {
    tokens_.resize(end);
    for (auto node = static_cast<int32_t>(row) - 1; node >= 0; node = draft.parents[static_cast<size_t>(node)]) {
      tokens_.push_back(draft.token_ids[static_cast<size_t>(node)]);
    }
    std::reverse(tokens_.begin() + static_cast<std::ptrdiff_t>(end), tokens_.end());
    logits_.assign(static_cast<size_t>(options_.vocab_size), 0.0f);
    options_.script({item.request, tokens_, item.num_generated + static_cast<int32_t>(tokens_.size() - end)}, logits_);
    return logits_;
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
  exec::Verifier verifier_;
  exec::Sampler sampler_;
  std::vector<int32_t> slots_;  // (num_pages * page_size): token ids in the place of latents
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
};

// Drafts that are each right (what the script likes best) with a given probability: 1 accepts all of a greedy request, 0 rejects all.
// Chains with topk 1; else trees, where every token has topk successors (what the script likes best, in an order that turns, or as many
// wrong ones) until the drafts are used up or kMaxTreeDepth is reached.
class ScriptedDrafts final : public exec::DraftSource {
 public:
  static constexpr int32_t kMaxTreeDepth = 4;

  ScriptedDrafts(ScriptedRunner::Script script, int64_t vocab_size, double truth, uint64_t seed = 1, int32_t topk = 1)
      : script_(std::move(script)), logits_(static_cast<size_t>(vocab_size)), truth_(truth), topk_(topk), rng_(seed) {
    INGOT_CHECK(topk >= 1 && topk < vocab_size);
  }

  void propose(const sched::BatchItem& item, exec::Draft& draft) override {
    // Breadth first: `node` is the token whose successors are drafted, -1 the last known one.
    std::vector<int32_t> depths;  // of the drafts: how many follow the last known token up to this one
    for (int32_t node = -1; draft.size() < item.num_draft && node < draft.size(); ++node) {
      const int32_t depth = node < 0 ? 0 : depths[static_cast<size_t>(node)];
      if (topk_ > 1 && depth == kMaxTreeDepth) break;
      for (const int32_t token_id : successors(item, draft, node, depth)) {
        if (draft.size() == item.num_draft) break;
        draft.token_ids.push_back(token_id);
        draft.parents.push_back(node);
        depths.push_back(depth + 1);
      }
    }
  }

 private:
  std::vector<int32_t> successors(const sched::BatchItem& item, const exec::Draft& draft, int32_t node, int32_t depth) {
    std::vector<int32_t> tokens(item.context.size() + static_cast<size_t>(depth));
    std::copy(item.context.begin(), item.context.end(), tokens.begin());
    for (size_t end = tokens.size(); node >= 0; node = draft.parents[static_cast<size_t>(node)]) {
      tokens[--end] = draft.token_ids[static_cast<size_t>(node)];
    }
    std::fill(logits_.begin(), logits_.end(), 0.0f);
    script_({item.request, tokens, item.num_generated + depth}, logits_);
    const auto vocab_size = static_cast<int32_t>(logits_.size());
    std::vector<int32_t> chosen(static_cast<size_t>(topk_));
    if (rng_.uniform() >= truth_) {
      const auto best = static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
      for (int32_t i = 0; i < topk_; ++i) chosen[static_cast<size_t>(i)] = (best + vocab_size - 1 - i) % vocab_size;
      return chosen;
    }
    if (topk_ == 1) {
      chosen[0] = static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
      return chosen;
    }
    std::vector<int32_t> order(logits_.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + topk_, order.end(), [&](int32_t a, int32_t b) {
      const float x = logits_[static_cast<size_t>(a)];
      const float y = logits_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
    std::rotate_copy(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(rng_.below(chosen.size())), order.begin() + topk_,
                     chosen.begin());
    return chosen;
  }

  ScriptedRunner::Script script_;
  std::vector<float> logits_;
  double truth_;
  int32_t topk_;
  Rng rng_;
};

}  // namespace ingot::testing
