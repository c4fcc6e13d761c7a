// An answer that may be of a form or a call must be one of them to its end, and a minimum of tokens must hold back every stop token.
#include "serve/answer_constraint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ingot::serve {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Allows the tokens of one text in their order, then nothing.
class OneText final : public sched::TokenConstraint {
 public:
  explicit OneText(std::vector<int32_t> text) : text_(std::move(text)) {}
  void restrict(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (at_ >= text_.size() || static_cast<int32_t>(i) != text_[at_]) logits[i] = kForbidden;
    }
  }
  void on_token(int32_t id) override { at_ = at_ < text_.size() && text_[at_] == id ? at_ + 1 : text_.size(); }

 private:
  std::vector<int32_t> text_;
  size_t at_ = 0;
};

std::vector<int32_t> allowed(sched::TokenConstraint& constraint) {
  std::vector<float> logits(8, 0.5f);
  constraint.restrict(logits);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == 0.5f) {
      ids.push_back(static_cast<int32_t>(i));
    } else {
      EXPECT_EQ(logits[i], kForbidden);
    }
  }
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(AnswerConstraint, AFormOrACallIsOneOfThemToItsEnd) {
  const auto make = [] { return either_of(std::make_shared<OneText>(Ids{1, 2, 3}), std::make_shared<OneText>(Ids{1, 4, 5})); };
  auto first = make();
  EXPECT_EQ(allowed(*first), (Ids{1}));
  first->on_token(1);
  EXPECT_EQ(allowed(*first), (Ids{2, 4}));
  first->on_token(2);
  EXPECT_EQ(allowed(*first), (Ids{3}));
  auto second = make();
  for (const int32_t id : {1, 4}) {
    allowed(*second);
    second->on_token(id);
  }
  EXPECT_EQ(allowed(*second), (Ids{5}));
}

TEST(AnswerConstraint, StopTokensWaitForTheMinimum) {
  auto constraint = at_least(2, {6, 7}, nullptr);
  EXPECT_EQ(allowed(*constraint), (Ids{0, 1, 2, 3, 4, 5}));
  constraint->on_token(1);
  EXPECT_EQ(allowed(*constraint), (Ids{0, 1, 2, 3, 4, 5}));
  constraint->on_token(1);
  EXPECT_EQ(allowed(*constraint).size(), 8u);
}

TEST(AnswerConstraint, AMinimumLeavesAnotherConstraintItsSay) {
  auto constraint = at_least(1, {6}, std::make_shared<OneText>(Ids{3, 6}));
  EXPECT_EQ(allowed(*constraint), (Ids{3}));
  constraint->on_token(3);
  EXPECT_EQ(allowed(*constraint), (Ids{6}));
}

TEST(AnswerConstraint, NothingAskedIsNoConstraintAndAFormNeedsACompiler) {
  ServedModel model;
  GenerationOptions options;
  EXPECT_FALSE(*make_constraints(model, options, nullptr, false));
  options.form = {AnswerForm::Kind::regex, {}, "a", "regex"};
  const auto refused = make_constraints(model, options, nullptr, false);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().param, "regex");
}

}  // namespace
}  // namespace ingot::serve
