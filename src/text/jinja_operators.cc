// Operators, element access and the global functions of the template language.
#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // Jinja2's sandbox

[[noreturn]] void too_large() { fault("LimitError", "unsupported: an integer of more than 127 bits"); }

[[noreturn]] void bad_operands(std::string_view op, const Value& a, const Value& b) {
  fault("TypeError", "unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

std::string_view op_text(Op op) {
  switch (op) {
    case Op::kAdd: return "+";
    case Op::kSub: return "-";
    case Op::kMul: return "*";
    case Op::kDiv: return "/";
    case Op::kFloorDiv: return "//";
    case Op::kMod: return "%";
    case Op::kPow: return "** or pow()";
    case Op::kLt: return "<";
    case Op::kLe: return "<=";
    case Op::kGt: return ">";
    case Op::kGe: return ">=";
    default: return "?";
  }
}

Int floor_div(Int a, Int b) {
  if (b == 0) fault("ZeroDivisionError", "integer division or modulo by zero");
  if (b == -1) {
    Int negated = 0;
    if (__builtin_sub_overflow(static_cast<Int>(0), a, &negated)) too_large();
    return negated;
  }
  Int quotient = a / b;
  if (a % b != 0 && (a % b < 0) != (b < 0)) --quotient;
  return quotient;
}

Int floor_mod(Int a, Int b) {
  if (b == 0) fault("ZeroDivisionError", "integer modulo by zero");
  if (b == -1) return 0;
  const Int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double real_mod(double a, double b) {
  if (b == 0) fault("ZeroDivisionError", "float modulo");
  const double rest = std::fmod(a, b);
  if (rest != 0) return (rest < 0) != (b < 0) ? rest + b : rest;
  return std::copysign(0.0, b);
}

double real_floor_div(double a, double b) {
  if (b == 0) fault("ZeroDivisionError", "float floor division by zero");
  const double quotient = (a - real_mod(a, b)) / b;
  return std::floor(quotient + 0.5 * (quotient - std::floor(quotient) > 0.5 ? 1 : 0));
}

Value power(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    Int base = a.as_int();
    Int exponent = b.as_int();
    Int result = 1;
    if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
    if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
    if (exponent > 126) too_large();
    for (; exponent > 0; --exponent) {
      if (__builtin_mul_overflow(result, base, &result)) too_large();
    }
    return Value::integer(result);
  }
  if (a.as_real() == 0 && b.as_real() < 0) fault("ZeroDivisionError", "0.0 cannot be raised to a negative power");
  if (a.as_real() < 0 && b.as_real() != std::floor(b.as_real())) fault("TypeError", "unsupported: complex number as result of **");
  const double result = std::pow(a.as_real(), b.as_real());
  if (std::isinf(result) && std::isfinite(a.as_real()) && std::isfinite(b.as_real()))
    fault("OverflowError", "(34, 'Numerical result out of range')");
  return Value::real(result);
}

Value number_op(Op op, const Value& a, const Value& b) {
  if (op == Op::kPow) return power(a, b);
  if (op == Op::kDiv) {
    if (b.as_real() == 0) fault("ZeroDivisionError", "division by zero");
    return Value::real(a.as_real() / b.as_real());
  }
  if (a.is_integral() && b.is_integral()) {
    Int result = 0;
    bool overflow = false;
    switch (op) {
      case Op::kAdd: overflow = __builtin_add_overflow(a.as_int(), b.as_int(), &result); break;
      case Op::kSub: overflow = __builtin_sub_overflow(a.as_int(), b.as_int(), &result); break;
      case Op::kMul: overflow = __builtin_mul_overflow(a.as_int(), b.as_int(), &result); break;
      case Op::kFloorDiv: result = floor_div(a.as_int(), b.as_int()); break;
      default: result = floor_mod(a.as_int(), b.as_int()); break;
    }
    if (overflow) too_large();
    return Value::integer(result);
  }
  const double x = a.as_real();
  const double y = b.as_real();
  switch (op) {
    case Op::kAdd: return Value::real(x + y);
    case Op::kSub: return Value::real(x - y);
    case Op::kMul: return Value::real(x * y);
    case Op::kFloorDiv: return Value::real(real_floor_div(x, y));
    default: return Value::real(real_mod(x, y));
  }
}

Value repeat(Host& host, const Value& value, Int count) {
  if (count < 0) count = 0;
  const bool text = value.is_string();
  const auto unit = static_cast<Int>(text ? value.text().size() : value.items().size());
  const Int total = unit * std::min(count, static_cast<Int>(1) << 62);
  if (total >= static_cast<Int>(1) << 40)
    fault("LimitError", "template uses more memory than allowed (a repetition of {} elements)", int_text(total));
  host.budget().check_room(static_cast<size_t>(total) * (text ? 1 : sizeof(Value)));
  host.budget().step(1 + static_cast<int64_t>(text ? total >> 8 : total));
  if (unit == 0) count = 0;
  if (text) {
    std::string out;
    out.reserve(static_cast<size_t>(total));
    for (Int i = 0; i < count; ++i) out += value.text();
    return host.heap.string_like(value, std::move(out));
  }
  Values out;
  out.reserve(static_cast<size_t>(total));
  for (Int i = 0; i < count; ++i) out.insert(out.end(), value.items().begin(), value.items().end());
  return value.is(Kind::kList) ? host.heap.list(std::move(out)) : host.heap.tuple(std::move(out));
}

Value add(Host& host, const Value& a, const Value& b) {
  if (a.is_string()) {
    if (!b.is_string()) fault("TypeError", "can only concatenate str (not \"{}\") to str", type_name(b));
    host.budget().touch(a.text().size() + b.text().size());
    host.budget().check_room(a.text().size() + b.text().size());
    const bool left = a.string().markup;
    const bool right = b.string().markup;
    if (left == right) return host.heap.string(a.text() + b.text(), left);
    // markupsafe escapes the side that is not marked safe.
    host.budget().check_room(5 * (a.text().size() + b.text().size()));
    return host.heap.string(left ? a.text() + html_escape(b.text()) : html_escape(a.text()) + b.text(), true);
  }
  if (a.is_list_or_tuple()) {
    if (b.kind() != a.kind()) fault("TypeError", "can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b));
    host.budget().step(static_cast<int64_t>(a.items().size() + b.items().size()));
    host.budget().check_room((a.items().size() + b.items().size()) * sizeof(Value));
    Values out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? host.heap.list(std::move(out)) : host.heap.tuple(std::move(out));
  }
  bad_operands("+", a, b);
}

}  // namespace

Value binary_op(Host& host, Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (a.is_number() && b.is_number()) return number_op(op, a, b);
  if (op == Op::kMod && a.is_string()) return host.heap.string_like(a, percent_format(host, a.text(), b));
  if (b.is_undefined()) fail_undefined(b);
  if (op == Op::kAdd) return add(host, a, b);
  if (op == Op::kMul) {
    if ((a.is_string() || a.is_list_or_tuple()) && b.is_integral()) return repeat(host, a, b.as_int());
    if ((b.is_string() || b.is_list_or_tuple()) && a.is_integral()) return repeat(host, b, a.as_int());
    if (a.is_string() || a.is_list_or_tuple()) fault("TypeError", "can't multiply sequence by non-int of type '{}'", type_name(b));
  }
  bad_operands(op_text(op), a, b);
}

Value unary_op(Host&, Op op, const Value& value) {
  if (op == Op::kNot) return Value::boolean(!truth(value));
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) fault("TypeError", "bad operand type for unary {}: '{}'", op == Op::kNeg ? "-" : "+", type_name(value));
  if (value.is(Kind::kFloat)) return Value::real(op == Op::kNeg ? -value.as_real() : value.as_real());
  if (op == Op::kPos) return Value::integer(value.as_int());
  Int result = 0;
  if (__builtin_sub_overflow(static_cast<Int>(0), value.as_int(), &result)) too_large();
  return Value::integer(result);
}

bool contains(Host& host, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) fault("TypeError", "'in <string>' requires string as left operand, not {}", type_name(item));
      host.budget().touch(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Kind::kDict: return container.dict().find(item) != nullptr;
    case Kind::kUndefined: return false;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kIterator: {
      const Values copy = container.is(Kind::kIterator) ? iterate(host.heap, container) : Values{};
      const Values& values = container.is(Kind::kIterator) ? copy : container.items();
      return std::any_of(values.begin(), values.end(), [&](const Value& value) { return equal(host.budget(), value, item); });
    }
    default: fault("TypeError", "argument of type '{}' is not iterable", type_name(container));
  }
}

bool compare_op(Host& host, Op op, const Value& a, const Value& b) {
  const bool nan = a.is_number() && b.is_number() && (std::isnan(a.as_real()) || std::isnan(b.as_real()));
  switch (op) {
    case Op::kEq: return equal(host.budget(), a, b);
    case Op::kNe: return !equal(host.budget(), a, b);
    case Op::kIn: return contains(host, b, a);
    case Op::kNotIn: return !contains(host, b, a);
    case Op::kLt: return compare(host.budget(), a, b, "<") < 0 && !nan;
    case Op::kLe: return compare(host.budget(), a, b, "<=") <= 0 && !nan;
    case Op::kGt: return compare(host.budget(), a, b, ">") > 0 && !nan;
    default: return compare(host.budget(), a, b, ">=") >= 0 && !nan;
  }
}

namespace {

Value missing_attribute(Host& host, const Value& value, std::string_view name) {
  return host.heap.undefined(fmt::format("'{}' has no attribute {}", object_type_repr(value), python_repr(name)));
}

Value missing_element(Host& host, const Value& value, const Value& key) {
  if (key.is_string()) return missing_attribute(host, value, key.text());
  return host.heap.undefined(fmt::format("{} has no element {}", object_type_repr(value), repr(host.budget(), key)));
}

std::optional<Value> loop_attribute(Host& host, const Value& value, const std::string& name) {
  const auto& loop = value.get<Loop>();
  const auto size = loop.items ? static_cast<Int>(loop.items->size()) : 0;
  const auto index = static_cast<Int>(loop.index0);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 >= size);
  if (name == "length") return Value::integer(size);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") return index == 0 ? host.heap.undefined("there is no previous item") : (*loop.items)[loop.index0 - 1];
  if (name == "nextitem") return index + 1 >= size ? host.heap.undefined("there is no next item") : (*loop.items)[loop.index0 + 1];
  return std::nullopt;
}

// An attribute that is part of the object itself, not an element; nullopt when there is none.
std::optional<Value> own_attribute(Host& host, const Value& value, const std::string& name) {
  if (value.is(Kind::kNamespace)) {
    for (const auto& [key, item] : value.get<Namespace>().attributes) {
      if (key == name) return item;
    }
    return std::nullopt;
  }
  if (value.is(Kind::kLoop)) {
    if (auto found = loop_attribute(host, value, name)) return found;
  }
  if (has_method(value, name)) return Value::object(Kind::kMethod, std::make_shared<Method>(&host.budget(), value, name));
  if (is_unsafe_method(value, name)) {
    return host.heap.undefined(
        fmt::format("access to attribute {} of {} object is unsafe.", python_repr(name), python_repr(type_name(value))), "SecurityError");
  }
  return std::nullopt;
}

// value[key]; nullopt when there is no such element or the type has none.
std::optional<Value> element(Host& host, const Value& value, const Value& key) {
  if (value.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return std::nullopt;
    const Value* found = value.dict().find(key);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (!key.is_integral()) return std::nullopt;
  const bool indexable =
      value.is_string() || value.is_list_or_tuple() || (value.is(Kind::kIterator) && value.get<Iterator>().type_name == "range");
  if (!indexable) return std::nullopt;
  const Int size = length(value);
  Int index = key.as_int();
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  if (value.is_string()) {
    const String& text = value.string();
    if (text.ascii()) return host.heap.string_like(value, text.text.substr(static_cast<size_t>(index), 1));
    host.budget().touch(text.text.size());
    const size_t begin = byte_offset(text.text, static_cast<int64_t>(index));
    return host.heap.string_like(value, text.text.substr(begin, static_cast<size_t>(code_point_at(text.text, begin).num_bytes)));
  }
  return value.is(Kind::kIterator) ? value.get<Iterator>().values[static_cast<size_t>(index)] : value.items()[static_cast<size_t>(index)];
}

}  // namespace

Value get_attribute(Host& host, const Value& value, const std::string& name) {
  if (value.is_undefined()) fail_undefined(value);
  if (auto own = own_attribute(host, value, name)) return *own;
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.dict().find(std::string_view(name))) return *found;
  }
  return missing_attribute(host, value, name);
}

Value get_item(Host& host, const Value& value, const Value& key) {
  if (value.is_undefined()) fail_undefined(value);
  if (auto found = element(host, value, key)) return *found;
  if (key.is_string()) {
    if (auto own = own_attribute(host, value, key.text())) return *own;
  }
  return missing_element(host, value, key);
}

Value get_slice(Host& host, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) fail_undefined(value);
  const bool range = value.is(Kind::kIterator) && value.get<Iterator>().type_name == "range";
  if (!value.is_string() && !value.is_list_or_tuple() && !range) {
    if (value.is(Kind::kDict)) fault("TypeError", "unhashable type: 'slice'");
    fault("TypeError", "'{}' object is not subscriptable", type_name(value));
  }
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_integral() && !part->is(Kind::kNone)) {
      fault("TypeError", "slice indices must be integers or None or have an __index__ method");
    }
  }
  const Int size = length(value);
  const Int stride = step.is(Kind::kNone) ? 1 : step.as_int();
  if (stride == 0) fault("ValueError", "slice step cannot be zero");
  const Int low = stride > 0 ? 0 : -1;
  const Int high = stride > 0 ? size : size - 1;
  const auto place = [&](const Value& part, Int otherwise) {
    if (part.is(Kind::kNone)) return otherwise;
    const Int index = part.as_int() < 0 ? part.as_int() + size : part.as_int();
    return std::clamp(index, low, high);
  };
  const Int begin = place(start, stride > 0 ? low : high);
  const Int end = place(stop, stride > 0 ? high : low);
  const auto inside = [&](Int i) { return stride > 0 ? i < end : i > end; };
  if (value.is_string()) {
    const String& text = value.string();
    host.budget().touch(text.text.size());
    if (stride == 1) {
      if (begin >= end) return host.heap.string_like(value, "");
      const size_t first = text.ascii() ? static_cast<size_t>(begin) : byte_offset(text.text, static_cast<int64_t>(begin));
      const auto count = static_cast<int64_t>(end - begin);
      const size_t bytes = text.ascii() ? static_cast<size_t>(count) : byte_offset(std::string_view(text.text).substr(first), count);
      return host.heap.string_like(value, text.text.substr(first, bytes));
    }
    host.budget().check_room(text.text.size() * 8);
    std::vector<std::string_view> chars;
    for (size_t pos = 0; pos < text.text.size();) {
      const auto num = static_cast<size_t>(code_point_at(text.text, pos).num_bytes);
      chars.push_back(std::string_view(text.text).substr(pos, num));
      pos += num;
    }
    std::string out;
    for (Int i = begin; inside(i); i += std::clamp(stride, -size - 1, size + 1)) out += chars[static_cast<size_t>(i)];
    return host.heap.string_like(value, std::move(out));
  }
  const Values& items = range ? value.get<Iterator>().values : value.items();
  host.budget().step(static_cast<int64_t>(size));
  host.budget().check_room(items.size() * sizeof(Value));
  Values out;
  for (Int i = begin; inside(i); i += std::clamp(stride, -size - 1, size + 1)) out.push_back(items[static_cast<size_t>(i)]);
  return value.is(Kind::kTuple) ? host.heap.tuple(std::move(out)) : host.heap.list(std::move(out));
}

Value get_path(Host& host, const Value& value, const Value& path) {
  if (!path.is_string()) return get_item(host, value, path);
  Value result = value;
  for (const std::string_view part : split_on(path.text(), ".", -1)) {
    Int index = 0;
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      index = index * 10 + (c - '0');
      return c >= '0' && c <= '9' && index < (static_cast<Int>(1) << 62);
    });
    result = get_item(host, result, number ? Value::integer(index) : host.heap.string(std::string(part)));
  }
  return result;
}

namespace {

Value make_range(Host& host, const CallValues& args) {
  if (!args.named.empty()) fault("TypeError", "range() takes no keyword arguments");
  const Values& p = args.positional;
  if (p.empty() || p.size() > 3) fault("TypeError", "range expected 1 to 3 arguments, got {}", p.size());
  for (const Value& value : p) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_integral()) fault("TypeError", "'{}' object cannot be interpreted as an integer", type_name(value));
    if (value.as_int() > INT64_MAX || value.as_int() < INT64_MIN) fault("OverflowError", "range() argument is too large");
  }
  const Int start = p.size() == 1 ? 0 : p[0].as_int();
  const Int stop = p.size() == 1 ? p[0].as_int() : p[1].as_int();
  const Int step = p.size() == 3 ? p[2].as_int() : 1;
  if (step == 0) fault("ValueError", "range() arg 3 must not be zero");
  const Int span = step > 0 ? stop - start : start - stop;
  const Int count = span <= 0 ? 0 : (span - 1) / (step > 0 ? step : -step) + 1;
  if (count > kMaxRange) fault("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  host.budget().step(static_cast<int64_t>(count));
  host.budget().check_room(static_cast<size_t>(count) * sizeof(Value));
  Values values;
  values.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) values.push_back(Value::integer(start + i * step));
  Value range = host.heap.iterator("range", std::move(values), false);
  range.get<Iterator>().repr =
      fmt::format("range({}, {}{})", int_text(start), int_text(stop), step == 1 ? std::string{} : ", " + int_text(step));
  return range;
}

Pairs dict_pairs(Host& host, CallValues& args, std::string_view function) {
  if (args.positional.size() > 1) fault("TypeError", "{} expected at most 1 argument, got {}", function, args.positional.size());
  Pairs pairs;
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Kind::kDict)) {
      pairs = from.dict().entries;
    } else {
      for (const Value& item : iterate(host.heap, from)) {
        const Values pair = iterate(host.heap, item);
        if (pair.size() != 2) fault("ValueError", "dictionary update sequence element has length {}; 2 is required", pair.size());
        pairs.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (auto& [name, value] : args.named) pairs.emplace_back(host.heap.string(name), std::move(value));
  host.budget().step(static_cast<int64_t>(pairs.size()));
  return pairs;
}

}  // namespace

Value call_function(Host& host, Builtin which, CallValues args) {
  switch (which) {
    case Builtin::kRange: return make_range(host, args);
    case Builtin::kDict: return host.heap.dict(dict_pairs(host, args, "dict"));
    case Builtin::kNamespace: {
      auto space = std::make_shared<Namespace>(&host.budget(), 0);
      const Value attributes = host.heap.dict(dict_pairs(host, args, "namespace"));
      for (const auto& [key, value] : attributes.dict().entries) {
        space->charge.grow(sizeof(Value) + 32);
        space->attributes.emplace_back(str(host.budget(), key), value);
      }
      host.keep(space);
      return Value::object(Kind::kNamespace, space);
    }
    case Builtin::kRaiseException: {
      const Params params("raise_exception", args, {"message"});
      throw TemplateFault{"TemplateError", str(host.budget(), params.at(0))};
    }
    case Builtin::kStrftimeNow: {
      const Params params("strftime_now", args, {"format"});
      if (params.text(0).size() > 4096) fault("ValueError", "strftime_now() format is longer than 4096 bytes");
      return host.heap.string(format_time(host.now.value_or(0), params.text(0)));
    }
  }
  return Value::none();
}

Params::Params(std::string_view function, CallValues& args, std::initializer_list<const char*> names)
    : function_(function), names_(names), values_(names.size()) {
  if (args.positional.size() > names.size()) {
    fault("TypeError", "{}() takes at most {} argument(s) ({} given)", function_, names.size(), args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto it = std::find_if(names_.begin(), names_.end(), [&wanted = name](const char* known) { return wanted == known; });
    if (it == names_.end()) fault("TypeError", "{}() got an unexpected keyword argument '{}'", function_, name);
    const auto i = static_cast<size_t>(it - names_.begin());
    if (values_[i] != nullptr) fault("TypeError", "{}() got multiple values for argument '{}'", function_, name);
    values_[i] = &value;
  }
}

const Value& Params::at(size_t i) const {
  if (values_[i] == nullptr) fault("TypeError", "{}() missing 1 required positional argument: '{}'", function_, names_[i]);
  return *values_[i];
}

Int Params::integer(size_t i, Int otherwise) const {
  if (!has(i)) return otherwise;
  if (values_[i]->is_undefined()) fail_undefined(*values_[i]);
  if (!values_[i]->is_integral())
    fault("TypeError", "{}() argument '{}' must be int, not {}", function_, names_[i], type_name(*values_[i]));
  return values_[i]->as_int();
}

const std::string& Params::text(size_t i) const {
  const Value& value = at(i);
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_string()) fault("TypeError", "{}() argument '{}' must be str, not {}", function_, names_[i], type_name(value));
  return value.text();
}

}  // namespace ingot::text::jinja
