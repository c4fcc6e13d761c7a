// A pre-tokenizer pattern compiled by PCRE2 (UTF, UCP, JIT): the general path, and the oracle of the hand-written scanners.
// Used by pretokenizer.cc and the class table. Immutable after compile(); any thread.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"

namespace ingot::text {

class PretokenizerRegex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int group = 0;  // highest group that took part
  };

  // Errors: a pattern PCRE2 refuses, or one that means something else to Oniguruma, which Hugging Face uses; no Unicode in PCRE2.
  static Result<PretokenizerRegex> compile(std::string_view pattern);

  // One walk over `text` (valid UTF-8, outlives the walk).
  class Walk {
   public:
    Walk(const PretokenizerRegex& regex, std::string_view text);
    // Next match that does not overlap the last; an empty match right behind the last one is passed over. False at the end.
    // Error: the pattern needed too much backtracking.
    Result<bool> next(Match& match);

   private:
    struct Scratch;
    struct Free {
      void operator()(Scratch* scratch) const;
    };
    const PretokenizerRegex& regex_;
    std::string_view text_;
    std::unique_ptr<Scratch, Free> scratch_;
    size_t at_ = 0;
    size_t last_end_ = SIZE_MAX;
  };

 private:
  PretokenizerRegex() = default;
  std::shared_ptr<void> code_;  // pcre2_code
};

}  // namespace ingot::text
