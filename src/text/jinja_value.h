// Values of the template engine: Python's data model as far as chat templates can see it, with every byte and step accounted.
// Owned by text/; only the jinja_* files and chat_template.cc use it. Never shared between renders, except constants of a parsed program.
// Errors inside the engine travel as `TemplateFault` and are caught in chat_template.cc: no exception leaves it.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace ingot::text::jinja {

// An error of the template or of its data, under the name Jinja2 or Python gives it ("TypeError", "UndefinedError", ...).
struct TemplateFault {
  std::string kind;
  std::string text;
};

template <class... Args>
[[noreturn]] void fault(const char* kind, fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateFault{kind, fmt::format(format, std::forward<Args>(args)...)};
}

// What a render may use. Every value knows its budget and gives its bytes back when it dies, so `live_bytes` is exact for payloads.
class Budget {
 public:
  Budget(int64_t max_steps, int64_t max_live_bytes) : steps_left_(max_steps), max_live_bytes_(max_live_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // One step an evaluated node; string and list work costs its size too (touch), so that a step is bounded time.
  void step(int64_t count = 1) {
    steps_left_ -= count;
    if (steps_left_ < 0) fault("LimitError", "template uses more evaluation steps than allowed");
  }
  void touch(size_t bytes) { step(1 + static_cast<int64_t>(bytes >> 8)); }
  // Refuses before the memory is asked for.
  void charge(size_t bytes) {
    if (static_cast<uint64_t>(bytes) > static_cast<uint64_t>(max_live_bytes_ - live_bytes_)) {
      fault("LimitError", "template uses more memory than allowed ({} bytes)", max_live_bytes_);
    }
    live_bytes_ += static_cast<int64_t>(bytes);
  }
  void check_room(size_t bytes) {
    charge(bytes);
    release(bytes);
  }
  void release(size_t bytes) { live_bytes_ -= static_cast<int64_t>(bytes); }

 private:
  int64_t steps_left_;
  int64_t max_live_bytes_;
  int64_t live_bytes_ = 0;
};

// A charge that is given back at the end of its owner's life. A null budget (constants of a program) charges nothing.
class Charge {
 public:
  Charge(Budget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {
    if (budget_ != nullptr) budget_->charge(bytes_);
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void grow(size_t bytes) {
    if (budget_ != nullptr) budget_->charge(bytes);
    bytes_ += bytes;
  }

 private:
  Budget* budget_;
  size_t bytes_;
};

// Python's int within 127 bits; anything larger is a LimitError.
using Int = __int128;
std::string int_text(Int value);

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kIterator,  // generators, dict views, ranges: see Iterator
  kNamespace,
  kMacro,
  kMethod,    // "text".strip, not yet called
  kFunction,  // range, dict, namespace, raise_exception, strftime_now
  kLoop,
};

struct Object {
  Object(Budget* budget, size_t bytes) : charge(budget, bytes + 112) {}
  virtual ~Object() = default;
  // Drops references to other values: called on mutable objects when the render ends, since they can form cycles.
  virtual void clear() {}
  Charge charge;
};

struct Undefined : Object {
  Undefined(Budget* budget, std::string kind_name, std::string text)
      : Object(budget, text.size()), fault_kind(std::move(kind_name)), message(std::move(text)) {}
  std::string fault_kind;  // UndefinedError or SecurityError
  std::string message;
};

struct String : Object {
  String(Budget* budget, std::string value, bool is_markup);
  std::string text;  // UTF-8
  int64_t num_chars;
  bool markup;  // result of |safe or |escape: `+` escapes the other side
  bool ascii() const { return static_cast<size_t>(num_chars) == text.size(); }
};

class Value;
using Values = std::vector<Value>;
using Pairs = std::vector<std::pair<Value, Value>>;

struct List;
struct Dict;
struct Iterator;

class Value {
 public:
  Value() = default;  // an undefined without a name
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value) { return Value(Kind::kBool, value ? 1 : 0); }
  static Value integer(Int value) { return Value(Kind::kInt, value); }
  static Value real(double value) {
    Value v(Kind::kFloat);
    v.real_ = value;
    return v;
  }
  static Value object(Kind kind, std::shared_ptr<Object> object) {
    Value v(kind);
    v.object_ = std::move(object);
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  // bool counts as a number, as in Python.
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_list_or_tuple() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  Int as_int() const { return int_; }
  double as_real() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(int_); }
  const std::string& text() const { return string().text; }
  const String& string() const { return get<String>(); }
  const Values& items() const;  // list or tuple
  const Dict& dict() const;
  template <class T>
  T& get() const {
    return *static_cast<T*>(object_.get());
  }
  const std::shared_ptr<Object>& object() const { return object_; }

 private:
  explicit Value(Kind kind, Int value = 0) : kind_(kind), int_(value) {}

  Kind kind_ = Kind::kUndefined;
  std::shared_ptr<Object> object_;
  union {
    Int int_ = 0;
    double real_;
  };
};

// Levels of containers below and including `value`; 0 for scalars. Containers never change after they are made, so it is exact.
int nesting(const Value& value);
// The deepest container a render may make or receive: keeps repr, equality, tojson and destruction within the stack.
inline constexpr int kMaxNesting = 200;

// A list or a tuple.
struct List : Object {
  List(Budget* budget, Values values);
  Values values;
  int depth;
};

struct Dict : Object {
  Dict(Budget* budget, Pairs pairs);  // later duplicates of a key win, in the place of the first (Python)
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  Pairs entries;
  int depth;

 private:
  std::unordered_multimap<size_t, size_t> index_;  // hash -> entry, only of dicts larger than kLinear
};

// Something to go through: a generator (once), or a view or range (again and again).
struct Iterator : Object {
  Iterator(Budget* budget, std::string type, Values items_in, bool consumable);
  std::string type_name;  // "generator", "dict_items", "range", ...
  std::string repr;       // of a range; else empty
  Values values;
  int depth;
  bool once;
  bool used = false;
};

struct Namespace : Object {
  using Object::Object;
  void clear() override { attributes.clear(); }
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Method : Object {
  Method(Budget* budget, Value self_in, std::string name_in)
      : Object(budget, name_in.size()), self(std::move(self_in)), name(std::move(name_in)) {}
  Value self;
  std::string name;
};

enum class Builtin : uint8_t { kRange, kDict, kNamespace, kRaiseException, kStrftimeNow };
struct Function : Object {
  Function(Budget* budget, Builtin which_in) : Object(budget, 0), which(which_in) {}
  Builtin which;
};

struct Loop : Object {
  Loop(Budget* budget, std::shared_ptr<const Values> items_in, int depth_in)
      : Object(budget, 0), items(std::move(items_in)), depth0(depth_in) {}
  void clear() override {
    items.reset();
    changed.clear();
  }
  std::shared_ptr<const Values> items;
  int depth0;
  size_t index0 = 0;
  Values changed;  // arguments of the last loop.changed()
  bool has_changed = false;
};

// Makes values on a budget.
class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(budget) {}
  Budget& budget() { return budget_; }
  Value string(std::string text, bool markup = false) {
    return Value::object(Kind::kString, std::make_shared<String>(&budget_, std::move(text), markup));
  }
  // `text` with the markup flag of `like`.
  Value string_like(const Value& like, std::string text) { return string(std::move(text), like.is_string() && like.string().markup); }
  Value list(Values values) { return Value::object(Kind::kList, std::make_shared<List>(&budget_, std::move(values))); }
  Value tuple(Values values) { return Value::object(Kind::kTuple, std::make_shared<List>(&budget_, std::move(values))); }
  Value dict(Pairs pairs) { return Value::object(Kind::kDict, std::make_shared<Dict>(&budget_, std::move(pairs))); }
  Value iterator(std::string type, Values values, bool once) {
    return Value::object(Kind::kIterator, std::make_shared<Iterator>(&budget_, std::move(type), std::move(values), once));
  }
  Value generator(Values values) { return iterator("generator", std::move(values), true); }
  Value undefined(std::string message, const char* fault_kind = "UndefinedError") {
    return Value::object(Kind::kUndefined, std::make_shared<Undefined>(&budget_, fault_kind, std::move(message)));
  }

 private:
  Budget& budget_;
};

// Python's names and notions.
std::string type_name(const Value& value);         // "str", "NoneType", "jinja2.utils.Namespace" is "Namespace"
std::string object_type_repr(const Value& value);  // "dict object", "None": as Jinja2's messages for undefined attributes
[[noreturn]] void fail_undefined(const Value& value);
bool truth(const Value& value);
bool equal(Budget& budget, const Value& a, const Value& b);
size_t hash_value(const Value& value);  // TypeError when unhashable
// -1, 0, 1; TypeError naming `op` when the types have no order.
int compare(Budget& budget, const Value& a, const Value& b, std::string_view op);
// str() and repr(); both append. An undefined prints as nothing.
void append_str(Budget& budget, const Value& value, std::string& out);
void append_repr(Budget& budget, const Value& value, std::string& out);
std::string str(Budget& budget, const Value& value);
std::string repr(Budget& budget, const Value& value);
// len(): -1 when there is none.
int64_t length(const Value& value);
bool is_iterable(const Value& value);
// The elements in iteration order; TypeError when not iterable. Uses up a generator.
Values iterate(Heap& heap, const Value& value);

// Context in, JSON text out.
Value from_json(Heap& heap, const Json& json, int depth = 0);
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string indent;  // one level
  bool pretty = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void append_json(Budget& budget, const Value& value, const JsonStyle& style, std::string& out, int level = 0);

}  // namespace ingot::text::jinja
