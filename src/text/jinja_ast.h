// The parsed template: plain data, immutable after parsing, shared by all renders. Written by jinja_parser, read by the interpreter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace ingot::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class ExprKind : uint8_t {
  kConst,    // constant
  kName,     // id
  kList,     // children
  kTuple,    // children; as a target, too
  kDict,     // children: key, value, key, value, ...
  kAttr,     // children[0] . name
  kItem,     // children[0] [ children[1] ]
  kSlice,    // children[0] [ start : stop : step ], absent ones null
  kCall,     // children[0] ( args )
  kFilter,   // children[0] | name ( args ); children[0] null in filter blocks
  kTest,     // children[0] is name ( args )
  kBinary,   // op
  kUnary,    // op: not - +
  kConcat,   // children joined by ~
  kCompare,  // children[0] ops[0] children[1] ops[1] ...
  kAnd,
  kOr,
  kCond,       // children: condition, then, else (may be null)
  kNamespace,  // target only: id . name
};

enum class Op : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kNot, kNeg, kPos, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct NamedExpr {
  std::string name;
  ExprPtr value;
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<NamedExpr> named;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  ExprKind kind;
  Op op = Op::kAdd;
  int line = 0;
  int id = -1;  // interned name
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<Op> ops;
  CallArgs args;
};

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // expr
  kIf,           // expr, body, else_body (an elif is an if in else_body)
  kFor,          // target in expr if test: body, else_body
  kSet,          // target = expr
  kSetBlock,     // target = body, through the filter chain in expr (may be null)
  kMacro,        // id, params, body
  kCallBlock,    // expr is a call; params, body
  kFilterBlock,  // expr is the filter chain, body
  kWith,         // targets/values in params-like pairs: with_targets, with_values, body
  kScope,        // body in its own scope (generation)
  kBreak,
  kContinue,
};

struct Param {
  std::string name;
  int id;
  ExprPtr default_value;  // may be null
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  int id = -1;
  bool recursive = false;
  bool uses_loop = false;  // the body names `loop`
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  std::string text;  // template data, or the macro's name
  ExprPtr target;
  ExprPtr expr;
  ExprPtr test;
  Body body;
  Body else_body;
  std::vector<Param> params;
  std::vector<ExprPtr> with_targets;
  std::vector<ExprPtr> with_values;
};

// Names the engine itself looks up: interned first, in this order.
enum WellKnown : int { kIdLoop, kIdCaller, kIdVarargs, kIdKwargs, kNumWellKnown };

struct Ast {
  Body body;
  std::vector<std::string> names;  // by id
};

}  // namespace ingot::text::jinja
