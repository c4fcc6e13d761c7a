// What the tau2 domains have in common: a world is databases and the tools over them, of the agent and, in telecom, of the user. A domain
// (retail.h, airline.h, telecom.h) is a table of tools; tau2.h lets an agent and a user talk over a copy of its world.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace ingot::eval {

enum class Tau2Side { kAgent, kUser };

class Tau2World {
 public:
  virtual ~Tau2World() = default;
  virtual std::unique_ptr<Tau2World> copy() const = 0;

  // What a call gives: text or JSON for the one who called; an error is "Error: ..." and has changed nothing.
  virtual std::string call(Tau2Side side, const std::string& tool, const Json& arguments) = 0;
  // SHA-256 of the side's database; empty where it has none.
  virtual std::string hash(Tau2Side side) const = 0;

  // What a task does before the first word: {env_type, func_name, arguments}. Errors: a function that the world has not, or that failed.
  virtual Result<> set_up(const Json& action);
  // Whether {env_type, func_name, arguments, assert_value} is so. Errors: as set_up.
  virtual Result<bool> holds(const Json& assertion);
};

// A tool of the world W, or a function that tasks call. `parameters` are names, separated by spaces; those with "?" may be left out.
template <class W>
struct Tau2Tool {
  std::string_view name;
  std::string_view parameters;
  Result<Json> (W::*run)(const Json& arguments);
};

// Errors: arguments that are no object, one that is missing or not among `parameters`.
Result<> check_arguments(std::string_view parameters, const Json& arguments);

// Errors: a tool that is not in the table, wrong arguments, and the tool's own.
template <class W, size_t N>
Result<Json> run_tool(W& world, const Tau2Tool<W> (&tools)[N], std::string_view name, const Json& arguments) {
  const auto* tool = std::find_if(tools, tools + N, [&](const Tau2Tool<W>& t) { return t.name == name; });
  if (tool == tools + N) return fail("Tool '{}' not found.", name);
  INGOT_TRY(check_arguments(tool->parameters, arguments));
  return (world.*tool->run)(arguments);
}

// What the caller sees of it.
std::string tool_text(const Result<Json>& result);

// Arguments of a type. Errors name the argument.
Result<std::string> text_argument(const Json& arguments, const char* name);
Result<Json> text_list_argument(const Json& arguments, const char* name);
Result<bool> bool_argument(const Json& arguments, const char* name);
Result<Json> number_argument(const Json& arguments, const char* name);      // an integer stays one: what is stored and printed differs
Result<int64_t> integer_argument(const Json& arguments, const char* name);  // 2.0 is one, too

// The value of an expression of numbers, + - * / ( ) as the `calculate` tools print it. Errors: other characters, syntax, division by 0.
Result<std::string> tau2_calculate(std::string_view expression);

}  // namespace ingot::eval
