// A grammar, and a bound on reasoning, as the constraint of one request's tokens. While the answer reasons (the prompt has opened a
// <think>, or the answer opens one itself where no grammar forbids it) tokens are free, but for: the end of the answer and a tool call
// when a grammar waits behind, so that an answer always comes; and </think> alone once the budget is used up. The grammar begins with the
// first token after </think>, wherever in a step of drafts that is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "sched/request.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace ingot::serve {

// Tokens that begin or end a part of an answer; empty: the model has none.
struct AnswerTokens {
  std::optional<int32_t> think;         // <think>
  std::optional<int32_t> end_think;     // </think>
  std::optional<int32_t> tool_call;     // <tool_call>
  std::vector<int32_t> stop_token_ids;  // of the model, whatever the request asks

  static AnswerTokens of(const text::Tokenizer& tokenizer, std::vector<int32_t> stop_token_ids);
};

struct ConstraintOptions {
  std::shared_ptr<const text::Grammar> grammar;  // null: the thinking budget alone
  bool starts_in_reasoning = false;              // the prompt ends inside an open <think>
  std::optional<int64_t> thinking_budget;        // tokens of reasoning, after which </think> is forced; 0: none at all
};

// Null when there is nothing to constrain. Errors: reasoning is to be ended, and the model has no </think> token.
Result<std::shared_ptr<sched::TokenConstraint>> make_constraint(const AnswerTokens& tokens, ConstraintOptions options);

}  // namespace ingot::serve
