#include "text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"

namespace ingot::text::jinja {
namespace {

// Operators and words that end a tuple or an argument where Jinja2 looks for the end.
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Parser {
 public:
  Parser(std::string_view source, int& line) : line_(line), tokens_(tokenize(source, line)) {
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) intern(name);
  }

  Ast run() {
    ast_.body = statements({});
    return std::move(ast_);
  }

 private:
  // Depth of the recursive descent, checked wherever the grammar recurses.
  struct Nest {
    explicit Nest(Parser& parser, int weight = 1) : owner(parser), amount(weight) {
      owner.nesting_ += amount;
      if (owner.nesting_ > kMaxSourceNesting)
        fault("TemplateSyntaxError", "unsupported: source nested deeper than {} levels", kMaxSourceNesting);
    }
    ~Nest() { owner.nesting_ -= amount; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;
    Parser& owner;
    int amount;
  };

  const Token& current() const { return tokens_[pos_]; }
  const Token& look(size_t ahead = 1) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[pos_];
    if (pos_ + 1 < tokens_.size()) ++pos_;
    line_ = tokens_[pos_].line;
    return token;
  }
  static bool is_op(const Token& token, std::string_view op) { return token.kind == TokenKind::kOperator && token.text == op; }
  static bool is_name(const Token& token, std::string_view name) { return token.kind == TokenKind::kName && token.text == name; }
  bool skip_op(std::string_view op) {
    if (!is_op(current(), op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(current(), name)) return false;
    next();
    return true;
  }
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd: return "end of template";
      case TokenKind::kBlockEnd: return "end of statement block";
      case TokenKind::kPrintEnd: return "end of print statement";
      case TokenKind::kText:
      case TokenKind::kPrintBegin:
      case TokenKind::kBlockBegin: return "template text";
      default: return "'" + token.text.substr(0, 40) + "'";
    }
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fault("TemplateSyntaxError", "expected token '{}', got {}", op, describe(current()));
  }
  std::string expect_name() {
    if (current().kind != TokenKind::kName) fault("TemplateSyntaxError", "expected a name, got {}", describe(current()));
    return next().text;
  }
  void expect_word(std::string_view word) {
    if (!skip_name(word)) fault("TemplateSyntaxError", "expected '{}', got {}", word, describe(current()));
  }
  void expect_kind(TokenKind kind, std::string_view what) {
    if (current().kind != kind) fault("TemplateSyntaxError", "expected {}, got {}", what, describe(current()));
    next();
  }

  int intern(std::string_view name) {
    const auto [it, added] = ids_.try_emplace(std::string(name), static_cast<int>(ast_.names.size()));
    if (added) ast_.names.emplace_back(name);
    return it->second;
  }

  ExprPtr make(ExprKind kind, int line) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  ExprPtr make_const(Value value, int line) {
    ExprPtr expr = make(ExprKind::kConst, line);
    expr->constant = std::move(value);
    return expr;
  }
  static Value constant_string(std::string text) {
    return Value::object(Kind::kString, std::make_shared<String>(nullptr, std::move(text), false));
  }
  template <class... Children>
  ExprPtr make_with(ExprKind kind, int line, Children... children) {
    ExprPtr expr = make(kind, line);
    (expr->children.push_back(std::move(children)), ...);
    return expr;
  }
  // A left-deep chain (a + b + c ...) nests without recursing in the parser, so its height is counted as it grows.
  void check_chain(int links) const {
    if (nesting_ + links > kMaxSourceNesting * 4)
      fault("TemplateSyntaxError", "unsupported: a chain of more than {} operators", kMaxSourceNesting * 4);
  }

  // ---- statements ----

  using Ends = std::initializer_list<std::string_view>;

  // Statements up to `{% END`, whose name token is left current; with no ends, up to the end of the template.
  Body statements(Ends ends) {
    const Nest nest(*this);
    Body body;
    while (true) {
      const Token& token = current();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0) fault("TemplateSyntaxError", "unexpected end of template, '{}' is missing", *(ends.end() - 1));
        return body;
      }
      if (token.kind == TokenKind::kText) {
        StmtPtr stmt = new_stmt(StmtKind::kText);
        stmt->text = next().text;
        body.push_back(std::move(stmt));
      } else if (token.kind == TokenKind::kPrintBegin) {
        StmtPtr stmt = new_stmt(StmtKind::kPrint);
        next();
        stmt->expr = tuple(true, {});
        expect_kind(TokenKind::kPrintEnd, "end of print statement");
        body.push_back(std::move(stmt));
      } else {
        next();  // block begin
        if (current().kind == TokenKind::kName && is_one_of(current().text, ends)) return body;
        statement(body);
        expect_kind(TokenKind::kBlockEnd, "end of statement block");
      }
    }
  }

  // The body of a statement whose head has been read: `%}` ... `{% END`.
  Body block_body(Ends ends) {
    skip_op(":");
    expect_kind(TokenKind::kBlockEnd, "end of statement block");
    return statements(ends);
  }

  StmtPtr new_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = current().line;
    return stmt;
  }

  void statement(Body& body) {
    const Token& token = current();
    if (token.kind != TokenKind::kName) fault("TemplateSyntaxError", "tag name expected, got {}", describe(token));
    const std::string word = token.text;
    if (word == "if") {
      body.push_back(if_statement());
    } else if (word == "for") {
      body.push_back(for_statement());
    } else if (word == "set") {
      body.push_back(set_statement());
    } else if (word == "macro") {
      body.push_back(macro_statement());
    } else if (word == "call") {
      body.push_back(call_statement());
    } else if (word == "filter") {
      body.push_back(filter_statement());
    } else if (word == "with") {
      body.push_back(with_statement());
    } else if (word == "print") {
      StmtPtr stmt = new_stmt(StmtKind::kPrint);
      next();
      // {% print a, b %} prints its parts one after the other.
      while (true) {
        stmt->expr = expression();
        body.push_back(std::move(stmt));
        if (!skip_op(",")) break;
        stmt = new_stmt(StmtKind::kPrint);
      }
    } else if (word == "generation") {
      StmtPtr stmt = new_stmt(StmtKind::kScope);
      next();
      stmt->body = block_body({"endgeneration"});
      next();
      body.push_back(std::move(stmt));
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) fault("TemplateSyntaxError", "'{}' outside a loop", word);
      body.push_back(new_stmt(word == "break" ? StmtKind::kBreak : StmtKind::kContinue));
      next();
    } else if (is_one_of(word, {"block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"})) {
      fault("TemplateSyntaxError", "unsupported statement '{}'", word);
    } else {
      fault("TemplateSyntaxError", "Encountered unknown tag '{}'.", word);
    }
  }

  StmtPtr if_statement() {
    const Nest nest(*this);
    StmtPtr stmt = new_stmt(StmtKind::kIf);
    next();
    Stmt* branch = stmt.get();
    for (int branches = 0;; ++branches) {
      branch->expr = tuple(false, {});
      branch->body = block_body({"elif", "else", "endif"});
      const std::string end = next().text;
      if (end == "elif") {
        check_chain(branches);
        branch->else_body.push_back(new_stmt(StmtKind::kIf));
        branch = branch->else_body.back().get();
        continue;
      }
      if (end == "else") {
        branch->else_body = block_body({"endif"});
        next();
      }
      return stmt;
    }
  }

  StmtPtr for_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kFor);
    next();
    if (is_name(current(), "loop")) fault("TemplateSyntaxError", "Can't assign to special loop variable in for-loop target");
    stmt->target = target(false, {"in"});
    expect_word("in");
    stmt->expr = tuple(false, {"recursive"});
    const bool outer_loop = saw_loop_;
    saw_loop_ = false;
    if (skip_name("if")) stmt->test = expression();
    stmt->recursive = skip_name("recursive");
    saw_loop_ = false;
    ++loops_;
    stmt->body = block_body({"endfor", "else"});
    --loops_;
    stmt->uses_loop = saw_loop_ || stmt->recursive;
    saw_loop_ = saw_loop_ || outer_loop;
    if (next().text == "else") {
      stmt->else_body = block_body({"endfor"});
      next();
    }
    return stmt;
  }

  StmtPtr set_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kSet);
    next();
    stmt->target = target(true, {});
    if (skip_op("=")) {
      stmt->expr = tuple(true, {});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expr = filter_chain(nullptr);
    stmt->body = block_body({"endset"});
    next();
    return stmt;
  }

  // A macro's body may not leave a loop around it.
  Body macro_body(Ends ends, Stmt& stmt) {
    const int saved_loops = std::exchange(loops_, 0);
    const bool saved[3] = {saw_caller_, saw_varargs_, saw_kwargs_};
    saw_caller_ = saw_varargs_ = saw_kwargs_ = false;
    Body body = block_body(ends);
    stmt.uses_caller = saw_caller_;
    stmt.uses_varargs = saw_varargs_;
    stmt.uses_kwargs = saw_kwargs_;
    saw_caller_ = saved[0] || saw_caller_;
    saw_varargs_ = saved[1] || saw_varargs_;
    saw_kwargs_ = saved[2] || saw_kwargs_;
    loops_ = saved_loops;
    return body;
  }

  void signature(Stmt& stmt) {
    expect_op("(");
    while (!is_op(current(), ")")) {
      if (!stmt.params.empty()) expect_op(",");
      Param param;
      param.name = expect_name();
      check_assignable(param.name);
      param.id = intern(param.name);
      if (skip_op("=")) {
        param.default_value = expression();
      } else if (!stmt.params.empty() && stmt.params.back().default_value) {
        fault("TemplateSyntaxError", "non-default argument follows default argument");
      }
      stmt.params.push_back(std::move(param));
    }
    expect_op(")");
  }

  StmtPtr macro_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kMacro);
    next();
    stmt->text = expect_name();
    check_assignable(stmt->text);
    stmt->id = intern(stmt->text);
    signature(*stmt);
    stmt->body = macro_body({"endmacro"}, *stmt);
    next();
    return stmt;
  }

  StmtPtr call_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kCallBlock);
    next();
    stmt->text = "caller";
    if (is_op(current(), "(")) signature(*stmt);
    stmt->expr = expression();
    if (stmt->expr->kind != ExprKind::kCall) fault("TemplateSyntaxError", "expected call");
    stmt->body = macro_body({"endcall"}, *stmt);
    next();
    return stmt;
  }

  StmtPtr filter_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kFilterBlock);
    next();
    stmt->expr = filter_chain(nullptr, true);
    stmt->body = block_body({"endfilter"});
    next();
    return stmt;
  }

  StmtPtr with_statement() {
    StmtPtr stmt = new_stmt(StmtKind::kWith);
    next();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->with_targets.empty()) expect_op(",");
      stmt->with_targets.push_back(target(false, {}, false));
      expect_op("=");
      stmt->with_values.push_back(expression());
    }
    stmt->body = block_body({"endwith"});
    next();
    return stmt;
  }

  // ---- targets ----

  void check_assignable(const std::string& name) const {
    if (is_one_of(name, {"true", "false", "none", "True", "False", "None"})) fault("TemplateSyntaxError", "can't assign to '{}'", name);
  }

  ExprPtr target(bool with_namespace, Ends ends, bool with_tuple = true) {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool comma = false;
    while (true) {
      if (current().kind == TokenKind::kName && is_one_of(current().text, ends)) break;
      if (comma && (is_op(current(), "=") || is_op(current(), ")") || current().kind == TokenKind::kBlockEnd)) break;
      parts.push_back(target_part(with_namespace));
      if (!with_tuple || !skip_op(",")) break;
      comma = true;
    }
    if (parts.empty()) fault("TemplateSyntaxError", "expected a name to assign to, got {}", describe(current()));
    if (!comma) return std::move(parts[0]);
    ExprPtr tuple_target = make(ExprKind::kTuple, line);
    tuple_target->children = std::move(parts);
    return tuple_target;
  }

  ExprPtr target_part(bool with_namespace) {
    const Nest nest(*this);
    const int line = current().line;
    if (skip_op("(")) {
      ExprPtr inner = target(with_namespace, {});
      expect_op(")");
      return inner;
    }
    const std::string name = expect_name();
    if (with_namespace && skip_op(".")) {
      ExprPtr expr = make(ExprKind::kNamespace, line);
      expr->id = intern(name);
      expr->name = expect_name();
      return expr;
    }
    check_assignable(name);
    ExprPtr expr = make(ExprKind::kName, line);
    expr->id = intern(name);
    return expr;
  }

  // ---- expressions ----

  // One expression, or a tuple when a comma follows. An empty tuple is an error unless in parentheses.
  ExprPtr tuple(bool with_condition, Ends ends, bool parenthesised = false) {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool comma = false;
    while (true) {
      if (current().kind == TokenKind::kPrintEnd || current().kind == TokenKind::kBlockEnd || is_op(current(), ")")) break;
      if (current().kind == TokenKind::kName && is_one_of(current().text, ends)) break;
      parts.push_back(with_condition ? expression() : or_expression());
      if (!skip_op(",")) break;
      comma = true;
    }
    if (!comma && !parts.empty()) return std::move(parts[0]);
    if (parts.empty() && !parenthesised) fault("TemplateSyntaxError", "Expected an expression, got {}", describe(current()));
    ExprPtr result = make(ExprKind::kTuple, line);
    result->children = std::move(parts);
    return result;
  }

  ExprPtr expression() {
    const Nest nest(*this);
    const int line = current().line;
    ExprPtr value = or_expression();
    for (int links = 0; skip_name("if"); ++links) {
      check_chain(links);
      ExprPtr condition = or_expression();
      ExprPtr otherwise = skip_name("else") ? expression() : nullptr;
      value = make_with(ExprKind::kCond, line, std::move(condition), std::move(value), std::move(otherwise));
    }
    return value;
  }

  ExprPtr or_expression() {
    const int line = current().line;
    ExprPtr left = and_expression();
    for (int links = 0; skip_name("or"); ++links) {
      check_chain(links);
      left = make_with(ExprKind::kOr, line, std::move(left), and_expression());
    }
    return left;
  }

  ExprPtr and_expression() {
    const int line = current().line;
    ExprPtr left = not_expression();
    for (int links = 0; skip_name("and"); ++links) {
      check_chain(links);
      left = make_with(ExprKind::kAnd, line, std::move(left), not_expression());
    }
    return left;
  }

  ExprPtr not_expression() {
    if (!is_name(current(), "not")) return comparison();
    const Nest nest(*this);
    const int line = next().line;
    ExprPtr expr = make_with(ExprKind::kUnary, line, not_expression());
    expr->op = Op::kNot;
    return expr;
  }

  bool comparison_op(Op& op) {
    static const std::unordered_map<std::string, Op> kOps = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                             {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
    if (current().kind == TokenKind::kOperator) {
      const auto it = kOps.find(current().text);
      if (it == kOps.end()) return false;
      op = it->second;
      next();
      return true;
    }
    if (skip_name("in")) {
      op = Op::kIn;
      return true;
    }
    if (is_name(current(), "not") && is_name(look(), "in")) {
      next();
      next();
      op = Op::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr comparison() {
    const int line = current().line;
    ExprPtr left = sum();
    Op op{};
    if (!comparison_op(op)) return left;
    ExprPtr expr = make_with(ExprKind::kCompare, line, std::move(left));
    do {
      expr->ops.push_back(op);
      expr->children.push_back(sum());
    } while (comparison_op(op));
    return expr;
  }

  ExprPtr binary(Op op, int line, ExprPtr left, ExprPtr right) {
    ExprPtr expr = make_with(ExprKind::kBinary, line, std::move(left), std::move(right));
    expr->op = op;
    return expr;
  }

  ExprPtr sum() {
    const int line = current().line;
    ExprPtr left = concatenation();
    for (int links = 0;; ++links) {
      check_chain(links);
      if (skip_op("+")) {
        left = binary(Op::kAdd, line, std::move(left), concatenation());
      } else if (skip_op("-")) {
        left = binary(Op::kSub, line, std::move(left), concatenation());
      } else {
        return left;
      }
    }
  }

  ExprPtr concatenation() {
    const int line = current().line;
    ExprPtr first = product();
    if (!is_op(current(), "~")) return first;
    ExprPtr expr = make_with(ExprKind::kConcat, line, std::move(first));
    while (skip_op("~")) expr->children.push_back(product());
    return expr;
  }

  ExprPtr product() {
    static constexpr std::array<std::pair<std::string_view, Op>, 4> kOps = {
        {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}}};
    const int line = current().line;
    ExprPtr left = power();
    for (int links = 0;; ++links) {
      check_chain(links);
      const auto op = std::find_if(kOps.begin(), kOps.end(), [&](const auto& entry) { return is_op(current(), entry.first); });
      if (op == kOps.end()) return left;
      next();
      left = binary(op->second, line, std::move(left), power());
    }
  }

  // Jinja2's ** groups to the left, unlike Python's.
  ExprPtr power() {
    const int line = current().line;
    ExprPtr left = unary(true);
    for (int links = 0; skip_op("**"); ++links) {
      check_chain(links);
      left = binary(Op::kPow, line, std::move(left), unary(true));
    }
    return left;
  }

  ExprPtr unary(bool with_filters) {
    const Nest nest(*this);
    const int line = current().line;
    ExprPtr expr;
    if (is_op(current(), "-") || is_op(current(), "+")) {
      const Op op = next().text == "-" ? Op::kNeg : Op::kPos;
      expr = make_with(ExprKind::kUnary, line, unary(false));
      expr->op = op;
    } else {
      expr = primary();
    }
    expr = postfix(std::move(expr));
    return with_filters ? filters_and_tests(std::move(expr)) : std::move(expr);
  }

  ExprPtr primary() {
    const Token token = current();
    if (token.kind == TokenKind::kName) {
      next();
      if (token.text == "true" || token.text == "True") return make_const(Value::boolean(true), token.line);
      if (token.text == "false" || token.text == "False") return make_const(Value::boolean(false), token.line);
      if (token.text == "none" || token.text == "None") return make_const(Value::none(), token.line);
      ExprPtr expr = make(ExprKind::kName, token.line);
      expr->id = intern(token.text);
      expr->name = token.text;
      saw_loop_ = saw_loop_ || expr->id == kIdLoop;
      saw_caller_ = saw_caller_ || expr->id == kIdCaller;
      saw_varargs_ = saw_varargs_ || expr->id == kIdVarargs;
      saw_kwargs_ = saw_kwargs_ || expr->id == kIdKwargs;
      return expr;
    }
    if (token.kind == TokenKind::kString) {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;  // adjacent literals join
      return make_const(constant_string(std::move(text)), token.line);
    }
    if (token.kind == TokenKind::kInteger) {
      next();
      return make_const(Value::integer(token.integer), token.line);
    }
    if (token.kind == TokenKind::kFloat) {
      next();
      return make_const(Value::real(token.real), token.line);
    }
    if (skip_op("(")) {
      ExprPtr expr = tuple(true, {}, true);
      expect_op(")");
      return expr;
    }
    if (skip_op("[")) {
      ExprPtr expr = make(ExprKind::kList, token.line);
      while (!is_op(current(), "]")) {
        if (!expr->children.empty()) expect_op(",");
        if (is_op(current(), "]")) break;
        expr->children.push_back(expression());
      }
      expect_op("]");
      return expr;
    }
    if (skip_op("{")) {
      ExprPtr expr = make(ExprKind::kDict, token.line);
      while (!is_op(current(), "}")) {
        if (!expr->children.empty()) expect_op(",");
        if (is_op(current(), "}")) break;
        expr->children.push_back(expression());
        expect_op(":");
        expr->children.push_back(expression());
      }
      expect_op("}");
      return expr;
    }
    fault("TemplateSyntaxError", "unexpected {}", describe(token));
  }

  ExprPtr postfix(ExprPtr expr) {
    for (int links = 0;; ++links) {
      check_chain(links);
      const int line = current().line;
      if (skip_op(".")) {
        if (current().kind == TokenKind::kInteger) {
          const Int index = next().integer;
          expr = make_with(ExprKind::kItem, line, std::move(expr), make_const(Value::integer(index), line));
        } else {
          std::string name = expect_name();
          expr = make_with(ExprKind::kAttr, line, std::move(expr));
          expr->constant = constant_string(name);
          expr->name = std::move(name);
        }
      } else if (skip_op("[")) {
        expr = subscript(std::move(expr), line);
      } else if (is_op(current(), "(")) {
        ExprPtr call = make_with(ExprKind::kCall, line, std::move(expr));
        call->args = call_args();
        expr = std::move(call);
      } else {
        return expr;
      }
    }
  }

  ExprPtr subscript(ExprPtr object, int line) {
    ExprPtr parts[3];
    int colons = 0;
    while (!is_op(current(), "]")) {
      if (skip_op(":")) {
        if (++colons > 2) fault("TemplateSyntaxError", "unexpected ':' in a slice");
      } else if (is_op(current(), ",")) {
        fault("TemplateSyntaxError", "unsupported: several subscripts in one [ ]");
      } else if (parts[colons] == nullptr) {
        parts[colons] = expression();
      } else {
        fault("TemplateSyntaxError", "expected token ']', got {}", describe(current()));
      }
    }
    expect_op("]");
    if (colons == 0) {
      if (parts[0] == nullptr) fault("TemplateSyntaxError", "expected subscript expression");
      return make_with(ExprKind::kItem, line, std::move(object), std::move(parts[0]));
    }
    return make_with(ExprKind::kSlice, line, std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }

  CallArgs call_args() {
    CallArgs args;
    expect_op("(");
    bool comma = true;
    while (!is_op(current(), ")")) {
      if (!comma) {
        expect_op(",");
        if (is_op(current(), ")")) break;
      }
      comma = false;
      bool valid = true;
      if (skip_op("*")) {
        valid = args.star == nullptr && args.double_star == nullptr;
        args.star = expression();
      } else if (skip_op("**")) {
        valid = args.double_star == nullptr;
        args.double_star = expression();
      } else if (current().kind == TokenKind::kName && is_op(look(), "=")) {
        valid = args.double_star == nullptr;
        std::string name = next().text;
        next();
        args.named.push_back({std::move(name), expression()});
      } else {
        valid = args.star == nullptr && args.double_star == nullptr && args.named.empty();
        args.positional.push_back(expression());
      }
      if (!valid) fault("TemplateSyntaxError", "invalid syntax for function call expression");
    }
    expect_op(")");
    return args;
  }

  ExprPtr filters_and_tests(ExprPtr expr) {
    for (int links = 0;; ++links) {
      check_chain(links);
      if (is_op(current(), "|")) {
        expr = filter_chain(std::move(expr));
      } else if (is_name(current(), "is")) {
        expr = test(std::move(expr));
      } else if (is_op(current(), "(")) {
        // Calls after a filter: x|f(a)(b).
        ExprPtr call = make_with(ExprKind::kCall, current().line, std::move(expr));
        call->args = call_args();
        expr = std::move(call);
      } else {
        return expr;
      }
    }
  }

  // `|name(args)` again and again; `inline_start` for {% filter name %}, whose first filter has no bar.
  ExprPtr filter_chain(ExprPtr expr, bool inline_start = false) {
    for (int links = 0; inline_start || skip_op("|"); ++links) {
      check_chain(links);
      inline_start = false;
      const int line = current().line;
      std::string name = expect_name();
      if (!has_filter(name)) fault("TemplateAssertionError", "No filter named '{}'.", name);
      ExprPtr filter = make_with(ExprKind::kFilter, line, std::move(expr));
      filter->name = std::move(name);
      if (is_op(current(), "(")) filter->args = call_args();
      expr = std::move(filter);
    }
    return expr;
  }

  ExprPtr test(ExprPtr expr) {
    const Nest nest(*this);
    const int line = next().line;
    const bool negated = skip_name("not");
    std::string name = expect_name();
    if (!has_test(name)) fault("TemplateAssertionError", "No test named '{}'.", name);
    ExprPtr result = make_with(ExprKind::kTest, line, std::move(expr));
    result->name = std::move(name);
    const Token& token = current();
    if (is_op(token, "(")) {
      result->args = call_args();
    } else if (token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
               is_op(token, "[") || is_op(token, "{") ||
               (token.kind == TokenKind::kName && !is_one_of(token.text, {"else", "or", "and"}))) {
      if (is_name(token, "is")) fault("TemplateSyntaxError", "You cannot chain multiple tests with is");
      result->args.positional.push_back(postfix(primary()));
    }
    if (!negated) return result;
    ExprPtr negation = make_with(ExprKind::kUnary, line, std::move(result));
    negation->op = Op::kNot;
    return negation;
  }

  int& line_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  bool saw_loop_ = false;
  bool saw_caller_ = false;
  bool saw_varargs_ = false;
  bool saw_kwargs_ = false;
  std::unordered_map<std::string, int> ids_;
  Ast ast_;
};

}  // namespace

Ast parse_template(std::string_view source, int& error_line) {
  Parser parser(source, error_line);
  error_line = 1;
  return parser.run();
}

}  // namespace ingot::text::jinja
