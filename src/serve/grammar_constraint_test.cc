#include "serve/grammar_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace ingot::serve {
namespace {

struct House {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  AnswerTokens tokens;
  int64_t vocab_size = 0;
  std::shared_ptr<text::GrammarCompiler> compiler;
};

const House& house() {
  static const House kHouse = [] {
    House h;
    h.tokenizer = text::Tokenizer::load(INGOT_SOURCE_DIR "/models/demo/tokenizer.json").value();
    std::vector<int32_t> stops;
    for (const char* name : {"<|endoftext|>", "<|user|>", "<|observation|>"}) stops.push_back(h.tokenizer->token_to_id(name).value());
    h.tokens = AnswerTokens::of(*h.tokenizer, stops);
    h.vocab_size = h.tokenizer->vocab_size() + 40;
    h.compiler = text::GrammarCompiler::create(h.tokenizer, {.vocab_size = h.vocab_size, .stop_token_ids = stops}).value();
    return h;
  }();
  return kHouse;
}

std::vector<float> restricted(sched::TokenConstraint& constraint) {
  std::vector<float> logits(static_cast<size_t>(house().vocab_size), 1.0f);
  constraint.restrict(logits);
  return logits;
}

bool may(sched::TokenConstraint& constraint, int32_t id) { return restricted(constraint)[static_cast<size_t>(id)] == 1.0f; }

int64_t num_allowed(sched::TokenConstraint& constraint) {
  const std::vector<float> logits = restricted(constraint);
  return std::count(logits.begin(), logits.end(), 1.0f);
}

int32_t id_of(std::string_view text) { return house().tokenizer->encode(text).value().at(0); }

void say(sched::TokenConstraint& constraint, std::string_view text) {
  const std::vector<int32_t> ids = house().tokenizer->encode(text).value();
  for (const int32_t id : ids) {
    EXPECT_TRUE(may(constraint, id)) << "forbidden: " << house().tokenizer->token_bytes(id) << " of " << text;
    constraint.on_token(id);
  }
}

std::shared_ptr<sched::TokenConstraint> json(bool in_reasoning, std::optional<int64_t> budget = {}) {
  return make_constraint(
             house().tokens,
             {.grammar = house().compiler->json_object().value(), .starts_in_reasoning = in_reasoning, .thinking_budget = budget})
      .value();
}

// F1: drafts can carry </think> and what follows it in one step; the tokens behind it were drawn without the grammar.
TEST(GrammarConstraint, TheGrammarBeginsWithTheFirstTokenBehindTheEndOfReasoning) {
  const auto constraint = json(true);
  say(*constraint, "I think of ``` and }.");
  EXPECT_TRUE(may(*constraint, *house().tokens.end_think));
  constraint->on_token(*house().tokens.end_think);
  EXPECT_FALSE(may(*constraint, id_of("```"))) << "a fence before the JSON";
  EXPECT_TRUE(may(*constraint, id_of("{")));
  say(*constraint, "{\"a\": 1}");
  EXPECT_EQ(num_allowed(*constraint), 3) << "behind the document its end alone";
}

TEST(GrammarConstraint, ReasoningNeitherEndsTheAnswerNorCallsATool) {
  const auto constraint = json(true);
  for (const int32_t stop : house().tokens.stop_token_ids) EXPECT_FALSE(may(*constraint, stop)) << "an answer without its document";
  EXPECT_FALSE(may(*constraint, *house().tokens.tool_call)) << "the parser would take it for the end of reasoning";
  say(*constraint, "so");
  for (const int32_t stop : house().tokens.stop_token_ids) EXPECT_FALSE(may(*constraint, stop));
}

TEST(GrammarConstraint, TheEndComesOnlyBehindAWholeDocument) {
  const auto constraint = json(false);
  const int32_t stop = house().tokens.stop_token_ids[1];
  EXPECT_FALSE(may(*constraint, stop));
  say(*constraint, "{\"a\"");
  EXPECT_FALSE(may(*constraint, stop));
  say(*constraint, ": {}}");
  EXPECT_TRUE(may(*constraint, stop));
  constraint->on_token(stop);
  EXPECT_EQ(num_allowed(*constraint), 3) << "with ignore_eos the end comes again, and nothing else";
}

TEST(GrammarConstraint, AfterTheThinkingBudgetOnlyTheEndOfReasoningMayCome) {
  for (const bool with_grammar : {false, true}) {
    const auto constraint = make_constraint(house().tokens, {.grammar = with_grammar ? house().compiler->json_object().value() : nullptr,
                                                             .starts_in_reasoning = true,
                                                             .thinking_budget = 3})
                                .value();
    for (int i = 0; i < 3; ++i) {
      EXPECT_GT(num_allowed(*constraint), 1000);
      constraint->on_token(id_of("so"));
    }
    EXPECT_EQ(num_allowed(*constraint), 1);
    EXPECT_TRUE(may(*constraint, *house().tokens.end_think));
    constraint->on_token(*house().tokens.end_think);
    if (with_grammar)
      EXPECT_FALSE(may(*constraint, id_of("so")));
    else
      EXPECT_EQ(num_allowed(*constraint), house().vocab_size) << "the answer is free again";
  }
}

TEST(GrammarConstraint, ABudgetOfZeroEndsReasoningAtOnce) {
  const auto constraint = make_constraint(house().tokens, {.grammar = nullptr, .starts_in_reasoning = true, .thinking_budget = 0}).value();
  EXPECT_EQ(num_allowed(*constraint), 1);
}

TEST(GrammarConstraint, AnAnswerThatOpensItsReasoningItselfIsBoundedToo) {
  const auto constraint = make_constraint(house().tokens, {.grammar = nullptr, .starts_in_reasoning = false, .thinking_budget = 1}).value();
  constraint->on_token(*house().tokens.think);
  constraint->on_token(id_of("so"));
  EXPECT_EQ(num_allowed(*constraint), 1);
}

// F2: a draft that breaks the grammar is not drawn; should one be forced all the same, the request ends with an error, not the process.
TEST(GrammarConstraint, AForcedTokenThatBreaksTheGrammarLeavesNothing) {
  const auto constraint = json(false);
  constraint->on_token(id_of("so"));
  EXPECT_EQ(num_allowed(*constraint), 0);
  constraint->on_token(id_of("{"));
  EXPECT_EQ(num_allowed(*constraint), 0);
}

TEST(GrammarConstraint, IdsWithoutATokenAndSpecialTokensNeverComeInADocument) {
  const auto constraint = json(false);
  say(*constraint, "{\"");
  const std::vector<float> logits = restricted(*constraint);
  for (int64_t id = 0; id < house().vocab_size; ++id) {
    const auto token = static_cast<int32_t>(id);
    const bool has_text = id < house().tokenizer->vocab_size() && !house().tokenizer->is_special(token);
    EXPECT_TRUE(has_text || std::isinf(logits[static_cast<size_t>(id)])) << id;
  }
  for (const char* tag : {"<think>", "</think>", "<tool_call>", "</arg_value>"})
    EXPECT_FALSE(may(*constraint, *house().tokenizer->token_to_id(tag))) << tag;
}

TEST(GrammarConstraint, NothingToConstrainIsNull) {
  EXPECT_EQ(make_constraint(house().tokens, {}).value(), nullptr);
  AnswerTokens without = house().tokens;
  without.end_think.reset();
  EXPECT_FALSE(
      make_constraint(without, {.grammar = house().compiler->json_object().value(), .starts_in_reasoning = true, .thinking_budget = {}}));
}

}  // namespace
}  // namespace ingot::serve
