// The filters of the template language, by name.
#include <algorithm>
#include <cmath>
#include <map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

using FilterBody = Value (*)(Host&, const Value& value, CallValues& args);

#define FILTER []([[maybe_unused]] Host & host, const Value& value, CallValues& args) -> Value

// soft_str: text as it is, anything else by str().
Value as_text(Host& host, const Value& value) { return value.is_string() ? value : host.heap.string(str(host.budget(), value)); }

Value text_method(Host& host, const Value& value, CallValues& args, const char* name) {
  return call_method(host, Method(nullptr, as_text(host, value), name), std::move(args));
}

std::string first_or(const CallValues& args) {
  return args.positional.empty() || !args.positional[0].is_string() ? std::string{} : args.positional[0].text();
}

// What to sort or compare by: the item or its attributes, lower case when asked.
Values sort_key(Host& host, const Value& item, const std::vector<Value>& paths, bool case_sensitive) {
  Values key;
  const auto add = [&](Value part) {
    key.push_back(part.is_string() && !case_sensitive ? host.heap.string(to_lower(part.text())) : std::move(part));
  };
  if (paths.empty()) add(item);
  for (const Value& path : paths) add(get_path(host, item, path));
  return key;
}

std::vector<Value> attribute_paths(Host& host, const Params& params, size_t i) {
  std::vector<Value> paths;
  if (!params.has(i) || params.at(i).is(Kind::kNone)) return paths;
  const Value& attribute = params.at(i);
  if (!attribute.is_string()) return {attribute};
  for (const std::string_view part : split_on(attribute.text(), ",", -1)) paths.push_back(host.heap.string(std::string(part)));
  return paths;
}

void sort_by(Host& host, Values& items, const std::vector<Value>& paths, bool case_sensitive, bool reverse) {
  std::vector<std::pair<Values, Value>> keyed;
  host.budget().check_room(items.size() * 3 * sizeof(Value));
  for (Value& item : items) keyed.emplace_back(sort_key(host, item, paths, case_sensitive), item);
  const auto less = [&](const auto& a, const auto& b) {
    for (size_t i = 0; i < a.first.size(); ++i) {
      if (!equal(host.budget(), a.first[i], b.first[i])) return compare(host.budget(), a.first[i], b.first[i], "<") < 0;
    }
    return false;
  };
  // A merge sort stays within bounds whatever the comparison says (NaN), and keeps equal items in order, both ways.
  if (reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(b, a); });
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), less);
  }
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
}

Value do_tojson(Host& host, const Value& value, CallValues& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = params.flag(0, false);
  style.sort_keys = params.flag(3, false);
  if (params.has(1) && !params.at(1).is(Kind::kNone)) {
    style.pretty = true;
    style.item_separator = std::string(1, ',');  // assigning "," trips a false -Wrestrict of gcc 12
    if (params.at(1).is_string()) {
      style.indent = params.text(1);
    } else {
      const Int width = std::max(static_cast<Int>(0), params.integer(1, 0));
      if (width > 1000) fault("ValueError", "tojson() indent is larger than 1000");
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (params.has(2) && !params.at(2).is(Kind::kNone)) {
    const Values separators = iterate(host.heap, params.at(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fault("TypeError", "tojson() separators must be (item_separator, key_separator)");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  std::string out;
  append_json(host.budget(), value, style, out);
  return host.heap.string(std::move(out));
}

Value do_join(Host& host, const Value& value, CallValues& args) {
  const Params params("join", args, {"d", "attribute"});
  const std::string separator = params.has(0) ? str(host.budget(), params.at(0)) : std::string{};
  const Value glue = host.heap.string(separator);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(host.heap, value)) {
    if (!first) append_str(host.budget(), glue, out);
    first = false;
    append_str(host.budget(), params.has(1) && !params.at(1).is(Kind::kNone) ? get_path(host, item, params.at(1)) : item, out);
  }
  return host.heap.string(std::move(out));
}

Value do_indent(Host& host, const Value& value, CallValues& args) {
  const Params params("indent", args, {"width", "first", "blank"});
  std::string indent;
  if (params.has(0) && params.at(0).is_string()) {
    indent = params.text(0);
  } else {
    const Int width = std::max(static_cast<Int>(0), params.integer(0, 4));
    if (width > 10000) fault("ValueError", "indent() width is larger than 10000");
    indent.assign(static_cast<size_t>(width), ' ');
  }
  const Value text = as_text(host, value);
  CallValues none;
  const Value lines = call_method(host, Method(nullptr, host.heap.string(text.text() + "\n"), "splitlines"), none);
  std::string out;
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const std::string& line = lines.items()[i].text();
    const bool indented = i == 0 ? params.flag(1, false) : (params.flag(2, false) || !line.empty());
    host.budget().touch(line.size() + indent.size());
    host.budget().check_room(out.size() + line.size() + indent.size() + 1);
    if (i > 0) out += '\n';
    if (indented) out += indent;
    out += line;
  }
  return host.heap.string_like(text, std::move(out));
}

Value do_dictsort(Host& host, const Value& value, CallValues& args) {
  const Params params("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is(Kind::kDict)) fault("UndefinedError", "'{}' has no attribute 'items'", object_type_repr(value));
  const std::string by = params.text(1, "key");
  if (by != "key" && by != "value") fault("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  Values items;
  for (const auto& [key, item] : value.dict().entries) items.push_back(host.heap.tuple({key, item}));
  sort_by(host, items, {Value::integer(by == "key" ? 0 : 1)}, params.flag(0, false), params.flag(2, false));
  return host.heap.list(std::move(items));
}

Value do_map(Host& host, const Value& value, CallValues& args) {
  Values out;
  if (!truth(value)) return host.heap.generator({});  // None maps to nothing
  if (args.positional.empty()) {
    const Params params("map", args, {"attribute", "default"});
    if (!params.has(0)) fault("FilterArgumentError", "map requires a filter argument");
    for (const Value& item : iterate(host.heap, value)) {
      Value part = get_path(host, item, params.at(0));
      if (part.is_undefined() && params.has(1)) part = params.at(1);
      out.push_back(std::move(part));
    }
    return host.heap.generator(std::move(out));
  }
  const std::string name = first_or(args);
  CallValues rest{Values(args.positional.begin() + 1, args.positional.end()), args.named};
  for (const Value& item : iterate(host.heap, value)) {
    host.budget().step();
    if (!has_filter(name)) fault("TemplateRuntimeError", "No filter named '{}'.", name);
    out.push_back(apply_filter(host, name, item, rest));
  }
  return host.heap.generator(std::move(out));
}

// select, reject, selectattr, rejectattr: the items whose (attribute's) test gives `wanted`.
Value do_select(Host& host, const Value& value, CallValues& args, bool by_attribute, bool wanted) {
  if (!truth(value)) return host.heap.generator({});  // None selects nothing
  auto rest_begin = args.positional.begin();
  Value attribute;
  if (by_attribute) {
    if (args.positional.empty()) fault("FilterArgumentError", "Missing parameter for attribute name");
    attribute = *rest_begin++;
  }
  std::string test;
  if (rest_begin != args.positional.end()) {
    test = rest_begin->is_string() ? rest_begin->text() : std::string{};
    ++rest_begin;
    if (!has_test(test)) fault("TemplateRuntimeError", "No test named '{}'.", test);
  }
  const CallValues rest{Values(rest_begin, args.positional.end()), args.named};
  Values out;
  for (const Value& item : iterate(host.heap, value)) {
    host.budget().step();
    const Value subject = by_attribute ? get_path(host, item, attribute) : item;
    const bool passes = test.empty() ? truth(subject) : apply_test(host, test, subject, rest);
    if (passes == wanted) out.push_back(item);
  }
  return host.heap.generator(std::move(out));
}

Value do_unique(Host& host, const Value& value, CallValues& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"});
  const auto paths = attribute_paths(host, params, 1);
  std::multimap<size_t, Value> seen;
  Values out;
  for (const Value& item : iterate(host.heap, value)) {
    const Value key = host.heap.tuple(sort_key(host, item, paths, params.flag(0, false)));
    const size_t hash = hash_value(key);
    const auto [first, last] = seen.equal_range(hash);
    if (std::any_of(first, last, [&](const auto& entry) { return equal(host.budget(), entry.second, key); })) continue;
    host.budget().check_room(seen.size() * 96);
    seen.emplace(hash, key);
    out.push_back(item);
  }
  return host.heap.generator(std::move(out));
}

Value do_groupby(Host& host, const Value& value, CallValues& args) {
  const Params params("groupby", args, {"attribute", "default", "case_sensitive"});
  const bool case_sensitive = params.flag(2, false);
  Values items = iterate(host.heap, value);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    Value key = get_path(host, item, params.at(0));
    if (key.is_undefined() && params.has(1)) key = params.at(1);
    keyed.emplace_back(std::move(key), item);
  }
  const auto folded = [&](const Value& key) { return key.is_string() && !case_sensitive ? host.heap.string(to_lower(key.text())) : key; };
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return compare(host.budget(), folded(a.first), folded(b.first), "<") < 0; });
  Values out;
  for (size_t i = 0; i < keyed.size();) {
    Values group;
    const Value key = keyed[i].first;
    for (; i < keyed.size() && equal(host.budget(), folded(keyed[i].first), folded(key)); ++i) group.push_back(keyed[i].second);
    if (group.empty()) group.push_back(keyed[i++].second);  // a key that is not equal to itself (NaN)
    out.push_back(host.heap.tuple({key, host.heap.list(std::move(group))}));
  }
  return host.heap.list(std::move(out));
}

Value do_extreme(Host& host, const Value& value, CallValues& args, bool largest) {
  const Params params(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  Values items = iterate(host.heap, value);
  if (items.empty()) return host.heap.undefined("No aggregated item, sequence was empty.");
  sort_by(host, items, attribute_paths(host, params, 1), params.flag(0, false), largest);
  return items.front();
}

Value do_round(Host&, const Value& value, CallValues& args) {
  const Params params("round", args, {"precision", "method"});
  const std::string method = params.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") fault("FilterArgumentError", "method must be common, ceil or floor");
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) fault("TypeError", "type {} doesn't define __round__ method", type_name(value));
  const Int precision = std::clamp(params.integer(0, 0), static_cast<Int>(-400), static_cast<Int>(400));
  if (method == "common") {
    if (value.is_integral() && precision >= 0) return value;
    if (std::isfinite(value.as_real()) && precision >= 0) {
      // The decimal expansion is exact, so printing rounds as Python does: to nearest, ties to even.
      return Value::real(std::stod(fmt::format("{:.{}f}", value.as_real(), static_cast<int>(precision))));
    }
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_real() * scale;
  const double rounded = method == "ceil" ? std::ceil(scaled) : (method == "floor" ? std::floor(scaled) : std::nearbyint(scaled));
  return Value::real(rounded / scale);
}

Value do_title(Host& host, const Value& value, CallValues& args) {
  const Params params("title", args, {});
  const Value text = as_text(host, value);
  host.budget().touch(text.text().size() * 4);
  // Words begin after white space and opening brackets or hyphens, unlike str.title.
  std::string out;
  size_t begin = 0;
  const auto is_break = [](char32_t c) { return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c); };
  const std::string& s = text.text();
  for (size_t pos = 0; pos < s.size();) {
    const CodePoint c = code_point_at(s, pos);
    const auto num = static_cast<size_t>(c.num_bytes);
    if (is_break(c.value)) {
      out += capitalize(std::string_view(s).substr(begin, pos - begin));
      out += std::string_view(s).substr(pos, num);
      begin = pos + num;
    }
    pos += num;
  }
  out += capitalize(std::string_view(s).substr(begin));
  return host.heap.string_like(text, std::move(out));
}

Value do_last(Host& host, const Value& value, CallValues& args) {
  const Params params("last", args, {});
  if (value.is(Kind::kIterator) && value.get<Iterator>().once) fault("TypeError", "'generator' object is not reversible");
  const Values items = iterate(host.heap, value);
  return items.empty() ? host.heap.undefined("No last item, sequence was empty.") : items.back();
}

Value do_reverse(Host& host, const Value& value, CallValues& args) {
  const Params params("reverse", args, {});
  if (value.is_string()) return get_slice(host, value, Value::none(), Value::none(), Value::integer(-1));
  Values items = iterate(host.heap, value);
  std::reverse(items.begin(), items.end());
  return host.heap.iterator("list_reverseiterator", std::move(items), true);
}

Value do_batch(Host& host, const Value& value, CallValues& args) {
  const Params params("batch", args, {"linecount", "fill_with"});
  const Int size = params.integer(0, 0);
  if (size < 1) fault("ValueError", "batch() linecount must be positive");
  Values out;
  Values row;
  for (const Value& item : iterate(host.heap, value)) {
    row.push_back(item);
    if (static_cast<Int>(row.size()) == size) out.push_back(host.heap.list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    const Int missing = size - static_cast<Int>(row.size());
    if (params.has(1) && !params.at(1).is(Kind::kNone)) {
      if (missing > 100000) fault("LimitError", "batch() fills more than 100000 places");
      for (Int i = 0; i < missing; ++i) row.push_back(params.at(1));
    }
    out.push_back(host.heap.list(std::move(row)));
  }
  return host.heap.generator(std::move(out));
}

Value do_sum(Host& host, const Value& value, CallValues& args) {
  const Params params("sum", args, {"attribute", "start"});
  Value total = params.get(1, Value::integer(0));
  for (const Value& item : iterate(host.heap, value)) {
    total = binary_op(host, Op::kAdd, total, params.has(0) && !params.at(0).is(Kind::kNone) ? get_path(host, item, params.at(0)) : item);
  }
  return total;
}

Value do_default(Host& host, const Value& value, CallValues& args) {
  const Params params("default", args, {"default_value", "boolean"});
  if (value.is_undefined() || (params.flag(1, false) && !truth(value))) return params.has(0) ? params.at(0) : host.heap.string("");
  return value;
}

Value do_items(Host& host, const Value& value, CallValues& args) {
  const Params params("items", args, {});
  if (value.is_undefined()) return host.heap.generator({});
  if (!value.is(Kind::kDict)) fault("TypeError", "Can only get item pairs from a mapping.");
  host.budget().step(static_cast<int64_t>(value.dict().entries.size()));
  Values pairs;
  for (const auto& [key, item] : value.dict().entries) pairs.push_back(host.heap.tuple({key, item}));
  return host.heap.generator(std::move(pairs));
}

Value do_escape(Host& host, const Value& value, CallValues& args) {
  const Params params("escape", args, {});
  const Value text = as_text(host, value);
  if (text.string().markup) return text;
  host.budget().touch(text.text().size());
  host.budget().check_room(text.text().size() * 5);
  return host.heap.string(html_escape(text.text()), true);
}

const std::map<std::string_view, FilterBody>& filters() {
  static const std::map<std::string_view, FilterBody> kFilters = {{"abs", FILTER{const Params params("abs", args, {});
  if (value.is_number() && value.as_real() >= 0 && !value.is(Kind::kBool)) return value;
  return unary_op(host, value.is(Kind::kBool) ? Op::kPos : Op::kNeg, value);
}
}  // namespace
, {"attr", FILTER{const Params params("attr", args, {"name"});
if (value.is(Kind::kDict) && !has_method(value, params.text(0))) {
  return host.heap.undefined(fmt::format("'dict object' has no attribute {}", python_repr(params.text(0))));
}
return get_attribute(host, value, params.text(0));
}  // namespace ingot::text::jinja
}
, {"batch", do_batch}, {"capitalize", FILTER{return text_method(host, value, args, "capitalize");
}
}
, {"center", FILTER{if (args.positional.empty() && args.named.empty()) args.positional.push_back(Value::integer(80));
return text_method(host, value, args, "center");
}
}
, {"count", FILTER{return apply_filter(host, "length", value, std::move(args));
}
}
, {"d", do_default}, {"default", do_default}, {"dictsort", do_dictsort}, {"e", do_escape}, {"escape", do_escape},
    {"first", FILTER{const Params params("first", args, {});
if (value.is_list_or_tuple() && !value.items().empty()) return value.items().front();
const Values items = iterate(host.heap, value);
return items.empty() ? host.heap.undefined("No first item, sequence was empty.") : items.front();
}
}
, {"float", FILTER{const Params params("float", args, {"default"});
return to_real(value).value_or(params.get(0, Value::real(0.0)));
}
}
, {"format", FILTER{const Value text = as_text(host, value);
if (!args.named.empty() && !args.positional.empty())
  fault("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
Pairs pairs;
for (const auto& [name, item] : args.named) pairs.emplace_back(host.heap.string(name), item);
return host.heap.string_like(
    text, percent_format(host, text.text(), pairs.empty() ? host.heap.tuple(args.positional) : host.heap.dict(std::move(pairs))));
}
}
, {"groupby", do_groupby}, {"indent", do_indent}, {"int", FILTER{const Params params("int", args, {"default", "base"});
const Int base = params.integer(1, 10);
if (base != 0 && (base < 2 || base > 36)) return params.get(0, Value::integer(0));
return to_integer(value, static_cast<int>(base)).value_or(params.get(0, Value::integer(0)));
}
}
, {"items", do_items}, {"join", do_join}, {"last", do_last}, {"length", FILTER{const Params params("length", args, {});
const int64_t count = length(value);
host.budget().step();
if (count < 0) fault("TypeError", "object of type '{}' has no len()", type_name(value));
return Value::integer(count);
}
}
, {"list", FILTER{return Params("list", args, {}), host.heap.list(iterate(host.heap, value));
}
}
, {"lower", FILTER{return text_method(host, value, args, "lower");
}
}
, {"map", do_map}, {"max", FILTER{return do_extreme(host, value, args, true);
}
}
, {"min", FILTER{return do_extreme(host, value, args, false);
}
}
, {"reject", FILTER{return do_select(host, value, args, false, false);
}
}
, {"rejectattr", FILTER{return do_select(host, value, args, true, false);
}
}
, {"replace", FILTER{Params params("replace", args, {"old", "new", "count"});
CallValues texts{{as_text(host, params.at(0)), as_text(host, params.at(1))}, {}};
if (params.has(2) && !params.at(2).is(Kind::kNone)) texts.positional.push_back(params.at(2));
return text_method(host, value, texts, "replace");
}
}
, {"reverse", do_reverse}, {"round", do_round},
    {"safe", FILTER{return Params("safe", args, {}), host.heap.string(str(host.budget(), value), true);
}
}
, {"select", FILTER{return do_select(host, value, args, false, true);
}
}
, {"selectattr", FILTER{return do_select(host, value, args, true, true);
}
}
, {"sort", FILTER{const Params params("sort", args, {"reverse", "case_sensitive", "attribute"});
Values items = iterate(host.heap, value);
sort_by(host, items, attribute_paths(host, params, 2), params.flag(1, false), params.flag(0, false));
return host.heap.list(std::move(items));
}
}
, {"string", FILTER{return Params("string", args, {}), as_text(host, value);
}
}
, {"sum", do_sum}, {"title", do_title}, {"tojson", do_tojson}, {"trim", FILTER{return text_method(host, value, args, "strip");
}
}
, {"unique", do_unique}, {"upper", FILTER{return text_method(host, value, args, "upper");
}
}
, {"wordcount", FILTER{const Params params("wordcount", args, {});
const Value text = as_text(host, value);
int64_t words = 0;
bool inside = false;
host.budget().touch(text.text().size());
for (size_t pos = 0; pos < text.text().size();) {
  const CodePoint c = code_point_at(text.text(), pos);
  const bool word = is_alpha(c.value) || is_digit(c.value) || c.value == '_';
  words += word && !inside ? 1 : 0;
  inside = word;
  pos += static_cast<size_t>(c.num_bytes);
}
return Value::integer(words);
}
}
,
}
;
return kFilters;
}

#undef FILTER

// An integer literal as int(text, base) reads it; nullopt when it is none.
std::optional<Int> parse_int(std::string_view text, int base) {
  text = strip(text, Side::kBoth, nullptr);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const auto prefixed = [&](char letter) { return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter; };
  for (const auto& [letter, value] : {std::pair{'x', 16}, {'o', 8}, {'b', 2}}) {
    if ((base == value || base == 0) && prefixed(letter)) {
      text.remove_prefix(2);
      base = value;
    }
  }
  if (base == 0) base = 10;
  if (text.empty() || text.front() == '_' || text.back() == '_') return std::nullopt;
  Int result = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_' && text[i - 1] != '_') continue;
    const int digit = c >= '0' && c <= '9' ? c - '0' : ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10 : 99);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(result, static_cast<Int>(base), &result) ||
        __builtin_add_overflow(result, static_cast<Int>(digit), &result)) {
      fault("LimitError", "unsupported: an integer of more than 127 bits");
    }
  }
  return negative ? -result : result;
}

}  // namespace

std::optional<Value> to_integer(const Value& value, int base) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_string()) {
    if (const auto parsed = parse_int(value.text(), base)) return Value::integer(*parsed);
  }
  const auto real = to_real(value);
  if (!real || !std::isfinite(real->as_real())) return std::nullopt;
  if (std::fabs(real->as_real()) >= 0x1p126) fault("LimitError", "unsupported: an integer of more than 127 bits");
  return Value::integer(static_cast<Int>(real->as_real()));
}

std::optional<Value> to_real(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_number()) return Value::real(value.as_real());
  if (!value.is_string()) return std::nullopt;
  const std::string text = to_lower(strip(value.text(), Side::kBoth, nullptr));
  if (text.empty() || text.size() > 4096 || text.find('x') != text.npos || text.find('p') != text.npos || text.find('(') != text.npos)
    return std::nullopt;
  char* end = nullptr;
  const double parsed = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return Value::real(parsed);
}

bool has_filter(std::string_view name) { return filters().contains(name); }

Value apply_filter(Host& host, std::string_view name, const Value& value, CallValues args) { return filters().at(name)(host, value, args); }

}  // namespace ingot::text::jinja
