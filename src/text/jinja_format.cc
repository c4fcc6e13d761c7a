// Python's two ways to format text: "%05.2f" % x and "{:>8}".format(x).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

constexpr Int kMaxPrecision = 1000;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool comma = false;
  Int width = 0;
  Int precision = -1;
  char type = 0;
};

Int read_number(std::string_view text, size_t& pos) {
  Int value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = std::min(value * 10 + (text[pos] - '0'), static_cast<Int>(1) << 40);
    ++pos;
  }
  return value;
}

std::string pad_to(Host& host, std::string body, const Spec& spec, char default_align, bool number) {
  const Int missing = spec.width - count_chars(body);
  if (missing <= 0) return body;
  host.budget().check_room(static_cast<size_t>(missing) * spec.fill.size() + body.size());
  host.budget().touch(static_cast<size_t>(missing));
  const char align = spec.align != 0 ? spec.align : default_align;
  Int left = align == '>' || align == '=' ? missing : (align == '^' ? missing / 2 : 0);
  std::string out;
  if (align == '=' && number && !body.empty() && (body[0] == '-' || body[0] == '+' || body[0] == ' ')) {
    out += body[0];
    body.erase(0, 1);
  }
  for (Int i = 0; i < left; ++i) out += spec.fill;
  out += body;
  for (Int i = left; i < missing; ++i) out += spec.fill;
  return out;
}

std::string in_base(Int magnitude, unsigned base, bool upper) {
  constexpr std::string_view kLower = "0123456789abcdef";
  constexpr std::string_view kUpper = "0123456789ABCDEF";
  std::string out;
  Int rest = magnitude;
  do {
    const auto digit = static_cast<size_t>(rest % base);
    out += upper ? kUpper[digit] : kLower[digit];
    rest /= base;
  } while (rest > 0);
  std::reverse(out.begin(), out.end());
  return out;
}

void add_commas(std::string& digits) {
  size_t end = digits.find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits.size();
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, ",");
}

// The digits of |value|, without sign and padding.
std::string number_body(const Value& value, const Spec& spec) {
  const char type = spec.type;
  if (value.is_integral() &&
      (type == 0 || type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o' || type == 'b' || type == 'n')) {
    const Int magnitude = value.as_int() < 0 ? -value.as_int() : value.as_int();
    const unsigned base = type == 'x' || type == 'X' ? 16 : (type == 'o' ? 8 : (type == 'b' ? 2 : 10));
    std::string digits = in_base(magnitude, base, type == 'X');
    if (spec.comma) add_commas(digits);
    if (spec.alternate && base != 10) digits = std::string("0") + type + digits;
    return digits;
  }
  double magnitude = std::fabs(value.as_real());
  if (spec.precision > kMaxPrecision) fault("ValueError", "precision larger than {}", int_text(kMaxPrecision));
  if (type == 0 && spec.precision < 0) return float_repr(magnitude);
  if (type == '%') magnitude *= 100;
  const char letter = type == 0 || type == 'n' ? 'g' : (type == '%' ? 'f' : type);
  if (std::string_view("eEfFgG").find(letter) == std::string_view::npos)
    fault("ValueError", "Unknown format code '{}' for object of type '{}'", type, type_name(value));
  const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", letter);
  std::array<char, 2048> buffer{};
  const int num =
      std::snprintf(buffer.data(), buffer.size(), format.c_str(), spec.precision < 0 ? 6 : static_cast<int>(spec.precision), magnitude);
  std::string digits(buffer.data(), static_cast<size_t>(std::clamp(num, 0, static_cast<int>(buffer.size()) - 1)));
  if (spec.comma) add_commas(digits);
  return type == '%' ? digits + "%" : digits;
}

std::string format_number(Host& host, const Value& value, const Spec& spec) {
  const bool negative = value.is_integral() ? value.as_int() < 0 : std::signbit(value.as_real());
  std::string body = number_body(value, spec);
  if (negative) {
    body.insert(0, "-");
  } else if (spec.sign != '-') {
    body.insert(0, 1, spec.sign);
  }
  return pad_to(host, std::move(body), spec, '>', true);
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const auto first = static_cast<size_t>(code_point_at(text, 0).num_bytes);
    if (first < text.size() && is_align(text[first])) {
      spec.fill = std::string(text.substr(0, first));
      spec.align = text[first];
      pos = first + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  if (pos < text.size() && (text[pos] == '+' || text[pos] == '-' || text[pos] == ' ')) spec.sign = text[pos++];
  if (pos < text.size() && text[pos] == '#') spec.alternate = ++pos > 0;
  if (pos < text.size() && text[pos] == '0') {
    if (spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    ++pos;
  }
  spec.width = read_number(text, pos);
  if (pos < text.size() && text[pos] == ',') spec.comma = ++pos > 0;
  if (pos < text.size() && text[pos] == '.') {
    ++pos;
    spec.precision = read_number(text, pos);
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) fault("ValueError", "Invalid format specifier {}", python_repr(text));
  return spec;
}

std::string format_value(Host& host, const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return str(host.budget(), value);
  const Spec spec = parse_spec(spec_text);
  if (value.is_number()) return format_number(host, value, spec);
  if (!value.is_string() && !value.is(Kind::kBool))
    fault("TypeError", "unsupported format string passed to {}.__format__", type_name(value));
  if (spec.type != 0 && spec.type != 's')
    fault("ValueError", "Unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
  if (spec.align == '=') fault("ValueError", "'=' alignment not allowed in string format specifier");
  std::string body = str(host.budget(), value);
  if (spec.precision >= 0 && spec.precision < count_chars(body)) body.resize(byte_offset(body, static_cast<int64_t>(spec.precision)));
  return pad_to(host, std::move(body), spec, '<', false);
}

// The value a replacement field names: 0, name, a.b, a[0].
Value field_value(Host& host, std::string_view field, const CallValues& args, size_t& automatic) {
  const size_t head_end = std::min(field.find_first_of(".["), field.size());
  const std::string_view head = field.substr(0, head_end);
  Value value;
  size_t digits = 0;
  const Int number = read_number(head, digits);
  if (head.empty() || digits == head.size()) {
    const Int index = head.empty() ? static_cast<Int>(automatic++) : number;
    if (index >= static_cast<Int>(args.positional.size()))
      fault("IndexError", "Replacement index {} out of range for positional args tuple", int_text(index));
    value = args.positional[static_cast<size_t>(index)];
  } else {
    const auto it = std::find_if(args.named.begin(), args.named.end(), [&](const auto& entry) { return entry.first == head; });
    if (it == args.named.end()) fault("KeyError", "{}", python_repr(head));
    value = it->second;
  }
  for (size_t pos = head_end; pos < field.size();) {
    host.budget().step();
    if (field[pos] == '.') {
      const size_t end = std::min(field.find_first_of(".[", pos + 1), field.size());
      value = get_attribute(host, value, std::string(field.substr(pos + 1, end - pos - 1)));
      pos = end;
      continue;
    }
    const size_t close = field.find(']', pos);
    if (field[pos] != '[' || close == field.npos) fault("ValueError", "Missing ']' in format string");
    const std::string_view key = field.substr(pos + 1, close - pos - 1);
    size_t used = 0;
    const Int index = read_number(key, used);
    value = get_item(host, value, used == key.size() && !key.empty() ? Value::integer(index) : host.heap.string(std::string(key)));
    pos = close + 1;
  }
  if (value.is_undefined() && value.object() != nullptr && value.get<Undefined>().fault_kind == "SecurityError") fail_undefined(value);
  return value;
}

}  // namespace

std::string brace_format(Host& host, const std::string& format, const CallValues& args) {
  std::string out;
  size_t automatic = 0;
  const auto emit = [&](std::string_view text) {
    host.budget().touch(text.size());
    host.budget().check_room(out.size() + text.size());
    out += text;
  };
  for (size_t pos = 0; pos < format.size();) {
    const size_t brace = format.find_first_of("{}", pos);
    emit(std::string_view(format).substr(pos, brace - pos));
    if (brace == format.npos) break;
    if (brace + 1 < format.size() && format[brace + 1] == format[brace]) {
      emit(std::string_view(format).substr(brace, 1));
      pos = brace + 2;
      continue;
    }
    if (format[brace] == '}') fault("ValueError", "Single '}}' encountered in format string");
    const size_t close = format.find('}', brace);
    if (close == format.npos) fault("ValueError", "expected '}}' before end of string");
    const std::string_view inside = std::string_view(format).substr(brace + 1, close - brace - 1);
    if (inside.find('{') != inside.npos) fault("ValueError", "unsupported: a format specifier that holds another field");
    const size_t colon = std::min(inside.find(':'), inside.size());
    std::string_view field = inside.substr(0, colon);
    const std::string_view spec = colon < inside.size() ? inside.substr(colon + 1) : std::string_view{};
    char conversion = 0;
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    Value value = field_value(host, field, args, automatic);
    if (conversion == 'r') value = host.heap.string(repr(host.budget(), value));
    if (conversion == 's') value = host.heap.string(str(host.budget(), value));
    emit(format_value(host, value, spec));
    pos = close + 1;
  }
  return out;
}

std::string percent_format(Host& host, const std::string& format, const Value& args) {
  std::string out;
  const auto emit = [&](std::string_view text) {
    host.budget().touch(text.size());
    host.budget().check_room(out.size() + text.size());
    out += text;
  };
  const Values single = {args};
  const Values& values = args.is(Kind::kTuple) ? args.items() : single;
  size_t used = 0;
  bool by_name = false;
  const auto next_value = [&]() -> const Value& {
    if (used >= values.size()) fault("TypeError", "not enough arguments for format string");
    return values[used++];
  };
  for (size_t pos = 0; pos < format.size();) {
    const size_t percent = format.find('%', pos);
    emit(std::string_view(format).substr(pos, percent - pos));
    if (percent == format.npos) break;
    pos = percent + 1;
    std::optional<Value> named;
    if (pos < format.size() && format[pos] == '(') {
      const size_t close = format.find(')', pos);
      if (close == format.npos) fault("ValueError", "incomplete format key");
      if (!args.is(Kind::kDict)) fault("TypeError", "format requires a mapping");
      const std::string key = format.substr(pos + 1, close - pos - 1);
      const Value* found = args.dict().find(std::string_view(key));
      if (found == nullptr) fault("KeyError", "{}", python_repr(key));
      named = *found;
      by_name = true;
      pos = close + 1;
    }
    Spec spec;
    bool zero = false;
    for (; pos < format.size() && std::string_view("-+ #0").find(format[pos]) != std::string_view::npos; ++pos) {
      switch (format[pos]) {
        case '-': spec.align = '<'; break;
        case '#': spec.alternate = true; break;
        case '0': zero = true; break;
        case '+': spec.sign = '+'; break;
        default: spec.sign = spec.sign == '+' ? '+' : ' ';
      }
    }
    spec.width = read_number(format, pos);
    if (pos < format.size() && format[pos] == '.') {
      ++pos;
      spec.precision = read_number(format, pos);
    }
    if (pos >= format.size()) fault("ValueError", "incomplete format");
    spec.type = format[pos++];
    if (spec.type == '%') {
      emit("%");
      continue;
    }
    const Value value = named ? *named : next_value();
    if (spec.type == 's' || spec.type == 'r') {
      std::string text = spec.type == 's' ? str(host.budget(), value) : repr(host.budget(), value);
      if (spec.precision >= 0 && spec.precision < count_chars(text)) text.resize(byte_offset(text, static_cast<int64_t>(spec.precision)));
      emit(pad_to(host, std::move(text), spec, '>', false));
      continue;
    }
    if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos)
      fault("ValueError", "unsupported format character '{}'", spec.type);
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_number()) fault("TypeError", "%{} format: a real number is required, not {}", spec.type, type_name(value));
    if (zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    const bool whole = std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    if (whole) spec.precision = -1;
    emit(format_number(host, whole ? to_integer(value, 10).value_or(value) : Value::real(value.as_real()), spec));
  }
  if (!by_name && used < values.size() && !args.is(Kind::kDict)) fault("TypeError", "not all arguments converted during string formatting");
  return out;
}

}  // namespace ingot::text::jinja
