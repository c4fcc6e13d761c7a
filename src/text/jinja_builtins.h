// Filters, tests, methods, operators and functions of the template language, as tables and plain functions over Value.
// Called by the parser (does a name exist?) and the interpreter. They see the interpreter only through `Host`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace ingot::text::jinja {

struct CallValues {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What builtins need of the interpreter: values by name, and calls by name of filters and tests (map, select, ...).
class Host {
 public:
  Host(Heap& values, std::optional<int64_t> now_unix_seconds) : heap(values), now(now_unix_seconds) {}
  virtual ~Host() = default;
  Budget& budget() { return heap.budget(); }
  // Keeps mutable objects (namespaces, loops, macros) until the render ends, so that reference cycles can be cut.
  virtual void keep(std::shared_ptr<Object> object) = 0;
  Heap& heap;
  std::optional<int64_t> now;  // the time strftime_now prints
};

// Arguments bound to the parameter names of a builtin; TypeError for unknown, doubled or surplus ones.
class Params {
 public:
  Params(std::string_view function, CallValues& args, std::initializer_list<const char*> names);
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& at(size_t i) const;  // TypeError when missing
  const Value& get(size_t i, const Value& otherwise) const { return has(i) ? *values_[i] : otherwise; }
  Int integer(size_t i, Int otherwise) const;
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }
  const std::string& text(size_t i) const;  // TypeError unless a string
  std::string text(size_t i, std::string_view otherwise) const { return has(i) ? text(i) : std::string(otherwise); }

 private:
  std::string function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

bool has_filter(std::string_view name);
bool has_test(std::string_view name);
Value apply_filter(Host& host, std::string_view name, const Value& value, CallValues args);
bool apply_test(Host& host, std::string_view name, const Value& value, CallValues args);

// value.name and value[key] as Jinja2's sandbox resolves them: method first for the dot, element first for the brackets.
Value get_attribute(Host& host, const Value& value, const std::string& name);
Value get_item(Host& host, const Value& value, const Value& key);
Value get_slice(Host& host, const Value& value, const Value& start, const Value& stop, const Value& step);
Value call_method(Host& host, const Method& method, CallValues args);
bool has_method(const Value& value, std::string_view name);
// Methods Python has but an immutable sandbox refuses (list.append ...).
bool is_unsafe_method(const Value& value, std::string_view name);
Value call_function(Host& host, Builtin which, CallValues args);

Value binary_op(Host& host, Op op, const Value& a, const Value& b);
Value unary_op(Host& host, Op op, const Value& value);
bool compare_op(Host& host, Op op, const Value& a, const Value& b);
bool contains(Host& host, const Value& container, const Value& item);

// "%s is %d" % args, and "{} {name:>5}".format(args).
std::string percent_format(Host& host, const std::string& format, const Value& args);
std::string brace_format(Host& host, const std::string& format, const CallValues& args);

// "a.b.0" of map(attribute=), sort, groupby...
Value get_path(Host& host, const Value& value, const Value& path);
// Python int() and float() of a value; nullopt when it can't be one.
std::optional<Value> to_integer(const Value& value, int base);
std::optional<Value> to_real(const Value& value);

}  // namespace ingot::text::jinja
