#include "text/bpe_json.h"

#include <charconv>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr size_t kMaxDepth = 64;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

char BpeJsonReader::peek() {
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool BpeJsonReader::take(char c) {
  if (peek() != c || at_ >= text_.size()) return false;
  ++at_;
  return true;
}

Result<> BpeJsonReader::expect(char c, std::string_view place) {
  if (take(c)) return {};
  if (at_ >= text_.size()) return fail("{}: the file ends inside {}, where '{}' was expected", what_, place, c);
  return fail("{}: {}: expected '{}' at byte {}", what_, place, c, at_);
}

Result<std::string_view> BpeJsonReader::string(std::string_view place, std::string& scratch) {
  if (!take('"')) return fail("{}: {}: expected a string at byte {}", what_, place, at_);
  const size_t start = at_;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') return text_.substr(start, at_++ - start);
    if (c == '\\') {
      scratch.assign(text_, start, at_ - start);
      INGOT_TRY(unescape(place, scratch));
      return std::string_view(scratch);
    }
    if (static_cast<unsigned char>(c) < 0x20) return fail("{}: {}: control character in a string at byte {}", what_, place, at_);
    ++at_;
  }
  return fail("{}: the file ends inside a string of {}", what_, place);
}

// From the first backslash to the closing quote.
Result<> BpeJsonReader::unescape(std::string_view place, std::string& scratch) {
  const auto hex4 = [this](uint32_t& value) {
    if (text_.size() - at_ < 4) return false;
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, first + 4, value, 16);
    if (error != std::errc() || end != first + 4) return false;
    at_ += 4;
    return true;
  };
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return {};
    if (static_cast<unsigned char>(c) < 0x20) return fail("{}: {}: control character in a string at byte {}", what_, place, at_ - 1);
    if (c != '\\') {
      scratch.push_back(c);
      continue;
    }
    const char escape = at_ < text_.size() ? text_[at_++] : '\0';
    switch (escape) {
      case '"':
      case '\\':
      case '/': scratch.push_back(escape); break;
      case 'b': scratch.push_back('\b'); break;
      case 'f': scratch.push_back('\f'); break;
      case 'n': scratch.push_back('\n'); break;
      case 'r': scratch.push_back('\r'); break;
      case 't': scratch.push_back('\t'); break;
      case 'u': {
        uint32_t unit = 0, low = 0;
        if (!hex4(unit)) return fail("{}: {}: bad \\u escape before byte {}", what_, place, at_);
        if (unit >= 0xd800 && unit < 0xdc00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          if (!hex4(low) || low < 0xdc00 || low >= 0xe000) return fail("{}: {}: half a surrogate pair before byte {}", what_, place, at_);
          unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
        }
        if (unit >= 0xd800 && unit < 0xe000) return fail("{}: {}: half a surrogate pair before byte {}", what_, place, at_);
        append_code_point(unit, scratch);
        break;
      }
      default: return fail("{}: {}: unknown escape in a string before byte {}", what_, place, at_);
    }
  }
  return fail("{}: the file ends inside a string of {}", what_, place);
}

Result<int64_t> BpeJsonReader::integer(std::string_view place) {
  peek();
  int64_t value = 0;
  const char* first = text_.data() + at_;
  const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
  const bool fraction = error == std::errc() && end != text_.data() + text_.size() && (*end == '.' || *end == 'e' || *end == 'E');
  if (error != std::errc() || fraction) return fail("{}: {}: expected a whole number at byte {}", what_, place, at_);
  at_ += static_cast<size_t>(end - first);
  return value;
}

Result<std::string_view> BpeJsonReader::raw_value(std::string_view place) {
  peek();
  const size_t start = at_;
  std::string open;  // closing brackets still to come
  std::string scratch;
  do {
    const char c = peek();
    if (c == '"') {
      INGOT_TRY(string(place, scratch));
    } else if (c == '{' || c == '[') {
      if (open.size() >= kMaxDepth) return fail("{}: {}: nested more than {} deep", what_, place, kMaxDepth);
      open.push_back(c == '{' ? '}' : ']');
      ++at_;
      continue;
    } else if (c == '}' || c == ']') {
      if (open.empty() || open.back() != c) return fail("{}: {}: unexpected '{}' at byte {}", what_, place, c, at_);
      open.pop_back();
      ++at_;
    } else if ((c == ',' || c == ':') && !open.empty()) {
      ++at_;
    } else {
      const size_t word = at_;
      while (at_ < text_.size() && !is_blank(text_[at_]) && std::string_view(",:{}[]\"").find(text_[at_]) == std::string_view::npos) ++at_;
      if (at_ == word) return fail("{}: {}: a value is missing at byte {}", what_, place, at_);
    }
  } while (!open.empty());
  return text_.substr(start, at_ - start);
}

}  // namespace ingot::text
