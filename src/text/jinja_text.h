// Python's text functions on UTF-8: repr, white space, case, number printing, HTML escaping. Pure functions; used by the jinja_* files.
// Invalid UTF-8 never breaks them: a stray byte counts as one character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::text::jinja {

// The character at byte `pos`: its code point and length in bytes (>= 1). A stray byte gives itself.
struct CodePoint {
  char32_t value;
  int num_bytes;
};
CodePoint code_point_at(std::string_view text, size_t pos);
void append_utf8(char32_t code, std::string& out);
int64_t count_chars(std::string_view text);
// Byte offset of character `index` (0..count), walking from the start.
size_t byte_offset(std::string_view text, int64_t index);

bool is_space(char32_t code);      // str.isspace
bool is_printable(char32_t code);  // str.isprintable
bool is_alpha(char32_t code);
bool is_digit(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);

enum class Side : uint8_t { kLeft, kRight, kBoth };
// str.strip: of white space when `chars` is null.
std::string_view strip(std::string_view text, Side side, const std::string* chars);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title

std::string python_repr(std::string_view text);
std::string float_repr(double value);  // Python's repr: 1.0, 1e+16, nan, inf
std::string html_escape(std::string_view text);
// A JSON string literal as json.dumps writes it.
void append_json_string(std::string_view text, bool ensure_ascii, std::string& out);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t max_count);
std::vector<std::string_view> split_white(std::string_view text, int64_t max_splits);
std::vector<std::string_view> split_on(std::string_view text, std::string_view separator, int64_t max_splits);

// strftime of the C locale in UTC.
std::string format_time(int64_t unix_seconds, const std::string& format);

}  // namespace ingot::text::jinja
