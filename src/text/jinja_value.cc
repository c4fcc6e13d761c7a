#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

constexpr size_t kLinear = 8;  // dicts up to this size are searched without an index

int nesting_of(const Values& values) {
  int depth = 0;
  for (const Value& value : values) depth = std::max(depth, nesting(value));
  return depth + 1;
}

int checked_depth(int depth) {
  if (depth > kMaxNesting) fault("LimitError", "values are nested deeper than {} levels", kMaxNesting);
  return depth;
}

}  // namespace

std::string int_text(Int value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  auto rest = static_cast<unsigned __int128>(value);
  if (negative) rest = -rest;
  std::string digits;
  while (rest > 0) {
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  }
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

String::String(Budget* budget, std::string value, bool is_markup)
    : Object(budget, value.size()), text(std::move(value)), num_chars(count_chars(text)), markup(is_markup) {}

const Values& Value::items() const { return get<List>().values; }
const Dict& Value::dict() const { return get<Dict>(); }

int nesting(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kTuple: return value.get<List>().depth;
    case Kind::kDict: return value.dict().depth;
    case Kind::kIterator: return value.get<Iterator>().depth;
    case Kind::kMethod: return 1 + nesting(value.get<Method>().self);
    default: return 0;
  }
}

List::List(Budget* budget, Values values_in)
    : Object(budget, values_in.size() * sizeof(Value)), values(std::move(values_in)), depth(checked_depth(nesting_of(values))) {}

Iterator::Iterator(Budget* budget, std::string type, Values items_in, bool consumable)
    : Object(budget, items_in.size() * sizeof(Value)),
      type_name(std::move(type)),
      values(std::move(items_in)),
      depth(checked_depth(nesting_of(values))),
      once(consumable) {}

Dict::Dict(Budget* budget, Pairs pairs) : Object(budget, pairs.size() * (sizeof(Pairs::value_type) + 48)), depth(1) {
  entries.reserve(pairs.size());
  Budget unlimited(int64_t{1} << 62, int64_t{1} << 62);
  for (auto& [key, value] : pairs) {
    const size_t hash = hash_value(key);
    depth = std::max({depth, 1 + nesting(value), 1 + nesting(key)});
    Value* old = nullptr;
    if (pairs.size() > kLinear) {
      const auto [first, last] = index_.equal_range(hash);
      for (auto it = first; it != last && old == nullptr; ++it) {
        if (equal(unlimited, entries[it->second].first, key)) old = &entries[it->second].second;
      }
    } else {
      for (auto& entry : entries) {
        if (equal(unlimited, entry.first, key)) old = &entry.second;
      }
    }
    if (old != nullptr) {
      *old = std::move(value);
      continue;
    }
    if (pairs.size() > kLinear) index_.emplace(hash, entries.size());
    entries.emplace_back(std::move(key), std::move(value));
  }
  checked_depth(depth);
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text()));
  Budget unlimited(int64_t{1} << 62, int64_t{1} << 62);
  const size_t hash = hash_value(key);
  if (index_.empty()) {
    for (const auto& entry : entries) {
      if (equal(unlimited, entry.first, key)) return &entry.second;
    }
    return nullptr;
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (equal(unlimited, entries[it->second].first, key)) return &entries[it->second].second;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto is_key = [&](size_t i) { return entries[i].first.is_string() && entries[i].first.text() == key; };
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (is_key(i)) return &entries[i].second;
    }
    return nullptr;
  }
  const auto [first, last] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = first; it != last; ++it) {
    if (is_key(it->second)) return &entries[it->second].second;
  }
  return nullptr;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.string().markup ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kIterator: return value.get<Iterator>().type_name;
    case Kind::kNamespace: return "Namespace";
    case Kind::kMacro: return "Macro";
    case Kind::kMethod: return "builtin_function_or_method";
    case Kind::kFunction: return "function";
    case Kind::kLoop: return "LoopContext";
  }
  return "object";
}

std::string object_type_repr(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone: return "None";
    case Kind::kNamespace: return "jinja2.utils.Namespace object";
    case Kind::kMacro: return "jinja2.runtime.Macro object";
    case Kind::kLoop: return "jinja2.runtime.LoopContext object";
    case Kind::kString: return value.string().markup ? "markupsafe.Markup object" : "str object";
    default: return type_name(value) + " object";
  }
}

void fail_undefined(const Value& value) {
  if (value.object() == nullptr) fault("UndefinedError", "a value is undefined");
  const auto& undefined = value.get<Undefined>();
  throw TemplateFault{undefined.fault_kind, undefined.message};
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_real() != 0.0;
    case Kind::kString: return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple: return !value.items().empty();
    case Kind::kDict: return !value.dict().entries.empty();
    case Kind::kIterator: return value.get<Iterator>().once || !value.get<Iterator>().values.empty();
    default: return true;
  }
}

namespace {

bool equal_values(Budget& budget, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(budget, a[i], b[i])) return false;
  }
  return true;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : (a.as_int() > b.as_int() ? 1 : 0);
  return a.as_real() < b.as_real() ? -1 : (a.as_real() > b.as_real() ? 1 : 0);
}

}  // namespace

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: budget.touch(std::min(a.text().size(), b.text().size())); return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple: return a.object() == b.object() || equal_values(budget, a.items(), b.items());
    case Kind::kDict: {
      if (a.object() == b.object()) return true;
      const Dict& left = a.dict();
      const Dict& right = b.dict();
      if (left.entries.size() != right.entries.size()) return false;
      return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
        const Value* other = right.find(entry.first);
        return other != nullptr && equal(budget, entry.second, *other);
      });
    }
    case Kind::kMethod:
      return a.get<Method>().name == b.get<Method>().name && a.get<Method>().self.object() == b.get<Method>().self.object();
    case Kind::kIterator: {
      const auto& left = a.get<Iterator>();
      const auto& right = b.get<Iterator>();
      if (a.object() == b.object()) return true;
      return left.type_name == "range" && right.type_name == "range" && equal_values(budget, left.values, right.values);
    }
    default: return a.object() == b.object();
  }
}

size_t hash_value(const Value& value) {
  switch (value.kind()) {
    case Kind::kString: return std::hash<std::string_view>{}(value.text());
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat: return std::hash<double>{}(value.as_real() == 0.0 ? 0.0 : value.as_real());
    case Kind::kNone: return 0x4e6f6e65;
    case Kind::kUndefined: return 0x756e6466;
    case Kind::kTuple: {
      size_t hash = 0x345678;
      for (const Value& item : value.items()) hash = hash * 1000003 ^ hash_value(item);
      return hash;
    }
    case Kind::kList:
    case Kind::kDict: fault("TypeError", "unhashable type: '{}'", type_name(value));
    default: return std::hash<const void*>{}(value.object().get());
  }
}

int compare(Budget& budget, const Value& a, const Value& b, std::string_view op) {
  budget.step();
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    budget.touch(std::min(a.text().size(), b.text().size()));
    return a.text().compare(b.text());  // byte order of UTF-8 is code point order
  }
  if (a.is_list_or_tuple() && a.kind() == b.kind()) {
    const Values& left = a.items();
    const Values& right = b.items();
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(budget, left[i], right[i])) return compare(budget, left[i], right[i], op);
    }
    return left.size() < right.size() ? -1 : (left.size() > right.size() ? 1 : 0);
  }
  fault("TypeError", "'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

namespace {

// Text grows here, so this is where its room is checked.
void put(Budget& budget, std::string_view text, std::string& out) {
  budget.touch(text.size());
  if (out.size() + text.size() > out.capacity()) budget.check_room(2 * out.size() + text.size());
  out += text;
}

void append_sequence(Budget& budget, const Values& values, std::string& out) {
  bool first = true;
  for (const Value& value : values) {
    if (!first) put(budget, ", ", out);
    first = false;
    append_repr(budget, value, out);
  }
}

}  // namespace

void append_repr(Budget& budget, const Value& value, std::string& out) {
  budget.step();
  switch (value.kind()) {
    case Kind::kUndefined: put(budget, "Undefined", out); break;
    case Kind::kNone: put(budget, "None", out); break;
    case Kind::kBool: put(budget, value.as_int() != 0 ? "True" : "False", out); break;
    case Kind::kInt: put(budget, int_text(value.as_int()), out); break;
    case Kind::kFloat: put(budget, float_repr(value.as_real()), out); break;
    case Kind::kString:
      budget.check_room(value.text().size() * 4);
      if (value.string().markup) {
        put(budget, "Markup(" + python_repr(value.text()) + ")", out);
      } else {
        put(budget, python_repr(value.text()), out);
      }
      break;
    case Kind::kList:
      put(budget, "[", out);
      append_sequence(budget, value.items(), out);
      put(budget, "]", out);
      break;
    case Kind::kTuple:
      put(budget, "(", out);
      append_sequence(budget, value.items(), out);
      put(budget, value.items().size() == 1 ? ",)" : ")", out);
      break;
    case Kind::kDict: {
      put(budget, "{", out);
      bool first = true;
      for (const auto& [key, item] : value.dict().entries) {
        if (!first) put(budget, ", ", out);
        first = false;
        append_repr(budget, key, out);
        put(budget, ": ", out);
        append_repr(budget, item, out);
      }
      put(budget, "}", out);
      break;
    }
    case Kind::kIterator: {
      const auto& iterator = value.get<Iterator>();
      if (!iterator.repr.empty()) {
        put(budget, iterator.repr, out);
      } else if (iterator.once) {
        put(budget, "<" + iterator.type_name + " object>", out);
      } else {
        put(budget, iterator.type_name + "([", out);
        append_sequence(budget, iterator.values, out);
        put(budget, "])", out);
      }
      break;
    }
    // Python prints an address or the attributes here; a name keeps the output reproducible and free of cycles.
    default: put(budget, "<" + type_name(value) + ">", out);
  }
}

void append_str(Budget& budget, const Value& value, std::string& out) {
  if (value.is_string()) {
    put(budget, value.text(), out);
  } else if (!value.is_undefined()) {
    append_repr(budget, value, out);
  }
}

std::string str(Budget& budget, const Value& value) {
  std::string out;
  append_str(budget, value, out);
  return out;
}

std::string repr(Budget& budget, const Value& value) {
  std::string out;
  append_repr(budget, value, out);
  return out;
}

int64_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return value.string().num_chars;
    case Kind::kList:
    case Kind::kTuple: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kIterator: return value.get<Iterator>().once ? -1 : static_cast<int64_t>(value.get<Iterator>().values.size());
    case Kind::kLoop: return value.get<Loop>().items ? static_cast<int64_t>(value.get<Loop>().items->size()) : 0;
    default: return -1;
  }
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kIterator: return true;
    default: return false;
  }
}

Values iterate(Heap& heap, const Value& value) {
  Values out;
  const int64_t count = length(value);
  if (count > 0) {
    heap.budget().step(count);
    heap.budget().check_room(static_cast<size_t>(count) * (sizeof(Value) + (value.is_string() ? 128 : 0)));
  }
  switch (value.kind()) {
    case Kind::kUndefined: break;
    case Kind::kString: {
      const std::string& text = value.text();
      for (size_t pos = 0; pos < text.size();) {
        const auto num = static_cast<size_t>(code_point_at(text, pos).num_bytes);
        out.push_back(heap.string(text.substr(pos, num)));
        pos += num;
      }
      break;
    }
    case Kind::kList:
    case Kind::kTuple: return value.items();
    case Kind::kDict:
      for (const auto& entry : value.dict().entries) out.push_back(entry.first);
      break;
    case Kind::kIterator: {
      auto& iterator = value.get<Iterator>();
      if (iterator.once && iterator.used) break;
      iterator.used = true;
      heap.budget().step(static_cast<int64_t>(iterator.values.size()));
      return iterator.values;
    }
    default: fault("TypeError", "'{}' object is not iterable", type_name(value));
  }
  return out;
}

Value from_json(Heap& heap, const Json& json, int depth) {
  if (depth > kMaxNesting) fault("LimitError", "the template's input is nested deeper than {} levels", kMaxNesting);
  switch (json.type()) {
    case Json::value_t::null: return Value::none();
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: return Value::integer(json.get<uint64_t>());
    case Json::value_t::number_float: return Value::real(json.get<double>());
    case Json::value_t::string: return heap.string(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      Values values;
      for (const Json& item : json) values.push_back(from_json(heap, item, depth + 1));
      return heap.list(std::move(values));
    }
    case Json::value_t::object: {
      Pairs pairs;
      for (auto it = json.begin(); it != json.end(); ++it)
        pairs.emplace_back(heap.string(it.key()), from_json(heap, it.value(), depth + 1));
      return heap.dict(std::move(pairs));
    }
    case Json::value_t::binary:
    case Json::value_t::discarded: break;
  }
  fault("TypeError", "the template's input holds a value that JSON does not know");
}

namespace {

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_repr(value);
}

std::string json_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kString: return key.text();
    case Kind::kNone: return "null";
    case Kind::kBool: return key.as_int() != 0 ? "true" : "false";
    case Kind::kInt: return int_text(key.as_int());
    case Kind::kFloat: return json_float(key.as_real());
    default: fault("TypeError", "keys must be str, int, float, bool or None, not {}", type_name(key));
  }
}

void new_line(Budget& budget, const JsonStyle& style, int level, std::string& out) {
  if (!style.pretty) return;
  budget.check_room(style.indent.size() * static_cast<size_t>(level));
  put(budget, "\n", out);
  for (int i = 0; i < level; ++i) put(budget, style.indent, out);
}

}  // namespace

void append_json(Budget& budget, const Value& value, const JsonStyle& style, std::string& out, int level) {
  budget.step();
  switch (value.kind()) {
    case Kind::kNone: put(budget, "null", out); break;
    case Kind::kBool: put(budget, value.as_int() != 0 ? "true" : "false", out); break;
    case Kind::kInt: put(budget, int_text(value.as_int()), out); break;
    case Kind::kFloat: put(budget, json_float(value.as_real()), out); break;
    case Kind::kString:
      budget.touch(value.text().size());
      budget.check_room(out.size() + 6 * value.text().size());
      append_json_string(value.text(), style.ensure_ascii, out);
      break;
    case Kind::kList:
    case Kind::kTuple: {
      const Values& values = value.items();
      put(budget, "[", out);
      for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) put(budget, style.item_separator, out);
        new_line(budget, style, level + 1, out);
        append_json(budget, values[i], style, out, level + 1);
      }
      if (!values.empty()) new_line(budget, style, level, out);
      put(budget, "]", out);
      break;
    }
    case Kind::kDict: {
      std::vector<const Pairs::value_type*> order;
      for (const auto& entry : value.dict().entries) order.push_back(&entry);
      if (style.sort_keys) {
        std::stable_sort(order.begin(), order.end(),
                         [&](const auto* a, const auto* b) { return compare(budget, a->first, b->first, "<") < 0; });
      }
      put(budget, "{", out);
      for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0) put(budget, style.item_separator, out);
        new_line(budget, style, level + 1, out);
        append_json_string(json_key(order[i]->first), style.ensure_ascii, out);
        put(budget, style.key_separator, out);
        append_json(budget, order[i]->second, style, out, level + 1);
      }
      if (!order.empty()) new_line(budget, style, level, out);
      put(budget, "}", out);
      break;
    }
    default: fault("TypeError", "Object of type {} is not JSON serializable", type_name(value));
  }
}

}  // namespace ingot::text::jinja
