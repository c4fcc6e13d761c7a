#include "serve/grammar_constraint.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace ingot::serve {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

class GrammarConstraint final : public sched::TokenConstraint {
 public:
  GrammarConstraint(AnswerTokens tokens, ConstraintOptions options)
      : tokens_(std::move(tokens)), budget_(options.thinking_budget), reasoning_(options.starts_in_reasoning) {
    if (options.grammar) matcher_.emplace(std::move(options.grammar));
  }

  void restrict(std::span<float> logits) override {
    if (reasoning_) {
      restrict_reasoning(logits);
    } else if (matcher_ && !ended_) {
      const std::span<const uint32_t> mask = matcher_->mask();
      for (size_t word = 0; word < mask.size(); ++word) apply(mask[word], logits.subspan(std::min(32 * word, logits.size())));
      // Logits beyond the ids that the grammar knows are nobody's.
      if (logits.size() > 32 * mask.size())
        std::fill(logits.begin() + static_cast<std::ptrdiff_t>(32 * mask.size()), logits.end(), kForbidden);
    } else if (matcher_) {
      // The answer has ended, and the request asks for more tokens (ignore_eos): the end again.
      only(logits, tokens_.stop_token_ids);
    }
  }

  void on_token(int32_t token_id) override {
    if (reasoning_) {
      ++num_reasoning_;
      reasoning_ = token_id != tokens_.end_think;
      return;
    }
    if (!matcher_) {
      // No grammar forbids it: the answer begins to reason by itself, at its beginning alone.
      reasoning_ = budget_ && at_start_ && token_id == tokens_.think;
      at_start_ = false;
      return;
    }
    if (ended_) return;
    // A token that the grammar forbids (another constraint beside this one let it pass) ends it: every mask is empty from here on.
    ended_ = matcher_->accept(token_id) && is_stop(token_id);
  }

 private:
  bool is_stop(int32_t id) const {
    return std::find(tokens_.stop_token_ids.begin(), tokens_.stop_token_ids.end(), id) != tokens_.stop_token_ids.end();
  }

  // The first 32 of `logits`, or as many as there are.
  static void apply(uint32_t bits, std::span<float> logits) {
    if (bits == ~0U) return;
    if (logits.size() >= 32) {
      // A count that the compiler knows: without branches, eight at a time.
      float* at = logits.data();
      for (uint32_t i = 0; i < 32; ++i) at[i] = (bits & (1U << i)) != 0 ? at[i] : kForbidden;
    } else {
      for (size_t i = 0; i < logits.size(); ++i) logits[i] = (bits & (1U << i)) != 0 ? logits[i] : kForbidden;
    }
  }

  static void forbid(std::span<float> logits, int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = kForbidden;
  }

  static void only(std::span<float> logits, const std::vector<int32_t>& ids) {
    std::vector<std::pair<size_t, float>> kept;
    for (const int32_t id : ids) {
      if (id >= 0 && static_cast<size_t>(id) < logits.size()) kept.emplace_back(static_cast<size_t>(id), logits[static_cast<size_t>(id)]);
    }
    std::fill(logits.begin(), logits.end(), kForbidden);
    for (const auto& [id, logit] : kept) logits[id] = logit;
  }

  void restrict_reasoning(std::span<float> logits) {
    if (budget_ && num_reasoning_ >= *budget_) {
      only(logits, {*tokens_.end_think});
      return;
    }
    if (!matcher_) return;
    // An answer has to come, and the parser takes a call for the end of reasoning: neither an end nor a call before </think>.
    for (const int32_t id : tokens_.stop_token_ids) forbid(logits, id);
    if (tokens_.tool_call) forbid(logits, *tokens_.tool_call);
  }

  AnswerTokens tokens_;
  std::optional<int64_t> budget_;
  std::optional<text::GrammarMatcher> matcher_;
  bool reasoning_;
  bool at_start_ = true;
  bool ended_ = false;
  int64_t num_reasoning_ = 0;
};

}  // namespace

AnswerTokens AnswerTokens::of(const text::Tokenizer& tokenizer, std::vector<int32_t> stop_token_ids) {
  return {.think = tokenizer.token_to_id("<think>"),
          .end_think = tokenizer.token_to_id("</think>"),
          .tool_call = tokenizer.token_to_id("<tool_call>"),
          .stop_token_ids = std::move(stop_token_ids)};
}

Result<std::shared_ptr<sched::TokenConstraint>> make_constraint(const AnswerTokens& tokens, ConstraintOptions options) {
  // Without </think> there is no reasoning that could be bounded.
  if (!tokens.end_think && options.starts_in_reasoning) return fail("reasoning cannot be ended: the model has no token </think>");
  if (!tokens.end_think) options.thinking_budget.reset();
  if (!options.grammar && !options.thinking_budget) return nullptr;
  return std::make_shared<GrammarConstraint>(tokens, std::move(options));
}

}  // namespace ingot::serve
