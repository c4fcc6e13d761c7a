// The pre_tokenizer of a tokenizer.json: cuts text into the pieces that BPE works on. Owned by the tokenizer; immutable after
// parse(), any thread. Bytes stay bytes: the printable alphabet of ByteLevel is a matter of the vocabulary's spelling only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_scan.h"

namespace ingot::text {

class Pretokenizer {
 public:
  // `config` is the value of "pre_tokenizer". Errors name `what` and the part.
  static Result<Pretokenizer> parse(const Json& config, std::string_view what);

  // Appends the pieces of `text`, which may point into `text` or into `storage`. Error: a pattern that backtracks without end.
  Result<> split(std::string_view text, std::vector<std::string_view>& pieces, std::vector<std::string>& storage) const;

  // The one scanner that does the whole work, or kNone when split() must be called.
  KnownPattern whole_pattern() const { return whole_pattern_; }
  const UnicodeClasses& classes() const { return *classes_; }

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    bool prefix_space = false;
    bool splits = false;
    KnownPattern known = KnownPattern::kNone;
    std::optional<PretokenizerRegex> regex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  Result<> add(const Json& config, std::string_view what, int depth);
  Result<> add_split(const Json& config, std::string_view what);
  Result<> set_regex(Step& step, std::string_view pattern, std::string_view what) const;
  Result<> apply(const Step& step, std::string_view text, std::vector<std::string_view>& pieces) const;

  std::vector<Step> steps_;
  const UnicodeClasses* classes_ = nullptr;
  KnownPattern whole_pattern_ = KnownPattern::kNone;
};

}  // namespace ingot::text
