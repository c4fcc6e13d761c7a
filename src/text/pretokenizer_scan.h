// Hand-written scanners for the three patterns that nearly all byte-level BPE files carry. Each gives exactly the matches of its
// pattern (tested against PCRE2 on random text); a file whose pattern differs by one character takes the general path.
#pragma once

#include <string_view>

#include "text/unicode_classes.h"
#include "text/utf8_text.h"

namespace ingot::text {

enum class KnownPattern { kNone, kGpt2, kCl100k, kQwen };

inline constexpr std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline KnownPattern known_pattern(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return KnownPattern::kGpt2;
  if (pattern == kCl100kPattern) return KnownPattern::kCl100k;
  if (pattern == kQwenPattern) return KnownPattern::kQwen;
  return KnownPattern::kNone;
}

class PretokenizerScan {
 public:
  PretokenizerScan(const UnicodeClasses& classes, std::string_view text) : classes_(classes), p_(text.data()), end_(p_ + text.size()) {}

  // Calls emit(piece) for every piece in order; pieces cover the text. Stops early when emit returns false.
  template <class Emit>
  bool run(KnownPattern pattern, Emit&& emit) {
    while (p_ < end_) {
      const char* next = pattern == KnownPattern::kGpt2 ? gpt2_piece() : cl100k_piece(pattern == KnownPattern::kQwen ? 1 : 3);
      if (!emit(std::string_view(p_, static_cast<size_t>(next - p_)))) return false;
      p_ = next;
    }
    return true;
  }

 private:
  struct Char {
    CharClass kind;
    uint32_t len;
  };
  Char at(const char* p) const {
    const CodePoint c = decode_valid(p);
    return {classes_.of(c.value), c.len};
  }

  const char* skip(const char* p, CharClass kind) const {
    while (p < end_) {
      const Char c = at(p);
      if (c.kind != kind) break;
      p += c.len;
    }
    return p;
  }
  static bool is_newline(char c) { return c == '\r' || c == '\n'; }

  // End of 's 't 're 've 'm 'll 'd at p_ (which holds the apostrophe), or null. With `fold`, upper case too, and U+017F, the long
  // s, which folds to s.
  const char* contraction(bool fold) const {
    const auto letter = [&](size_t i) {
      const char c = p_ + i < end_ ? p_[i] : '\0';
      return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(1), second = letter(2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return p_ + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return p_ + 3;
    if (fold && first == '\xc5' && second == '\xbf') return p_ + 3;
    return nullptr;
  }

  // A run of white space that starts at p_, as \s+(?!\S)|\s+ takes it: all but the last character when more text follows.
  const char* space_piece(const char* run_end, const char* last) const { return run_end == end_ || last == p_ ? run_end : last; }

  const char* gpt2_piece() const {
    if (*p_ == '\'') {
      if (const char* next = contraction(false)) return next;
    }
    const char* start = *p_ == ' ' && p_ + 1 < end_ ? p_ + 1 : p_;
    if (const Char c = at(start); c.kind != kClassSpace) return skip(start + c.len, c.kind);
    const char* last = p_;
    const char* p = p_;
    while (p < end_) {
      const Char c = at(p);
      if (c.kind != kClassSpace) break;
      last = p;
      p += c.len;
    }
    return space_piece(p, last);
  }

  const char* cl100k_piece(int max_digits) const {
    if (*p_ == '\'') {
      if (const char* next = contraction(true)) return next;
    }
    const Char first = at(p_);
    const char* after = p_ + first.len;
    if (first.kind == kClassLetter) return skip(after, kClassLetter);
    if (first.kind == kClassNumber) {
      for (int n = 1; n < max_digits && after < end_; ++n) {
        const Char c = at(after);
        if (c.kind != kClassNumber) break;
        after += c.len;
      }
      return after;
    }
    if (after < end_ && !is_newline(*p_)) {
      const Char second = at(after);
      if (second.kind == kClassLetter) return skip(after + second.len, kClassLetter);
      if (*p_ == ' ' && second.kind == kClassOther) return symbols(after + second.len);
    }
    if (first.kind == kClassOther) return symbols(after);
    const char* last = p_;
    const char* newline_end = nullptr;
    const char* p = p_;
    while (p < end_) {
      const Char c = at(p);
      if (c.kind != kClassSpace) break;
      last = p;
      p += c.len;
      if (is_newline(*last)) newline_end = p;
    }
    return newline_end != nullptr ? newline_end : space_piece(p, last);
  }

  const char* symbols(const char* p) const {
    p = skip(p, kClassOther);
    while (p < end_ && is_newline(*p)) ++p;
    return p;
  }

  const UnicodeClasses& classes_;
  const char* p_;
  const char* end_;
};

}  // namespace ingot::text
