#include "eval/tau2_world.h"

#include <cmath>
#include <cstdlib>

#include "eval/python_json.h"
#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

// Calls visit(name, may_be_left_out) for each parameter until it gives false.
template <class Visit>
bool each_parameter(std::string_view parameters, const Visit& visit) {
  while (!parameters.empty()) {
    const size_t end = std::min(parameters.find(' '), parameters.size());
    std::string_view name = parameters.substr(0, end);
    parameters.remove_prefix(std::min(end + 1, parameters.size()));
    const bool is_optional = name.ends_with('?');
    if (is_optional) name.remove_suffix(1);
    if (!visit(name, is_optional)) return false;
  }
  return true;
}

// + - * / and parentheses by recursive descent.
class Calculator {
 public:
  explicit Calculator(std::string_view text) : text_(text) {}
  Result<double> value() {
    INGOT_ASSIGN(const double result, sum());
    if (peek() != 0) return fail("invalid syntax");
    return result;
  }

 private:
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  Result<double> sum() {
    INGOT_ASSIGN(double left, product());
    for (char c = peek(); c == '+' || c == '-'; c = peek()) {
      ++at_;
      INGOT_ASSIGN(const double right, product());
      left = c == '+' ? left + right : left - right;
    }
    return left;
  }
  Result<double> product() {
    INGOT_ASSIGN(double left, factor());
    for (char c = peek(); c == '*' || c == '/'; c = peek()) {
      ++at_;
      INGOT_ASSIGN(const double right, factor());
      if (c == '/' && right == 0) return fail("division by zero");
      left = c == '*' ? left * right : left / right;
    }
    return left;
  }
  Result<double> factor() {
    if (++depth_ > 100) return fail("too many nested parentheses");
    Result<double> result = fail("invalid syntax");
    if (take('-')) {
      result = factor();
      if (result) result = -*result;
    } else if (take('+')) {
      result = factor();
    } else if (take('(')) {
      result = sum();
      if (result && !take(')')) result = fail("'(' was never closed");
    } else {
      peek();
      size_t end = at_;
      while (end < text_.size() && (text_[end] == '.' || (text_[end] >= '0' && text_[end] <= '9'))) ++end;
      const std::string number(text_.substr(at_, end - at_));
      char* stopped = nullptr;
      const double parsed = std::strtod(number.c_str(), &stopped);
      if (!number.empty() && number != "." && *stopped == '\0') result = parsed;
      at_ = end;
    }
    --depth_;
    return result;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<> Tau2World::set_up(const Json& action) { return fail("this domain has no function that a task calls: {}", action.dump()); }
Result<bool> Tau2World::holds(const Json& assertion) { return fail("this domain has no assertions: {}", assertion.dump()); }

Result<> check_arguments(std::string_view parameters, const Json& arguments) {
  if (!arguments.is_object()) return fail("the arguments are no JSON object");
  std::string missing;
  each_parameter(parameters, [&](std::string_view name, bool is_optional) {
    if (!is_optional && !arguments.contains(name)) missing = name;
    return missing.empty();
  });
  if (!missing.empty()) return fail("missing argument '{}'", missing);
  for (const auto& [given, value] : arguments.items())
    if (each_parameter(parameters, [&, &given = given](std::string_view name, bool) { return name != given; }))
      return fail("unexpected argument '{}'", given);
  return {};
}

std::string tool_text(const Result<Json>& result) {
  if (!result) return "Error: " + result.error().message;
  return result->is_string() ? result->get<std::string>() : result->dump();
}

Result<std::string> text_argument(const Json& arguments, const char* name) {
  if (!arguments.contains(name)) return fail("missing argument '{}'", name);
  if (!arguments[name].is_string()) return fail("argument '{}' is not a string", name);
  return arguments[name].get<std::string>();
}

Result<Json> text_list_argument(const Json& arguments, const char* name) {
  if (!arguments.contains(name)) return fail("missing argument '{}'", name);
  const Json& list = arguments[name];
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), [](const Json& id) { return id.is_string(); }))
    return fail("argument '{}' is not a list of strings", name);
  return list;
}

Result<bool> bool_argument(const Json& arguments, const char* name) {
  if (!arguments.contains(name)) return fail("missing argument '{}'", name);
  if (!arguments[name].is_boolean()) return fail("argument '{}' is neither true nor false", name);
  return arguments[name].get<bool>();
}

Result<Json> number_argument(const Json& arguments, const char* name) {
  if (!arguments.contains(name)) return fail("missing argument '{}'", name);
  if (!arguments[name].is_number()) return fail("argument '{}' is not a number", name);
  return arguments[name];
}

Result<int64_t> integer_argument(const Json& arguments, const char* name) {
  INGOT_ASSIGN(const Json number, number_argument(arguments, name));
  const double value = number.get<double>();
  if (value != std::trunc(value) || std::abs(value) > 1e15) return fail("argument '{}' is not an integer", name);
  return static_cast<int64_t>(value);
}

Result<std::string> tau2_calculate(std::string_view expression) {
  if (expression.find_first_not_of("0123456789+-*/(). ") != std::string_view::npos) return fail("Invalid characters in expression");
  INGOT_ASSIGN(const double value, Calculator(expression).value());
  return text::jinja::float_repr(python_round2(value));
}

}  // namespace ingot::eval
