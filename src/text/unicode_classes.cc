#include "text/unicode_classes.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/check.h"
#include "text/pretokenizer_regex.h"
#include "text/utf8_text.h"

namespace ingot::text {

Result<const UnicodeClasses*> UnicodeClasses::get() {
  static UnicodeClasses classes;
  static const Result<> built = classes.build();
  if (!built) return forward_error(built.error());
  return &classes;
}

Result<> UnicodeClasses::build() {
  INGOT_ASSIGN(const PretokenizerRegex regex, PretokenizerRegex::compile("(\\p{L}+)|(\\p{N}+)|(\\s+)"));
  std::string all;
  all.reserve(kTableSize * 4);
  for (uint32_t c = 0; c < kTableSize; ++c) {
    if (c < 0xd800 || c > 0xdfff) append_code_point(c, all);
  }
  PretokenizerRegex::Walk walk(regex, all);
  PretokenizerRegex::Match match;
  for (;;) {
    INGOT_ASSIGN(const bool found, walk.next(match));
    if (!found) return {};
    for (size_t at = match.begin; at < match.end;) {
      const CodePoint c = decode_valid(all.data() + at);
      table_[c.value] = static_cast<uint8_t>(match.group);
      at += c.len;
    }
  }
}

namespace {

void append_composed(std::string_view text, std::string& out) {
  utf8proc_uint8_t* composed = nullptr;
  const auto len = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                                &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  INGOT_CHECK(len >= 0, "utf8proc: {}", utf8proc_errmsg(len));
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(len));
  std::free(composed);
}

// A code point is inert when it is its own NFC form, is a starter and never composes with what stands before it: text may be
// cut before it and normalised apart.
class InertTable {
 public:
  InertTable() : inert_(kSize, true) {
    std::string one, composed;
    for (uint32_t c = 0x300; c < kSize; ++c) {
      if (c >= 0xd800 && c <= 0xdfff) continue;
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      // Hangul vowels and trailing consonants join by rule, others by table: there the top bit marks a second half.
      const bool joins = (c >= 0x1161 && c <= 0x1175) || (c >= 0x11a8 && c <= 0x11c2) ||
                         (property->comb_index != UINT16_MAX && (property->comb_index & 0x8000) != 0);
      bool changes = false;
      if (property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0) {
        one.clear();
        composed.clear();
        append_code_point(c, one);
        append_composed(one, composed);
        changes = one != composed;
      }
      inert_[c] = property->combining_class == 0 && !joins && !changes;
    }
  }
  bool operator()(uint32_t c) const { return c >= kSize || inert_[c]; }

 private:
  static constexpr uint32_t kSize = 0x30000;  // beyond it nothing has a decomposition or a combining class
  std::vector<bool> inert_;
};

const InertTable& inert_table() {
  static const InertTable table;
  return table;
}

}  // namespace

bool is_nfc(std::string_view text) {
  const InertTable& inert = inert_table();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_valid(text.data() + at);
    if (c.value >= 0x300 && !inert(c.value)) return false;
    at += c.len;
  }
  return true;
}

void append_nfc(std::string_view text, std::string& out) {
  const InertTable& inert = inert_table();
  size_t done = 0;     // text before this is in `out`
  size_t starter = 0;  // last place where the text may be cut
  for (size_t at = 0; at < text.size();) {
    CodePoint c = decode_valid(text.data() + at);
    if (c.value < 0x300 || inert(c.value)) {
      starter = at;
      at += c.len;
      continue;
    }
    while (at < text.size() && (c = decode_valid(text.data() + at), c.value >= 0x300 && !inert(c.value))) at += c.len;
    out.append(text, done, starter - done);
    append_composed(text.substr(starter, at - starter), out);
    done = starter = at;
  }
  out.append(text, done);
}

}  // namespace ingot::text
