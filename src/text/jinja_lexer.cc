#include "text/jinja_lexer.h"

#include <array>
#include <cstdlib>

#include "text/jinja_text.h"

namespace ingot::text::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80; }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_decimal(c); }

int digit_value(char c) {
  if (is_decimal(c)) return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

class Lexer {
 public:
  Lexer(std::string_view source, int& line) : line_(line) {
    // Every kind of line end becomes \n; one at the very end is dropped (keep_trailing_newline is off).
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    line_ = 1;
    while (pos_ < source_.size()) root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view text) const { return std::string_view(source_).substr(pos_, text.size()) == text; }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(size_t num_bytes) {
    for (size_t i = 0; i < num_bytes; ++i) line_ += source_[pos_ + i] == '\n' ? 1 : 0;
    pos_ += num_bytes;
    line_starting_ = num_bytes > 0 ? source_[pos_ - 1] == '\n' : line_starting_;
  }

  size_t space_at(size_t pos) const {
    size_t end = pos;
    while (end < source_.size()) {
      const CodePoint c = code_point_at(source_, end);
      if (!is_space(c.value)) break;
      end += static_cast<size_t>(c.num_bytes);
    }
    return end - pos;
  }

  // Text up to a tag, white space before the tag treated as its sign and lstrip_blocks say.
  void add_data(std::string_view text, char sign, bool lstrip) {
    if (sign == '-') {
      text = strip(text, Side::kRight, nullptr);
    } else if (sign != '+' && lstrip) {
      const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0
      if ((line_begin > 0 || line_starting_) && line_begin + space_at_view(text.substr(line_begin)) == text.size() &&
          line_begin < text.size()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  static size_t space_at_view(std::string_view text) { return text.size() - strip(text, Side::kLeft, nullptr).size(); }

  void root() {
    size_t tag = pos_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == source_.npos || tag + 1 >= source_.size()) {
        const std::string rest = source_.substr(pos_);
        if (!rest.empty()) add(TokenKind::kText, rest);
        advance(rest.size());
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : ' ';
    add_data(std::string_view(source_).substr(pos_, tag - pos_), sign, type != '{');
    advance(tag - pos_);
    const size_t head = sign == ' ' ? 2 : 3;
    if (type == '#') {
      comment(head);
    } else if (type == '%' && raw_begin(head)) {
      raw_body();
    } else {
      add(type == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
      advance(head);
      tag_body(type == '{');
    }
  }

  // The end of a block or comment at pos_: its length with the white space it takes along, 0 when there is none here.
  size_t tag_end(std::string_view close) const {
    const std::string_view rest = std::string_view(source_).substr(pos_);
    if (rest.substr(0, 1) == "-" && rest.substr(1, close.size()) == close) return 1 + close.size() + space_at(pos_ + 1 + close.size());
    if (rest.substr(0, 1) == "+" && rest.substr(1, close.size()) == close) return 1 + close.size();
    if (rest.substr(0, close.size()) != close) return 0;
    return close.size() + (rest.substr(close.size(), 1) == "\n" ? 1 : 0);  // trim_blocks
  }

  void comment(size_t head) {
    advance(head);
    const size_t end = source_.find("#}", pos_);
    if (end == source_.npos) fault("TemplateSyntaxError", "Missing end of comment tag");
    const bool has_sign = end > pos_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - pos_ - (has_sign ? 1 : 0));
    advance(tag_end("#}"));
  }

  bool raw_begin(size_t head) {
    size_t pos = pos_ + head;
    pos += space_at(pos);
    if (std::string_view(source_).substr(pos, 3) != "raw") return false;
    pos += 3;
    pos += space_at(pos);
    if (std::string_view(source_).substr(pos, 3) == "-%}") {
      pos += 3;
      pos += space_at(pos);
    } else if (std::string_view(source_).substr(pos, 2) == "%}") {
      pos += 2;
    } else {
      return false;
    }
    advance(pos - pos_);
    return true;
  }

  void raw_body() {
    const size_t begin = pos_;
    for (size_t tag = source_.find("{%", begin); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      size_t pos = tag + 2;
      char sign = ' ';
      if (pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')) sign = source_[pos++];
      pos += space_at(pos);
      if (std::string_view(source_).substr(pos, 6) != "endraw") continue;
      pos += 6;
      pos += space_at(pos);
      const size_t saved = pos_;
      pos_ = pos;
      const size_t end = tag_end("%}");
      pos_ = saved;
      if (end == 0) continue;
      add_data(std::string_view(source_).substr(begin, tag - begin), sign, true);
      advance(pos + end - pos_);
      return;
    }
    fault("TemplateSyntaxError", "Missing end of raw directive");
  }

  void tag_body(bool print) {
    std::vector<char> open;
    while (true) {
      if (pos_ >= source_.size()) fault("TemplateSyntaxError", "the template ends inside a {} tag", print ? "{{ }}" : "{% %}");
      if (open.empty()) {
        size_t end = 0;
        if (print) {
          if (at("}}")) end = 2;
          if (at("-}}")) end = 3 + space_at(pos_ + 3);
        } else {
          end = tag_end("%}");
        }
        if (end > 0) {
          add(print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
          advance(end);
          return;
        }
      }
      if (const size_t space = space_at(pos_); space > 0) {
        advance(space);
        continue;
      }
      const char c = source_[pos_];
      if (is_decimal(c)) {
        number();
      } else if (is_name_start(c)) {
        size_t end = pos_;
        while (end < source_.size() && is_name_char(source_[end])) ++end;
        add(TokenKind::kName, source_.substr(pos_, end - pos_));
        advance(end - pos_);
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operator_token(open);
      }
    }
  }

  size_t digits_from(size_t pos) const {
    size_t end = pos;
    while (end < source_.size() &&
           (is_decimal(source_[end]) || (source_[end] == '_' && end > pos && end + 1 < source_.size() && is_decimal(source_[end + 1]))))
      ++end;
    return end;
  }

  void number() {
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    size_t end = digits_from(pos_);
    bool real = false;
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_decimal(source_[end + 1])) {
        end = digits_from(end + 1);
        real = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_decimal(source_[exponent])) {
          end = digits_from(exponent);
          real = true;
        }
      }
    }
    if (!real && source_[pos_] == '0' && pos_ + 2 < source_.size()) {
      const char base_char = static_cast<char>(source_[pos_ + 1] | 0x20);
      const int base = base_char == 'x' ? 16 : (base_char == 'o' ? 8 : (base_char == 'b' ? 2 : 0));
      if (base != 0 && digit_value(source_[pos_ + 2]) < base) {
        end = pos_ + 2;
        while (end < source_.size() && (digit_value(source_[end]) < base || source_[end] == '_')) ++end;
        integer(pos_ + 2, end, base);
        return;
      }
    }
    if (!real) {
      integer(pos_, end, 10);
      return;
    }
    std::string digits;
    for (size_t i = pos_; i < end; ++i) {
      if (source_[i] != '_') digits += source_[i];
    }
    Token token{TokenKind::kFloat, line_, digits};
    token.real = std::strtod(digits.c_str(), nullptr);
    tokens_.push_back(std::move(token));
    advance(end - pos_);
  }

  void integer(size_t begin, size_t end, int base) {
    Token token{TokenKind::kInteger, line_, source_.substr(pos_, end - pos_)};
    for (size_t i = begin; i < end; ++i) {
      if (source_[i] == '_') continue;
      if (__builtin_mul_overflow(token.integer, static_cast<Int>(base), &token.integer) ||
          __builtin_add_overflow(token.integer, static_cast<Int>(digit_value(source_[i])), &token.integer)) {
        fault("TemplateSyntaxError", "unsupported: integer literal of more than 127 bits");
      }
    }
    tokens_.push_back(std::move(token));
    advance(end - pos_);
  }

  void string(char quote) {
    const int begin_line = line_;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      fault("TemplateSyntaxError", "unexpected char {} (a string that does not end)", python_repr(std::string(1, quote)));
    std::string text;
    for (size_t i = pos_ + 1; i < end; ++i) {
      if (source_[i] == '\\') {
        i = escape(i + 1, end, text);
      } else {
        text += source_[i];
      }
    }
    tokens_.push_back({TokenKind::kString, begin_line, std::move(text)});
    advance(end + 1 - pos_);
  }

  // Decodes the escape whose letter is at `i`; returns the position of its last byte.
  size_t escape(size_t i, size_t end, std::string& out) {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[i];
    if (c == '\n') return i;
    if (const size_t at = kLetters.find(c); at != kLetters.npos) {
      out += kMeaning[at];
      return i;
    }
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t last = i;
      for (size_t k = i; k < end && k < i + 3 && source_[k] >= '0' && source_[k] <= '7'; ++k) {
        code = code * 8 + static_cast<char32_t>(source_[k] - '0');
        last = k;
      }
      append_utf8(code, out);
      return last;
    }
    const size_t width = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
    if (width > 0) {
      const auto [code, last] = hex(i + 1, end, width);
      if (code >= 0xd800 && code < 0xdc00 && width == 4 && last + 2 < end && source_[last + 1] == '\\' && source_[last + 2] == 'u') {
        const auto [low, low_last] = hex(last + 3, end, 4);
        if (low >= 0xdc00 && low < 0xe000)
          fault("TemplateSyntaxError", "unsupported: a surrogate pair in a string literal (write \\U0001XXXX)");
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        fault("TemplateSyntaxError", "unsupported: \\{} escape of a code that is no character", c);
      append_utf8(code, out);
      return last;
    }
    if (c == 'N') fault("TemplateSyntaxError", "unsupported: \\N{{...}} escape");
    out += '\\';
    out += c;
    return i;
  }

  std::pair<char32_t, size_t> hex(size_t begin, size_t end, size_t width) const {
    char32_t code = 0;
    for (size_t k = begin; k < begin + width; ++k) {
      if (k >= end || digit_value(source_[k]) >= 16) fault("TemplateSyntaxError", "truncated \\x, \\u or \\U escape");
      code = code * 16 + static_cast<char32_t>(digit_value(source_[k]));
    }
    return {code, begin + width - 1};
  }

  void operator_token(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 25> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                                    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view op : kOperators) {
      if (!at(op)) continue;
      if (op == "(") open.push_back(')');
      if (op == "[") open.push_back(']');
      if (op == "{") open.push_back('}');
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty()) fault("TemplateSyntaxError", "unexpected '{}'", op);
        if (open.back() != op[0]) fault("TemplateSyntaxError", "unexpected '{}', expected '{}'", op, open.back());
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      advance(op.size());
      return;
    }
    fault("TemplateSyntaxError", "unexpected char {}", python_repr(std::string_view(source_).substr(pos_, 1)));
  }

  std::string source_;
  size_t pos_ = 0;
  int& line_;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int& error_line) { return Lexer(source, error_line).run(); }

}  // namespace ingot::text::jinja
