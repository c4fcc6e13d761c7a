// Regular expressions as rules of a grammar: the part of ECMAScript's syntax that describes a regular language. Used by grammar.cc for
// whole answers and by grammar_schema for `pattern`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/grammar_rules.h"

namespace ingot::text {

struct RegexOptions {
  Spelling spelling = Spelling::plain;
  // True: the pattern may match anywhere in the string, as JSON Schema has it, unless ^ and $ say otherwise. False: it is the whole string.
  bool search = false;
  // Of the string in characters; max_length -1: no bound. Only with a pattern that is one repeated set of characters ("^[a-z]+$").
  int64_t min_length = 0;
  int64_t max_length = -1;
};

// A rule for the strings that match, in JSON with the quotes. Errors: syntax with its position; look-around, back
// references, \b, \p{..} and flags, which have no grammar; an anchor elsewhere than at the ends; a pattern that is too large once its
// counted repetitions are written out (1,000 parts, a repetition at most 128 times) or nests too deeply (32).
Result<std::string> regex_rules(std::string_view pattern, GrammarRules& rules, const RegexOptions& options = {});

}  // namespace ingot::text
