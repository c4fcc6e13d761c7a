#include "text/utf8_text.h"

#include <cstring>

namespace ingot::text {
namespace {

struct Sequence {
  uint32_t len;    // bytes of the well-formed character, or of the maximal ill-formed part (at least 1)
  bool valid;      // a whole character
  bool cut_short;  // ill-formed only because the input ends here
};

// The ranges of table 3-7 of the Unicode Standard: the second byte is narrower after e0, ed, f0 and f4.
Sequence classify(const unsigned char* p, size_t left) {
  const unsigned char first = p[0];
  if (first < 0x80) return {1, true, false};
  uint32_t need = 0;
  unsigned char lo = 0x80, hi = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    need = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    need = 3;
    if (first == 0xe0) lo = 0xa0;
    if (first == 0xed) hi = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    need = 4;
    if (first == 0xf0) lo = 0x90;
    if (first == 0xf4) hi = 0x8f;
  } else {
    return {1, false, false};
  }
  for (uint32_t i = 1; i < need; ++i) {
    if (i >= left) return {i, false, true};
    if (p[i] < lo || p[i] > hi) return {i, false, false};
    lo = 0x80;
    hi = 0xbf;
  }
  return {need, true, false};
}

size_t ascii_run(const char* p, size_t len) {
  size_t i = 0;
  for (; i + 8 <= len; i += 8) {
    uint64_t word;
    std::memcpy(&word, p + i, 8);
    if (word & 0x8080808080808080ULL) break;
  }
  while (i < len && static_cast<unsigned char>(p[i]) < 0x80) ++i;
  return i;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      at += ascii_run(text.data() + at, text.size() - at);
      continue;
    }
    const Sequence s = classify(reinterpret_cast<const unsigned char*>(text.data() + at), text.size() - at);
    if (!s.valid) return at;
    at += s.len;
  }
  return kValidUtf8;
}

size_t append_replacing(std::string_view bytes, bool final, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (const size_t run = ascii_run(bytes.data() + at, bytes.size() - at); run > 0) {
      out.append(bytes, at, run);
      at += run;
      continue;
    }
    const Sequence s = classify(reinterpret_cast<const unsigned char*>(bytes.data() + at), bytes.size() - at);
    if (s.valid) {
      out.append(bytes, at, s.len);
    } else {
      if (s.cut_short && !final) return at;
      out.append("\xef\xbf\xbd");
    }
    at += s.len;
  }
  return at;
}

void append_code_point(uint32_t code_point, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

}  // namespace ingot::text
