// Methods of strings, dicts, lists and loops, as an immutable sandbox offers them.
#include <algorithm>
#include <array>
#include <map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

using MethodBody = Value (*)(Host&, const Value& self, CallValues& args);

Value strip_method(Host& host, const Value& self, CallValues& args, Side side, std::string_view name) {
  const Params params(name, args, {"chars"});
  const bool chars = params.has(0) && !params.at(0).is(Kind::kNone);
  host.budget().touch(self.text().size() * (chars ? 1 + params.text(0).size() : 1));
  return host.heap.string_like(self, std::string(strip(self.text(), side, chars ? &params.text(0) : nullptr)));
}

Value strings(Host& host, const Value& self, const std::vector<std::string_view>& parts) {
  host.budget().step(static_cast<int64_t>(parts.size()));
  Values values;
  for (const std::string_view part : parts) values.push_back(host.heap.string_like(self, std::string(part)));
  return host.heap.list(std::move(values));
}

Value split_method(Host& host, const Value& self, CallValues& args, bool from_right) {
  const Params params(from_right ? "rsplit" : "split", args, {"sep", "maxsplit"});
  const auto limit = static_cast<int64_t>(std::clamp(params.integer(1, -1), static_cast<Int>(-1), static_cast<Int>(1) << 40));
  host.budget().touch(self.text().size());
  const bool white = !params.has(0) || params.at(0).is(Kind::kNone);
  if (!white && params.text(0).empty()) fault("ValueError", "empty separator");
  auto parts = white ? split_white(self.text(), from_right ? -1 : limit) : split_on(self.text(), params.text(0), from_right ? -1 : limit);
  if (from_right && limit >= 0 && static_cast<int64_t>(parts.size()) > limit + 1) {
    // The leading parts stay one piece: all parts point into the same text.
    const size_t joined = parts.size() - static_cast<size_t>(limit);
    const char* begin = white ? parts.front().data() : self.text().data();
    const std::string_view last = parts[joined - 1];
    parts.erase(parts.begin() + 1, parts.begin() + static_cast<std::ptrdiff_t>(joined));
    parts[0] = std::string_view(begin, static_cast<size_t>(last.data() + last.size() - begin));
  }
  return strings(host, self, parts);
}

// startswith/endswith: a string or a tuple of strings.
bool affix(Host& host, const Value& self, CallValues& args, bool at_start) {
  const Params params(at_start ? "startswith" : "endswith", args, {"prefix", "start", "end"});
  std::string_view text = self.text();
  if (params.has(1) || params.has(2)) {
    const Value part = get_slice(host, self, params.get(1, Value::none()), params.get(2, Value::none()), Value::none());
    if (part.is_undefined()) fail_undefined(part);
    CallValues inner;
    inner.positional = {params.at(0)};
    return affix(host, part, inner, at_start);
  }
  const auto matches = [&](const Value& value) {
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_string()) {
      fault("TypeError", "{} first arg must be str or a tuple of str, not {}", at_start ? "startswith" : "endswith", type_name(value));
    }
    return at_start ? text.starts_with(value.text()) : text.ends_with(value.text());
  };
  const Value& what = params.at(0);
  if (!what.is(Kind::kTuple)) return matches(what);
  return std::any_of(what.items().begin(), what.items().end(), matches);
}

int64_t find_in(Host& host, const Value& self, CallValues& args, bool from_right, std::string_view name) {
  const Params params(name, args, {"sub", "start", "end"});
  host.budget().touch(self.text().size());
  const Value part = get_slice(host, self, params.get(1, Value::none()), params.get(2, Value::none()), Value::none());
  if (part.is_undefined()) fail_undefined(part);
  const size_t hit = from_right ? part.text().rfind(params.text(0)) : part.text().find(params.text(0));
  if (hit == std::string::npos) return -1;
  Int start = params.integer(1, 0);
  if (start < 0) start = std::max(static_cast<Int>(0), start + self.string().num_chars);
  return static_cast<int64_t>(start) + count_chars(std::string_view(part.text()).substr(0, hit));
}

Value index_of(Host& host, const Value& self, CallValues& args, bool from_right, std::string_view name) {
  const int64_t at = find_in(host, self, args, from_right, name);
  if (at < 0) fault("ValueError", "substring not found");
  return Value::integer(at);
}

Value partition(Host& host, const Value& self, CallValues& args, bool from_right) {
  const Params params(from_right ? "rpartition" : "partition", args, {"sep"});
  const std::string& text = self.text();
  if (params.text(0).empty()) fault("ValueError", "empty separator");
  const size_t hit = from_right ? text.rfind(params.text(0)) : text.find(params.text(0));
  std::array<std::string, 3> parts;
  if (hit == std::string::npos) {
    parts[from_right ? 2 : 0] = text;
  } else {
    parts = {text.substr(0, hit), params.text(0), text.substr(hit + params.text(0).size())};
  }
  return host.heap.tuple({host.heap.string(parts[0]), host.heap.string(parts[1]), host.heap.string(parts[2])});
}

template <class Predicate>
Value all_chars(Host& host, const Value& self, Predicate predicate) {
  const std::string& text = self.text();
  host.budget().touch(text.size());
  bool ok = !text.empty();
  for (size_t pos = 0; pos < text.size() && ok;) {
    const CodePoint c = code_point_at(text, pos);
    ok = predicate(c.value);
    pos += static_cast<size_t>(c.num_bytes);
  }
  return Value::boolean(ok);
}

// isupper/islower: at least one cased character and none of the other case.
Value cased(const Value& self, bool (*wanted)(char32_t), bool (*refused)(char32_t)) {
  const std::string& text = self.text();
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = code_point_at(text, pos);
    if (refused(c.value)) return Value::boolean(false);
    any = any || wanted(c.value);
    pos += static_cast<size_t>(c.num_bytes);
  }
  return Value::boolean(any);
}

Value pad(Host& host, const Value& self, CallValues& args, std::string_view name) {
  const Params params(name, args, {"width", "fillchar"});
  params.at(0);
  const std::string fill = params.text(1, " ");
  if (count_chars(fill) != 1) fault("TypeError", "The fill character must be exactly one character long");
  const Int missing = params.integer(0, 0) - self.string().num_chars;
  if (missing <= 0) return self;
  if (missing > (static_cast<Int>(1) << 40)) fault("LimitError", "template uses more memory than allowed");
  host.budget().check_room(static_cast<size_t>(missing) * fill.size() + self.text().size());
  host.budget().touch(static_cast<size_t>(missing));
  const Int width = params.integer(0, 0);
  const Int left = name == "rjust" ? missing : (name == "ljust" ? 0 : missing / 2 + (missing & width & 1));
  std::string out;
  for (Int i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (Int i = left; i < missing; ++i) out += fill;
  return host.heap.string_like(self, std::move(out));
}

Value splitlines(Host& host, const Value& self, CallValues& args) {
  const Params params("splitlines", args, {"keepends"});
  const std::string& text = self.text();
  host.budget().touch(text.size());
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = code_point_at(text, pos);
    size_t end = pos + static_cast<size_t>(c.num_bytes);
    const bool breaks = (c.value >= 10 && c.value <= 13) || (c.value >= 0x1c && c.value <= 0x1e) || c.value == 0x85 || c.value == 0x2028 ||
                        c.value == 0x2029;
    if (breaks) {
      if (c.value == '\r' && end < text.size() && text[end] == '\n') ++end;
      parts.push_back(std::string_view(text).substr(begin, (params.flag(0, false) ? end : pos) - begin));
      begin = end;
    }
    pos = end;
  }
  if (begin < text.size()) parts.push_back(std::string_view(text).substr(begin));
  return strings(host, self, parts);
}

Value replace_method(Host& host, const Value& self, CallValues& args) {
  const Params params("replace", args, {"old", "new", "count"});
  const auto limit = static_cast<int64_t>(std::clamp(params.integer(2, -1), static_cast<Int>(-1), static_cast<Int>(1) << 40));
  host.budget().touch(self.text().size());
  // The most it can grow: every hit replaced.
  const size_t hits = self.text().size() / std::max<size_t>(1, params.text(0).size()) + 1;
  host.budget().check_room(self.text().size() + (params.text(1).size() > 1024 ? hits * params.text(1).size() / 64 : 0));
  size_t count = 0;
  if (!params.text(0).empty()) {
    for (size_t at = self.text().find(params.text(0)); at != std::string::npos;
         at = self.text().find(params.text(0), at + params.text(0).size()))
      ++count;
  } else {
    count = hits;
  }
  host.budget().touch(count * params.text(1).size());
  host.budget().check_room(self.text().size() + count * params.text(1).size());
  return host.heap.string_like(self, replace_all(self.text(), params.text(0), params.text(1), limit));
}

Value join_method(Host& host, const Value& self, CallValues& args) {
  const Params params("join", args, {"iterable"});
  std::string out;
  size_t i = 0;
  for (const Value& item : iterate(host.heap, params.at(0))) {
    if (!item.is_string()) fault("TypeError", "sequence item {}: expected str instance, {} found", i, type_name(item));
    if (i++ > 0) append_str(host.budget(), self, out);
    append_str(host.budget(), item, out);
  }
  return host.heap.string_like(self, std::move(out));
}

Value unchanged_args(Host& host, const Value& self, CallValues& args, std::string_view name, std::string (*convert)(std::string_view)) {
  const Params params(name, args, {});
  host.budget().touch(self.text().size() * 4);
  host.budget().check_room(self.text().size() * 2);
  return host.heap.string_like(self, convert(self.text()));
}

#define SELF_ARGS []([[maybe_unused]] Host & host, const Value& self, CallValues& args) -> Value

const std::map<std::string_view, MethodBody>& string_methods() {
  static const std::map<std::string_view, MethodBody> kMethods = {
      {"strip", SELF_ARGS{return strip_method(host, self, args, Side::kBoth, "strip");
}
}  // namespace
, {"lstrip", SELF_ARGS{return strip_method(host, self, args, Side::kLeft, "lstrip");
}  // namespace ingot::text::jinja
}
, {"rstrip", SELF_ARGS{return strip_method(host, self, args, Side::kRight, "rstrip");
}
}
, {"split", SELF_ARGS{return split_method(host, self, args, false);
}
}
, {"rsplit", SELF_ARGS{return split_method(host, self, args, true);
}
}
, {"startswith", SELF_ARGS{return Value::boolean(affix(host, self, args, true));
}
}
, {"endswith", SELF_ARGS{return Value::boolean(affix(host, self, args, false));
}
}
, {"find", SELF_ARGS{return Value::integer(find_in(host, self, args, false, "find"));
}
}
, {"rfind", SELF_ARGS{return Value::integer(find_in(host, self, args, true, "rfind"));
}
}
, {"index", SELF_ARGS{return index_of(host, self, args, false, "index");
}
}
, {"rindex", SELF_ARGS{return index_of(host, self, args, true, "rindex");
}
}
, {"partition", SELF_ARGS{return partition(host, self, args, false);
}
}
, {"rpartition", SELF_ARGS{return partition(host, self, args, true);
}
}
, {"upper", SELF_ARGS{return unchanged_args(host, self, args, "upper", to_upper);
}
}
, {"lower", SELF_ARGS{return unchanged_args(host, self, args, "lower", to_lower);
}
}
, {"capitalize", SELF_ARGS{return unchanged_args(host, self, args, "capitalize", capitalize);
}
}
, {"title", SELF_ARGS{return unchanged_args(host, self, args, "title", title);
}
}
, {"replace", SELF_ARGS{return replace_method(host, self, args);
}
}
, {"join", SELF_ARGS{return join_method(host, self, args);
}
}
, {"splitlines", SELF_ARGS{return splitlines(host, self, args);
}
}
, {"center", SELF_ARGS{return pad(host, self, args, "center");
}
}
, {"ljust", SELF_ARGS{return pad(host, self, args, "ljust");
}
}
, {"rjust", SELF_ARGS{return pad(host, self, args, "rjust");
}
}
, {"format", SELF_ARGS{return host.heap.string_like(self, brace_format(host, self.text(), args));
}
}
, {"isspace", SELF_ARGS{return Params("isspace", args, {}), all_chars(host, self, is_space);
}
}
, {"isalpha", SELF_ARGS{return Params("isalpha", args, {}), all_chars(host, self, is_alpha);
}
}
, {"isdigit", SELF_ARGS{return Params("isdigit", args, {}), all_chars(host, self, is_digit);
}
}
, {"isalnum", SELF_ARGS{return Params("isalnum", args, {}), all_chars(host, self, [](char32_t c) { return is_alpha(c) || is_digit(c); });
}
}
, {"isupper", SELF_ARGS{return host.budget().touch(self.text().size()), Params("isupper", args, {}), cased(self, is_upper, is_lower);
}
}
, {"islower", SELF_ARGS{return host.budget().touch(self.text().size()), Params("islower", args, {}), cased(self, is_lower, is_upper);
}
}
, {"count", SELF_ARGS{const Params params("count", args, {"sub"});
host.budget().touch(self.text().size());
if (params.text(0).empty()) return Value::integer(self.string().num_chars + 1);
int64_t count = 0;
for (size_t at = self.text().find(params.text(0)); at != std::string::npos;
     at = self.text().find(params.text(0), at + params.text(0).size()))
  ++count;
return Value::integer(count);
}
}
, {"removeprefix", SELF_ARGS{const Params params("removeprefix", args, {"prefix"});
return self.text().starts_with(params.text(0)) ? host.heap.string_like(self, self.text().substr(params.text(0).size())) : self;
}
}
, {"removesuffix", SELF_ARGS{const Params params("removesuffix", args, {"suffix"});
return self.text().ends_with(params.text(0))
           ? host.heap.string_like(self, self.text().substr(0, self.text().size() - params.text(0).size()))
           : self;
}
}
,
}
;
return kMethods;
}

const std::map<std::string_view, MethodBody>& dict_methods() {
  static const std::map<std::string_view, MethodBody> kMethods = {{"get", SELF_ARGS{const Params params("get", args, {"key", "default"});
  const Value* found = self.dict().find(params.at(0));

  return found != nullptr ? *found : params.get(1, Value::none());
}
}
, {"keys", SELF_ARGS{const Params params("keys", args, {});
return host.heap.iterator("dict_keys", iterate(host.heap, self), false);
}
}
, {"values", SELF_ARGS{const Params params("values", args, {});
host.budget().step(static_cast<int64_t>(self.dict().entries.size()));
Values values;
for (const auto& entry : self.dict().entries) values.push_back(entry.second);
return host.heap.iterator("dict_values", std::move(values), false);
}
}
, {"items", SELF_ARGS{const Params params("items", args, {});
host.budget().step(static_cast<int64_t>(self.dict().entries.size()));
Values values;
for (const auto& [key, value] : self.dict().entries) values.push_back(host.heap.tuple({key, value}));
return host.heap.iterator("dict_items", std::move(values), false);
}
}
, {"copy", SELF_ARGS{return Params("copy", args, {}), host.budget().step(), self;
}
}
,
}
;
return kMethods;
}

const std::map<std::string_view, MethodBody>& list_methods() {
  static const std::map<std::string_view, MethodBody> kMethods = {{"count", SELF_ARGS{const Params params("count", args, {"value"});
  return Value::integer(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& v) { return equal(host.budget(), v, params.at(0)); }));
}
}
, {"index", SELF_ARGS{const Params params("index", args, {"value"});
for (size_t i = 0; i < self.items().size(); ++i) {
  if (equal(host.budget(), self.items()[i], params.at(0))) return Value::integer(static_cast<Int>(i));
}
fault("ValueError", "{} is not in {}", repr(host.budget(), params.at(0)), type_name(self));
}
}
, {"copy", SELF_ARGS{return Params("copy", args, {}), host.budget().step(), self;
}
}
,
}
;
return kMethods;
}

const std::map<std::string_view, MethodBody>& loop_methods() {
  static const std::map<std::string_view, MethodBody> kMethods = {
      {"cycle", SELF_ARGS{

                    if (args.positional.empty()) fault("TypeError", "no items for cycling given");
  return args.positional[self.get<Loop>().index0 % args.positional.size()];
}
}
, {"changed", SELF_ARGS{auto& loop = self.get<Loop>();
const bool same = loop.has_changed && equal(host.budget(), host.heap.tuple(loop.changed), host.heap.tuple(args.positional));
loop.changed = args.positional;
loop.has_changed = true;
return Value::boolean(!same);
}
}
,
}
;
return kMethods;
}

#undef SELF_ARGS

const std::map<std::string_view, MethodBody>* methods_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kString: return &string_methods();
    case Kind::kDict: return &dict_methods();
    case Kind::kList:
    case Kind::kTuple: return &list_methods();
    case Kind::kLoop: return &loop_methods();
    default: return nullptr;
  }
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  const auto* methods = methods_of(value);
  return methods != nullptr && methods->contains(name) && !(value.is(Kind::kTuple) && name == "copy");
}

bool is_unsafe_method(const Value& value, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kList = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  static constexpr std::array<std::string_view, 5> kDict = {"clear", "pop", "popitem", "setdefault", "update"};
  if (value.is(Kind::kList)) return std::find(kList.begin(), kList.end(), name) != kList.end();
  if (value.is(Kind::kDict)) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return false;
}

Value call_method(Host& host, const Method& method, CallValues args) {
  return methods_of(method.self)->at(method.name)(host, method.self, args);
}

}  // namespace ingot::text::jinja
