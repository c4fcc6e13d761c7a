#include "text/jinja_interpreter.h"

#include <algorithm>
#include <unordered_map>

namespace ingot::text::jinja {

// One level of recursion of the interpreter.
struct Interpreter::Depth {
  explicit Depth(Interpreter& interpreter) : owner(interpreter) {
    if (++owner.depth_ > 10 * owner.limits_.max_depth) {
      --owner.depth_;
      fault("LimitError", "template nests more than {} evaluations", 10 * owner.limits_.max_depth);
    }
    owner.budget().step();
  }
  ~Depth() { --owner.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  Interpreter& owner;
};

Interpreter::Interpreter(const Ast& ast, Heap& values, const InterpreterLimits& limits, std::optional<int64_t> now_unix_seconds)
    : Host(values, now_unix_seconds), ast_(ast), limits_(limits) {}

Interpreter::~Interpreter() {
  // Every cycle runs through a kept object; each is still held here while the others let go, so nothing unwinds deeply.
  for (const auto& object : kept_) object->clear();
}

std::string Interpreter::run(std::vector<std::pair<std::string, Value>> variables) {
  std::unordered_map<std::string_view, int> ids;
  for (size_t i = 0; i < ast_.names.size(); ++i) ids.emplace(ast_.names[i], static_cast<int>(i));
  auto globals = std::make_shared<Scope>();
  const auto define = [&](std::string_view name, Value value) {
    // A name the template never mentions needs no place.
    if (const auto it = ids.find(name); it != ids.end()) set(globals, it->second, std::move(value));
  };
  const std::pair<const char*, Builtin> functions[] = {{"range", Builtin::kRange},
                                                       {"dict", Builtin::kDict},
                                                       {"namespace", Builtin::kNamespace},
                                                       {"raise_exception", Builtin::kRaiseException}};
  for (const auto& [name, which] : functions) define(name, Value::object(Kind::kFunction, std::make_shared<Function>(&budget(), which)));
  if (now) define("strftime_now", Value::object(Kind::kFunction, std::make_shared<Function>(&budget(), Builtin::kStrftimeNow)));
  for (auto& [name, value] : variables) define(name, std::move(value));

  auto top = std::make_shared<Scope>();
  top->parent = globals;
  Output out(budget());
  execute(ast_.body, top, out);
  return std::move(out.text);
}

void Interpreter::set(const ScopePtr& scope, int id, Value value) {
  for (auto& [known, old] : scope->variables) {
    if (known == id) {
      old = std::move(value);
      return;
    }
  }
  scope->variables.emplace_back(id, std::move(value));
}

Value Interpreter::lookup(int id, const ScopePtr& scope) {
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    for (const auto& [known, value] : at->variables) {
      if (known == id) return value;
    }
  }
  return heap.undefined(fmt::format("'{}' is undefined", ast_.names[static_cast<size_t>(id)]));
}

// ---- statements ----

void Interpreter::emit(std::string_view text, Output& out) {
  if (static_cast<int64_t>(out.text.size() + text.size()) > limits_.max_output_bytes) {
    fault("LimitError", "template writes more than {} bytes", limits_.max_output_bytes);
  }
  budget().touch(text.size());
  out.charge.grow(text.size());
  out.text += text;
}

void Interpreter::print(const Value& value, Output& out) {
  if (value.is_string()) {
    emit(value.text(), out);
  } else {
    emit(str(budget(), value), out);
  }
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope, Output& out) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = execute(*stmt, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt, const ScopePtr& scope, Output& out) {
  const Depth depth(*this);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText: emit(stmt.text, out); break;
    case StmtKind::kPrint: print(eval(*stmt.expr, scope), out); break;
    case StmtKind::kIf: return execute(truth(eval(*stmt.expr, scope)) ? stmt.body : stmt.else_body, scope, out);
    case StmtKind::kFor: return execute_for(stmt, scope, out);
    case StmtKind::kSet: assign(*stmt.target, eval(*stmt.expr, scope), scope); break;
    case StmtKind::kSetBlock: execute_set_block(stmt, scope); break;
    case StmtKind::kMacro: set(scope, stmt.id, make_macro(stmt, scope)); break;
    case StmtKind::kCallBlock: {
      const Expr& call_expr = *stmt.expr;
      const Value callee = eval(*call_expr.children[0], scope);
      CallValues args = eval_args(call_expr.args, scope);
      args.named.emplace_back("caller", make_macro(stmt, scope));
      print(call(callee, std::move(args)), out);
      break;
    }
    case StmtKind::kFilterBlock: {
      const Value text = render_body(stmt.body, scope);
      print(eval_filter(*stmt.expr, scope, &text), out);
      break;
    }
    case StmtKind::kWith: {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      // The values see the outer scope only.
      Values values;
      for (const ExprPtr& value : stmt.with_values) values.push_back(eval(*value, scope));
      for (size_t i = 0; i < values.size(); ++i) assign(*stmt.with_targets[i], values[i], inner);
      return execute(stmt.body, inner, out);
    }
    case StmtKind::kScope: {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      return execute(stmt.body, inner, out);
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::execute_set_block(const Stmt& stmt, const ScopePtr& scope) {
  Value text = render_body(stmt.body, scope);
  if (stmt.expr) text = eval_filter(*stmt.expr, scope, &text);
  assign(*stmt.target, text, scope);
}

Value Interpreter::render_body(const Body& body, const ScopePtr& scope) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  Output out(budget());
  execute(body, inner, out);
  return heap.string(std::move(out.text));
}

Interpreter::Flow Interpreter::execute_for(const Stmt& stmt, const ScopePtr& scope, Output& out) {
  run_loop(stmt, eval(*stmt.expr, scope), scope, out, 0);
  return Flow::kNormal;
}

void Interpreter::run_loop(const Stmt& stmt, const Value& iterable, const ScopePtr& scope, Output& out, int depth0) {
  Values candidates = iterate(heap, iterable);
  const Charge charge(&budget(), candidates.size() * sizeof(Value));
  if (stmt.test) {
    Values passed;
    for (Value& item : candidates) {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      assign(*stmt.target, item, inner);
      if (truth(eval(*stmt.test, inner))) passed.push_back(std::move(item));
    }
    candidates = std::move(passed);
  }
  const auto items = std::make_shared<const Values>(std::move(candidates));
  std::shared_ptr<Loop> loop;
  if (stmt.recursive) {
    auto recursive = std::make_shared<RecursiveLoop>(&budget(), items, depth0);
    recursive->statement = &stmt;
    recursive->scope = scope;
    loop = recursive;
  } else if (stmt.uses_loop) {
    loop = std::make_shared<Loop>(&budget(), items, depth0);
  }
  if (loop) keep(loop);
  bool any = false;
  for (size_t i = 0; i < items->size(); ++i) {
    budget().step();
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    if (loop) {
      loop->index0 = i;
      inner->variables.emplace_back(kIdLoop, Value::object(Kind::kLoop, loop));
    }
    assign(*stmt.target, (*items)[i], inner);
    const Flow flow = execute(stmt.body, inner, out);
    if (flow == Flow::kBreak) break;
    // As in Jinja2, only a body that ran to its end keeps the else branch away.
    if (flow == Flow::kNormal) any = true;
  }
  if (!any) {
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    execute(stmt.else_body, inner, out);
  }
}

void Interpreter::assign(const Expr& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == ExprKind::kName) {
    set(scope, target.id, value);
    return;
  }
  if (target.kind == ExprKind::kNamespace) {
    const Value space = lookup(target.id, scope);
    if (!space.is(Kind::kNamespace)) fault("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    auto& attributes = space.get<Namespace>().attributes;
    const auto it = std::find_if(attributes.begin(), attributes.end(), [&](const auto& entry) { return entry.first == target.name; });
    if (it != attributes.end()) {
      it->second = value;
    } else {
      space.get<Namespace>().charge.grow(sizeof(Value) + 32 + target.name.size());
      attributes.emplace_back(target.name, value);
    }
    return;
  }
  if (value.is_number() || value.is(Kind::kNone)) fault("TypeError", "cannot unpack non-iterable {} object", type_name(value));
  const Values parts = iterate(heap, value);
  const size_t wanted = target.children.size();
  if (parts.size() > wanted) fault("ValueError", "too many values to unpack (expected {})", wanted);
  if (parts.size() < wanted) fault("ValueError", "not enough values to unpack (expected {}, got {})", wanted, parts.size());
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], parts[i], scope);
}

// ---- expressions ----

Value Interpreter::eval(const Expr& expr, const ScopePtr& scope) {
  const Depth depth(*this);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kConst: return expr.constant;
    case ExprKind::kName: return lookup(expr.id, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict: return eval_container(expr, scope);
    case ExprKind::kAttr: return get_attribute(*this, eval(*expr.children[0], scope), expr.name);
    case ExprKind::kItem: {
      const Value object = eval(*expr.children[0], scope);
      return get_item(*this, object, eval(*expr.children[1], scope));
    }
    case ExprKind::kSlice: {
      const Value object = eval(*expr.children[0], scope);
      Value parts[3];
      for (size_t i = 0; i < 3; ++i) parts[i] = expr.children[i + 1] ? eval(*expr.children[i + 1], scope) : Value::none();
      return get_slice(*this, object, parts[0], parts[1], parts[2]);
    }
    case ExprKind::kCall: return eval_call(expr, scope);
    case ExprKind::kFilter: return eval_filter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value value = eval(*expr.children[0], scope);
      return Value::boolean(apply_test(*this, expr.name, value, eval_args(expr.args, scope)));
    }
    case ExprKind::kBinary: {
      const Value left = eval(*expr.children[0], scope);
      const Value right = eval(*expr.children[1], scope);
      line_ = expr.line;
      return binary_op(*this, expr.op, left, right);
    }
    case ExprKind::kUnary: return unary_op(*this, expr.op, eval(*expr.children[0], scope));
    case ExprKind::kConcat: {
      std::string out;
      for (const ExprPtr& child : expr.children) append_str(budget(), eval(*child, scope), out);
      return heap.string(std::move(out));
    }
    case ExprKind::kCompare: return eval_compare(expr, scope);
    case ExprKind::kAnd: {
      Value left = eval(*expr.children[0], scope);
      return truth(left) ? eval(*expr.children[1], scope) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.children[0], scope);
      return truth(left) ? left : eval(*expr.children[1], scope);
    }
    case ExprKind::kCond:
      if (truth(eval(*expr.children[0], scope))) return eval(*expr.children[1], scope);
      if (expr.children[2]) return eval(*expr.children[2], scope);
      return heap.undefined("the inline if-expression evaluated to false and no else section was defined.");
    case ExprKind::kNamespace: break;
  }
  return {};
}

Value Interpreter::eval_container(const Expr& expr, const ScopePtr& scope) {
  Values values;
  for (const ExprPtr& child : expr.children) values.push_back(eval(*child, scope));
  if (expr.kind == ExprKind::kList) return heap.list(std::move(values));
  if (expr.kind == ExprKind::kTuple) return heap.tuple(std::move(values));
  Pairs pairs;
  for (size_t i = 0; i < values.size(); i += 2) pairs.emplace_back(std::move(values[i]), std::move(values[i + 1]));
  return heap.dict(std::move(pairs));
}

Value Interpreter::eval_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = eval(*expr.children[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1], scope);
    line_ = expr.line;
    if (!compare_op(*this, expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

CallValues Interpreter::eval_args(const CallArgs& args, const ScopePtr& scope) {
  CallValues values;
  for (const ExprPtr& arg : args.positional) values.positional.push_back(eval(*arg, scope));
  for (const NamedExpr& arg : args.named) values.named.emplace_back(arg.name, eval(*arg.value, scope));
  if (args.star) {
    for (Value& value : iterate(heap, eval(*args.star, scope))) values.positional.push_back(std::move(value));
  }
  if (args.double_star) {
    const Value extra = eval(*args.double_star, scope);
    if (!extra.is(Kind::kDict)) fault("TypeError", "argument after ** must be a mapping, not {}", type_name(extra));
    for (const auto& [key, value] : extra.dict().entries) {
      if (!key.is_string()) fault("TypeError", "keywords must be strings");
      values.named.emplace_back(key.text(), value);
    }
  }
  return values;
}

Value Interpreter::eval_call(const Expr& expr, const ScopePtr& scope) {
  const Value callee = eval(*expr.children[0], scope);
  CallValues args = eval_args(expr.args, scope);
  line_ = expr.line;
  Value result = call(callee, std::move(args));
  line_ = expr.line;
  return result;
}

Value Interpreter::eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input) {
  // The innermost filter of a block's chain has no operand: it takes the block's text.
  Value value;
  if (expr.children[0] == nullptr) {
    value = *input;
  } else if (input != nullptr) {
    value = eval_filter(*expr.children[0], scope, input);
  } else {
    value = eval(*expr.children[0], scope);
  }
  CallValues args = eval_args(expr.args, scope);
  line_ = expr.line;
  return apply_filter(*this, expr.name, value, std::move(args));
}

Value Interpreter::call(const Value& callee, CallValues args) {
  switch (callee.kind()) {
    case Kind::kUndefined: fail_undefined(callee);
    case Kind::kMacro: return call_macro(callee.get<Macro>(), std::move(args));
    case Kind::kMethod: return call_method(*this, callee.get<Method>(), std::move(args));
    case Kind::kFunction: return call_function(*this, callee.get<Function>().which, std::move(args));
    case Kind::kLoop: return call_loop(callee, std::move(args));
    default: fault("TypeError", "'{}' object is not callable", type_name(callee));
  }
}

Value Interpreter::make_macro(const Stmt& stmt, const ScopePtr& scope) {
  auto macro = std::make_shared<Macro>(&budget(), 0);
  macro->definition = &stmt;
  macro->closure = scope;
  keep(macro);
  return Value::object(Kind::kMacro, macro);
}

Value Interpreter::call_macro(const Macro& macro, CallValues args) {
  if (macro.definition == nullptr) fault("TypeError", "macro is no longer callable");
  const Stmt& definition = *macro.definition;
  if (++calls_ > limits_.max_depth) {
    --calls_;
    fault("LimitError", "macro calls nest deeper than {}", limits_.max_depth);
  }
  struct Leave {
    int& calls;
    ~Leave() { --calls; }
  } const leave{calls_};

  auto scope = std::make_shared<Scope>();
  scope->parent = macro.closure;
  const size_t num_params = definition.params.size();
  if (args.positional.size() > num_params && !definition.uses_varargs) {
    fault("TypeError", "macro {} takes not more than {} argument(s)", definition.text, num_params);
  }
  std::vector<bool> given(num_params, false);
  for (size_t i = 0; i < std::min(num_params, args.positional.size()); ++i) {
    set(scope, definition.params[i].id, args.positional[i]);
    given[i] = true;
  }
  Pairs extra;
  Value caller;
  bool has_caller = false;
  for (auto& [name, value] : args.named) {
    const auto it = std::find_if(definition.params.begin(), definition.params.end(),
                                 [&wanted = name](const Param& param) { return param.name == wanted; });
    if (it != definition.params.end()) {
      const auto i = static_cast<size_t>(it - definition.params.begin());
      if (given[i]) fault("TypeError", "macro {} got multiple values for argument '{}'", definition.text, name);
      set(scope, it->id, std::move(value));
      given[i] = true;
    } else if (name == "caller" && definition.uses_caller) {
      caller = std::move(value);
      has_caller = true;
    } else if (definition.uses_kwargs) {
      extra.emplace_back(heap.string(name), std::move(value));
    } else if (name == "caller") {
      fault("TypeError", "macro {} was invoked with two values for the special caller argument or takes none", definition.text);
    } else {
      fault("TypeError", "macro {} takes no keyword argument {}", definition.text, "'" + name + "'");
    }
  }
  if (definition.uses_caller && definition.kind == StmtKind::kMacro) {
    set(scope, kIdCaller, has_caller ? caller : heap.undefined("No caller defined"));
  }
  if (definition.uses_kwargs) set(scope, kIdKwargs, heap.dict(std::move(extra)));
  if (definition.uses_varargs) {
    Values rest;
    for (size_t i = num_params; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    set(scope, kIdVarargs, heap.tuple(std::move(rest)));
  }
  for (size_t i = 0; i < num_params; ++i) {
    const Param& param = definition.params[i];
    if (given[i]) continue;
    Value value = param.default_value ? eval(*param.default_value, scope)
                                      : heap.undefined(fmt::format("parameter '{}' was not provided", param.name));
    set(scope, param.id, std::move(value));
  }
  Output out(budget());
  execute(definition.body, scope, out);
  return heap.string(std::move(out.text));
}

Value Interpreter::call_loop(const Value& value, CallValues args) {
  const auto* loop = dynamic_cast<const RecursiveLoop*>(&value.get<Loop>());
  if (loop == nullptr || loop->statement == nullptr) {
    fault("TypeError", "The loop must have the 'recursive' marker to be called recursively.");
  }
  const Params params("loop", args, {"iterable"});
  if (++calls_ > limits_.max_depth) {
    --calls_;
    fault("LimitError", "recursive loops nest deeper than {}", limits_.max_depth);
  }
  struct Leave {
    int& calls;
    ~Leave() { --calls; }
  } const leave{calls_};
  Output out(budget());
  run_loop(*loop->statement, params.at(0), loop->scope, out, loop->depth0 + 1);
  return heap.string(std::move(out.text));
}

}  // namespace ingot::text::jinja
