#include "text/jinja_text.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

namespace ingot::text::jinja {

CodePoint code_point_at(std::string_view text, size_t pos) {
  utf8proc_int32_t code = 0;
  const auto num = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + pos),
                                    static_cast<utf8proc_ssize_t>(text.size() - pos), &code);
  if (num <= 0) return {static_cast<unsigned char>(text[pos]), 1};
  return {static_cast<char32_t>(code), static_cast<int>(num)};
}

void append_utf8(char32_t code, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto num = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(num));
}

int64_t count_chars(std::string_view text) {
  int64_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    pos += static_cast<unsigned char>(text[pos]) < 0x80 ? 1 : static_cast<size_t>(code_point_at(text, pos).num_bytes);
  }
  return count;
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += static_cast<size_t>(code_point_at(text, pos).num_bytes);
  return pos;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }
bool is_title(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LT; }

}  // namespace

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

bool is_alpha(char32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }

namespace {

bool in_set(std::string_view text, size_t pos, int num_bytes, const std::string* chars) {
  if (chars == nullptr) return is_space(code_point_at(text, pos).value);
  const std::string_view one = text.substr(pos, static_cast<size_t>(num_bytes));
  for (size_t i = 0; i < chars->size();) {
    const auto len = static_cast<size_t>(code_point_at(*chars, i).num_bytes);
    if (std::string_view(*chars).substr(i, len) == one) return true;
    i += len;
  }
  return false;
}

// Start of the character that ends just before `end`.
size_t previous_char(std::string_view text, size_t end) {
  for (size_t back = 1; back <= 4 && back <= end; ++back) {
    if ((static_cast<unsigned char>(text[end - back]) & 0xc0) == 0x80) continue;  // inside a character
    const CodePoint c = code_point_at(text, end - back);
    if (static_cast<size_t>(c.num_bytes) == back) return end - back;
  }
  return end - 1;
}

}  // namespace

std::string_view strip(std::string_view text, Side side, const std::string* chars) {
  size_t begin = 0;
  size_t end = text.size();
  if (side != Side::kRight) {
    while (begin < end) {
      const int num = code_point_at(text, begin).num_bytes;
      if (!in_set(text, begin, num, chars)) break;
      begin += static_cast<size_t>(num);
    }
  }
  if (side != Side::kLeft) {
    while (end > begin) {
      const size_t start = previous_char(text, end);
      if (start < begin || !in_set(text, start, static_cast<int>(end - start), chars)) break;
      end = start;
    }
  }
  return text.substr(begin, end - begin);
}

namespace {

void append_upper(char32_t code, std::string& out) {
  // The one common letter whose capital is two letters; utf8proc maps single code points only.
  if (code == 0xdf) {
    out += "SS";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), out);
  }
}

void append_lower(char32_t code, std::string& out) {
  append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
}

template <class Each>
std::string transform(std::string_view text, Each each) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = code_point_at(text, pos);
    const bool stray = c.num_bytes == 1 && static_cast<unsigned char>(text[pos]) >= 0x80;
    if (stray) {
      out += text[pos];
    } else {
      each(c.value, out);
    }
    pos += static_cast<size_t>(c.num_bytes);
  }
  return out;
}

}  // namespace

std::string to_upper(std::string_view text) { return transform(text, append_upper); }
std::string to_lower(std::string_view text) { return transform(text, append_lower); }

std::string capitalize(std::string_view text) {
  bool first = true;
  return transform(text, [&](char32_t code, std::string& out) {
    if (first) {
      append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))), out);
    } else {
      append_lower(code, out);
    }
    first = false;
  });
}

std::string title(std::string_view text) {
  bool in_word = false;
  return transform(text, [&](char32_t code, std::string& out) {
    if (in_word) {
      append_lower(code, out);
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))), out);
    }
    in_word = is_upper(code) || is_lower(code) || is_title(code);
  });
}

std::string python_repr(std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = code_point_at(text, pos);
    if (c.value == static_cast<char32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (is_printable(c.value)) {
      out.append(text.substr(pos, static_cast<size_t>(c.num_bytes)));
    } else if (c.value < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c.value));
    } else if (c.value < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c.value));
    }
    pos += static_cast<size_t>(c.num_bytes);
  }
  out += quote;
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  // Shortest digits are the same in both forms; Python writes exponents outside -4 <= e < 16.
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t digits_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + digits_at, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed).ptr;
  std::string fixed(buffer.data(), static_cast<size_t>(end - buffer.data()));
  if (fixed.find('.') == fixed.npos) fixed += ".0";
  return fixed;
}

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

void append_json_string(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = static_cast<unsigned char>(text[pos]);
    if (byte < 0x80 || !ensure_ascii) {
      ++pos;
      switch (byte) {
        case '"': out += "\\\""; break;
        case '\\': out += "\\\\"; break;
        case '\n': out += "\\n"; break;
        case '\r': out += "\\r"; break;
        case '\t': out += "\\t"; break;
        case '\b': out += "\\b"; break;
        case '\f': out += "\\f"; break;
        default:
          if (byte < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
          } else {
            out += static_cast<char>(byte);
          }
      }
      continue;
    }
    const CodePoint c = code_point_at(text, pos);
    pos += static_cast<size_t>(c.num_bytes);
    auto code = static_cast<uint32_t>(c.value);
    if (code >= 0x10000) {
      code -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
    } else {
      out += fmt::format("\\u{:04x}", code);
    }
  }
  out += '"';
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t max_count) {
  std::string out;
  int64_t count = 0;
  size_t pos = 0;
  if (from.empty()) {
    // Python puts `to` before every character and at the end.
    while (max_count < 0 || count < max_count) {
      out += to;
      ++count;
      if (pos >= text.size()) return out;
      const auto num = static_cast<size_t>(code_point_at(text, pos).num_bytes);
      out += text.substr(pos, num);
      pos += num;
    }
    out += text.substr(pos);
    return out;
  }
  while (max_count < 0 || count < max_count) {
    const size_t hit = text.find(from, pos);
    if (hit == text.npos) break;
    out += text.substr(pos, hit - pos);
    out += to;
    pos = hit + from.size();
    ++count;
  }
  out += text.substr(pos);
  return out;
}

std::vector<std::string_view> split_white(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::kLeft, nullptr);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (is_space(c.value)) break;
      end += static_cast<size_t>(c.num_bytes);
    }
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Side::kLeft, nullptr);
  }
  return parts;
}

std::vector<std::string_view> split_on(std::string_view text, std::string_view separator, int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t pos = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t hit = text.find(separator, pos);
    if (hit == text.npos) break;
    parts.push_back(text.substr(pos, hit - pos));
    pos = hit + separator.size();
  }
  parts.push_back(text.substr(pos));
  return parts;
}

std::string format_time(int64_t unix_seconds, const std::string& format) {
  if (format.empty()) return {};
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return {};
  // strftime gives 0 both for "too small" and for an empty result: a leading mark makes the result never empty.
  const std::string marked = "x" + format;
  std::string out(64 + 32 * marked.size(), '\0');
  const size_t num = std::strftime(out.data(), out.size(), marked.c_str(), &utc);
  out.resize(num);
  return num == 0 ? std::string{} : out.substr(1);
}

}  // namespace ingot::text::jinja
