#include "serve/answer_constraint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "serve/grammar_constraint.h"

namespace ingot::serve {

namespace {
constexpr float kForbidden = -std::numeric_limits<float>::infinity();
using Constraint = std::shared_ptr<sched::TokenConstraint>;
using Grammars = std::vector<std::shared_ptr<const text::Grammar>>;

class EitherConstraint final : public sched::TokenConstraint {
 public:
  EitherConstraint(Constraint first, Constraint second) : left_{std::move(first), std::move(second)} {}

  void restrict(std::span<float> logits) override {
    if (left_[0] == nullptr || left_[1] == nullptr) return (left_[0] ? left_[0] : left_[1])->restrict(logits);
    other_.assign(logits.begin(), logits.end());
    left_[0]->restrict(logits);
    left_[1]->restrict(other_);
    const auto none_left = [](std::span<const float> of) {
      return std::all_of(of.begin(), of.end(), [](float v) { return v == kForbidden; });
    };
    const bool second_ended = none_left(other_);
    if (!second_ended && none_left(logits)) left_[0] = nullptr;
    if (second_ended) left_[1] = nullptr;
    std::transform(logits.begin(), logits.end(), other_.begin(), logits.begin(), [](float a, float b) { return std::max(a, b); });
  }

  void on_token(int32_t token_id) override {
    for (const Constraint& constraint : left_) {
      if (constraint) constraint->on_token(token_id);
    }
  }

 private:
  std::array<Constraint, 2> left_;  // one at least; null: the tokens so far are not its own
  std::vector<float> other_;
};

class MinTokensConstraint final : public sched::TokenConstraint {
 public:
  MinTokensConstraint(int32_t min_tokens, std::vector<int32_t> stop_token_ids, Constraint inner)
      : left_(min_tokens), stop_token_ids_(std::move(stop_token_ids)), inner_(std::move(inner)) {}

  void restrict(std::span<float> logits) override {
    if (inner_) inner_->restrict(logits);
    if (left_ <= 0) return;
    for (const int32_t id : stop_token_ids_) logits[static_cast<size_t>(id)] = kForbidden;
  }

  void on_token(int32_t token_id) override {
    if (inner_) inner_->on_token(token_id);
    if (left_ > 0) --left_;
  }

 private:
  int32_t left_;
  std::vector<int32_t> stop_token_ids_;
  Constraint inner_;
};

// An error of the compiler begins with the path of the field that is at fault.
ApiError from_compiler(const Error& error) {
  const std::string text = error.text();
  return {400, text, text.substr(0, text.find(": ")), "invalid_grammar"};
}

Result<std::shared_ptr<const text::Grammar>> compile_form(text::GrammarCompiler& compiler, const AnswerForm& form) {
  switch (form.kind) {
    case AnswerForm::Kind::json_object: return compiler.json_object();
    case AnswerForm::Kind::json_schema: return compiler.json_schema(form.schema, form.field);
    case AnswerForm::Kind::regex: return compiler.regex(form.pattern, form.field);
    case AnswerForm::Kind::free: break;
  }
  return nullptr;
}

// The grammars of which an answer follows one; none: it is free.
ApiResult<Grammars> compile(const ServedModel& model, const AnswerForm& form, const ToolChoice* tools) {
  const bool may_call = tools != nullptr && tools->kind != ToolChoice::Kind::none;
  const bool must_call = may_call && tools->kind != ToolChoice::Kind::automatic;
  const bool has_form = form.kind != AnswerForm::Kind::free;
  Grammars grammars;
  if (!has_form && !(may_call && tools->constrained)) return grammars;
  if (model.grammars == nullptr)
    return bad_field(has_form ? form.field : "tool_choice",
                     "this model's tokenizer can't be constrained, so the form of an answer can't be promised");
  if (has_form && !must_call) {
    auto grammar = compile_form(*model.grammars, form);
    if (!grammar) return tl::unexpected(from_compiler(grammar.error()));
    grammars.push_back(std::move(*grammar));
  }
  if (may_call && (tools->constrained || has_form)) {
    text::ToolCallRules rules;
    using Choice = text::ToolCallRules::Choice;
    rules.choice = tools->kind == ToolChoice::Kind::named ? Choice::named : must_call || has_form ? Choice::required : Choice::strict_auto;
    rules.name = tools->name;
    rules.parallel = tools->parallel;
    auto grammar = model.grammars->tool_calls(tools->callable, rules);
    if (!grammar) return tl::unexpected(from_compiler(grammar.error()));
    grammars.push_back(std::move(*grammar));
  }
  return grammars;
}
}  // namespace

Constraint either_of(Constraint first, Constraint second) {
  return std::make_shared<EitherConstraint>(std::move(first), std::move(second));
}

Constraint at_least(int32_t min_tokens, std::vector<int32_t> stop_token_ids, Constraint inner) {
  return std::make_shared<MinTokensConstraint>(min_tokens, std::move(stop_token_ids), std::move(inner));
}

ApiResult<ConstraintFactory> make_constraints(const ServedModel& model, const GenerationOptions& options, const ToolChoice* tools,
                                              bool starts_in_reasoning) {
  auto grammars = compile(model, options.form, tools);
  if (!grammars) return tl::unexpected(std::move(grammars).error());
  if (grammars->empty() && !options.thinking_budget && options.min_tokens == 0) return ConstraintFactory{};
  const auto tokens = AnswerTokens::of(*model.tokenizer, model.defaults.eos_token_ids);
  const auto make = [tokens, grammars = std::move(*grammars), starts_in_reasoning, budget = options.thinking_budget,
                     min_tokens = options.min_tokens, stops = options.sampling.stop_token_ids]() -> Result<Constraint> {
    ConstraintOptions inner{grammars.empty() ? nullptr : grammars[0], starts_in_reasoning, budget};
    INGOT_ASSIGN(Constraint constraint, make_constraint(tokens, inner));
    if (grammars.size() == 2) {
      inner.grammar = grammars[1];
      INGOT_ASSIGN(Constraint second, make_constraint(tokens, inner));
      constraint = either_of(std::move(constraint), std::move(second));
    }
    return min_tokens > 0 ? at_least(min_tokens, stops, std::move(constraint)) : constraint;
  };
  if (const auto first = make(); !first) return bad_field("thinking_budget", first.error().text());
  return ConstraintFactory([make] { return make().value(); });
}

}  // namespace ingot::serve
