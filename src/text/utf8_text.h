// UTF-8 in and out of the tokenizer: validation with a place, and replacement of broken bytes as Python does it. Used by the
// tokenizer, the detokenizer and the file reader; holds no state. Never normalises and knows no character classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::text {

constexpr size_t kValidUtf8 = SIZE_MAX;

// Offset of the first byte that does not belong to a well-formed sequence (no surrogates, no overlong forms), or kValidUtf8.
size_t find_invalid_utf8(std::string_view text);

// Appends `bytes` to `out`; every maximal ill-formed part becomes one U+FFFD, as bytes.decode("utf-8", errors="replace") gives.
// Returns how many bytes were taken: all of them when `final`; else all but an incomplete character at the end (at most 3 bytes).
size_t append_replacing(std::string_view bytes, bool final, std::string& out);

void append_code_point(uint32_t code_point, std::string& out);

struct CodePoint {
  uint32_t value;
  uint32_t len;  // bytes
};

// The character at `p`, which must be the start of one in valid UTF-8.
inline CodePoint decode_valid(const char* p) {
  const auto* s = reinterpret_cast<const unsigned char*>(p);
  const uint32_t first = s[0];
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (s[1] & 0x3fu), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu), 3};
  return {(first & 0x07) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu), 4};
}

}  // namespace ingot::text
