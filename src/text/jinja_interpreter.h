// Walks an Ast with a context and gives the text. One object a render, one thread; chat_template.cc is the only caller.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

namespace ingot::text::jinja {

struct InterpreterLimits {
  int64_t max_output_bytes;
  int max_depth;  // macro calls within macro calls; evaluated nodes may nest ten times as deep
};

// The variables of a lexical scope. A macro keeps the scopes it was defined in.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

struct Macro : Object {
  using Object::Object;
  void clear() override { closure.reset(); }
  const Stmt* definition = nullptr;
  ScopePtr closure;
};

// A `for ... recursive` loop can be called with the next level's items.
struct RecursiveLoop : Loop {
  using Loop::Loop;
  void clear() override {
    Loop::clear();
    scope.reset();
  }
  const Stmt* statement = nullptr;
  ScopePtr scope;
};

class Interpreter : public Host {
 public:
  Interpreter(const Ast& ast, Heap& heap, const InterpreterLimits& limits, std::optional<int64_t> now);
  ~Interpreter() override;

  // `variables` are the context's members. Throws TemplateFault; line() is then where.
  std::string run(std::vector<std::pair<std::string, Value>> variables);
  int line() const { return line_; }

  void keep(std::shared_ptr<Object> object) override { kept_.push_back(std::move(object)); }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  // Text under construction, charged to the budget as it grows.
  struct Output {
    explicit Output(Budget& budget) : charge(&budget, 0) {}
    std::string text;
    Charge charge;
  };
  struct Depth;

  Flow execute(const Body& body, const ScopePtr& scope, Output& out);
  Flow execute(const Stmt& stmt, const ScopePtr& scope, Output& out);
  Flow execute_for(const Stmt& stmt, const ScopePtr& scope, Output& out);
  void run_loop(const Stmt& stmt, const Value& items, const ScopePtr& scope, Output& out, int depth0);
  void execute_set_block(const Stmt& stmt, const ScopePtr& scope);
  Value render_body(const Body& body, const ScopePtr& scope);
  void assign(const Expr& target, const Value& value, const ScopePtr& scope);
  void print(const Value& value, Output& out);
  void emit(std::string_view text, Output& out);

  Value eval(const Expr& expr, const ScopePtr& scope);
  Value eval_compare(const Expr& expr, const ScopePtr& scope);
  Value eval_call(const Expr& expr, const ScopePtr& scope);
  Value eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input);
  Value eval_container(const Expr& expr, const ScopePtr& scope);
  CallValues eval_args(const CallArgs& args, const ScopePtr& scope);
  Value call(const Value& callee, CallValues args);
  Value call_macro(const Macro& macro, CallValues args);
  Value call_loop(const Value& loop, CallValues args);
  Value make_macro(const Stmt& stmt, const ScopePtr& scope);

  void set(const ScopePtr& scope, int id, Value value);
  Value lookup(int id, const ScopePtr& scope);

  const Ast& ast_;
  InterpreterLimits limits_;
  int line_ = 1;
  int calls_ = 0;
  int depth_ = 0;
  std::vector<std::shared_ptr<Object>> kept_;
};

}  // namespace ingot::text::jinja
