// A forward reader for the one large JSON file we load: hands out strings and numbers where they stand, and the extent of any
// other value for parse_json(). A document tree of a 150k vocabulary takes longer to build than all the rest of the load.
// Used by tokenizer_load.cc only. The text must be valid UTF-8 and outlive the reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ingot::text {

class BpeJsonReader {
 public:
  // `what` names the source in errors.
  BpeJsonReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  // First non-blank character, not taken; '\0' at the end.
  char peek();
  // Takes `c` when it is the next character.
  bool take(char c);
  Result<> expect(char c, std::string_view place);

  // A string value. The view points into the file, or into `scratch` when the string has escapes.
  Result<std::string_view> string(std::string_view place, std::string& scratch);
  // A whole number that fits in 64 bits.
  Result<int64_t> integer(std::string_view place);
  // The extent of the next value, whatever it is. Brackets and strings are checked; the rest is left to whoever parses it.
  Result<std::string_view> raw_value(std::string_view place);

  // Nothing but blanks left.
  bool at_end() { return peek() == '\0' && at_ >= text_.size(); }
  size_t offset() const { return at_; }

  // Calls body(key) for every member of the object that comes next; the body must take the value. `Body`: Result<>(string_view).
  template <class Body>
  Result<> object(std::string_view place, Body&& body) {
    INGOT_TRY(expect('{', place));
    if (take('}')) return {};
    std::string scratch;
    do {
      INGOT_ASSIGN(const std::string_view key, string(place, scratch));
      INGOT_TRY(expect(':', place));
      INGOT_TRY(body(key));
    } while (take(','));
    return expect('}', place);
  }

  // Calls body() for every element of the array that comes next; the body must take the element.
  template <class Body>
  Result<> array(std::string_view place, Body&& body) {
    INGOT_TRY(expect('[', place));
    if (take(']')) return {};
    do {
      INGOT_TRY(body());
    } while (take(','));
    return expect(']', place);
  }

 private:
  Result<> unescape(std::string_view place, std::string& scratch);

  std::string_view text_;
  std::string_view what_;
  size_t at_ = 0;
};

}  // namespace ingot::text
