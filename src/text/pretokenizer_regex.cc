#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer_regex.h"

#include <pcre2.h>

#include <string>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr size_t kMaxPatternBytes = 65536;
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackBytes = 1 << 20;

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "unknown PCRE2 error";
  return reinterpret_cast<const char*>(buffer);
}

// Says Oniguruma's \s and \S in PCRE2's words: PCRE2's own \s still holds U+180E, which Unicode took out of White_Space.
// Escapes whose meaning differs otherwise are refused.
Result<std::string> translate(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char c = pattern[++i];
    if (c == 's') {
      out += "\\p{White_Space}";
    } else if (c == 'S') {
      out += "\\P{White_Space}";
    } else if (std::string_view("wWbBhHRXKCGQEk").find(c) != std::string_view::npos) {
      return fail_hint("\\s \\S \\d \\D \\p{..} \\P{..} and escaped characters are supported", "pattern uses \\{}", c);
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

Result<PretokenizerRegex> PretokenizerRegex::compile(std::string_view pattern) {
  uint32_t unicode = 0;
  pcre2_config(PCRE2_CONFIG_UNICODE, &unicode);
  if (unicode != 1) return fail("this PCRE2 was built without Unicode support, which pre-tokenizer patterns need");
  if (pattern.empty() || pattern.size() > kMaxPatternBytes)
    return fail("pattern has {} bytes; 1 to {} are allowed", pattern.size(), kMaxPatternBytes);
  INGOT_ASSIGN(const std::string translated, translate(pattern));

  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr);
  if (code == nullptr) return fail("pattern does not compile: {} at byte {} of {}", pcre_message(error), where, translated);
  PretokenizerRegex regex;
  regex.code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // Without JIT (a platform that has none) the interpreter matches the same, only slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

struct PretokenizerRegex::Walk::Scratch {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

void PretokenizerRegex::Walk::Free::operator()(Scratch* scratch) const {
  pcre2_match_data_free(scratch->data);
  pcre2_match_context_free(scratch->context);
  pcre2_jit_stack_free(scratch->stack);
  delete scratch;
}

PretokenizerRegex::Walk::Walk(const PretokenizerRegex& regex, std::string_view text) : regex_(regex), text_(text), scratch_(new Scratch) {
  scratch_->data = pcre2_match_data_create_from_pattern(static_cast<pcre2_code*>(regex.code_.get()), nullptr);
  scratch_->context = pcre2_match_context_create(nullptr);
  scratch_->stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  pcre2_set_match_limit(scratch_->context, kMatchLimit);
  pcre2_jit_stack_assign(scratch_->context, nullptr, scratch_->stack);
}

Result<bool> PretokenizerRegex::Walk::next(Match& match) {
  const auto* code = static_cast<const pcre2_code*>(regex_.code_.get());
  while (at_ <= text_.size()) {
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at_, PCRE2_NO_UTF_CHECK, scratch_->data,
                               scratch_->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return fail("pre-tokenizer pattern failed at byte {} of the text: {}", at_, pcre_message(rc));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch_->data);
    match = {span[0], span[1], rc - 1};
    if (match.end == match.begin && match.end == last_end_) {
      if (at_ == text_.size()) break;
      at_ += decode_valid(text_.data() + at_).len;
      last_end_ = at_;
      continue;
    }
    at_ = last_end_ = match.end;
    return true;
  }
  at_ = text_.size() + 1;
  return false;
}

}  // namespace ingot::text
