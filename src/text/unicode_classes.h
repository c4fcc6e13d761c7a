// The character classes that pre-tokenizer patterns speak of, one byte a code point, and canonical composition. The classes are
// PCRE2's own answers, asked once, so that the hand-written scanners and the general path cannot disagree. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ingot::text {

enum CharClass : uint8_t { kClassOther = 0, kClassLetter = 1, kClassNumber = 2, kClassSpace = 3 };

class UnicodeClasses {
 public:
  // Built on first use (a few milliseconds). Error: PCRE2 lacks Unicode support.
  static Result<const UnicodeClasses*> get();

  // Planes 4 to 16 hold no letter, number or space.
  CharClass of(uint32_t code_point) const { return code_point < kTableSize ? static_cast<CharClass>(table_[code_point]) : kClassOther; }

 private:
  static constexpr uint32_t kTableSize = 0x40000;
  Result<> build();
  uint8_t table_[kTableSize] = {};
};

// Appends the NFC form of `text` (valid UTF-8) to `out`.
void append_nfc(std::string_view text, std::string& out);
// True when `text` is surely in NFC already; ASCII and most other text is.
bool is_nfc(std::string_view text);

}  // namespace ingot::text
