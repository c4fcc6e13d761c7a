// The text of a grammar in XGrammar's EBNF, rule by rule, and the parts that every grammar here is made of: sets of characters, strings as
// JSON or as the text of a tool's argument, numbers within bounds. Used by grammar_schema and grammar_tools; one object a grammar, one
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ingot::text {

// A set of Unicode scalar values: sorted, disjoint ranges, both ends included. Surrogates are never in it.
class CharacterSet {
 public:
  CharacterSet() = default;
  static CharacterSet range(uint32_t first, uint32_t last);
  static CharacterSet all();

  void add(const CharacterSet& other);
  void remove(const CharacterSet& other);
  CharacterSet inverse() const;
  bool contains(uint32_t character) const;
  bool empty() const { return ranges_.empty(); }
  // "[a-z0-9]", in a rule or in a regular expression of XGrammar's; must not be empty.
  std::string ebnf() const { return written(false); }
  std::string regex() const { return written(true); }

 private:
  void normalize();
  std::string written(bool as_regex) const;
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

// How characters of a string appear in the text of the answer.
enum class Spelling : uint8_t {
  plain,     // as they are: an answer that a regular expression describes
  json,      // inside the quotes of a JSON string
  tag,       // as they are, in a tool's argument; never </arg_value>, which would end it
  json_tag,  // inside a JSON string in a tool's argument
};
constexpr bool is_json(Spelling spelling) { return spelling == Spelling::json || spelling == Spelling::json_tag; }
constexpr bool in_tag(Spelling spelling) { return spelling == Spelling::tag || spelling == Spelling::json_tag; }

// A bound of a number: its value, and whether it is itself outside.
struct NumberBound {
  double value = 0;
  bool exclusive = false;
};

class GrammarRules {
 public:
  // Bounds of all rules together: their text, and the parts of regular expressions (each costs about 15 ms for 154,880 ids).
  static constexpr size_t kMaxBytes = size_t{256} << 10;
  static constexpr int64_t kMaxParts = 2000;

  // Characters and repetitions that are counted. XGrammar writes so many out; what it does with more costs milliseconds a token, and lets
  // tokens pass that it refuses later.
  static constexpr int64_t kMaxCounted = 128;

  // A new rule; returns its name, which stands for `body` from then on. `hint`: letters for whoever reads the grammar.
  std::string add(std::string_view hint, std::string_view body);
  // The same in two steps, for rules that refer to themselves.
  std::string reserve(std::string_view hint);
  void define(const std::string& name, std::string_view body);
  bool too_large() const { return text_.size() > kMaxBytes || parts_ > kMaxParts; }
  // The whole grammar, beginning at `root`.
  std::string text(std::string_view root) const;

  static std::string literal(std::string_view utf8);
  // Bounded white space between the parts of JSON.
  std::string space();
  // One character of the set as it is spelled, as a regular expression of XGrammar's; empty when it cannot be. `<` is left out in a tag,
  // for </arg_value> begins with it.
  static std::string character(const CharacterSet& set, Spelling spelling);
  // A string that is described by such expressions, with the quotes of JSON.
  // `parts`: sets of characters once repetitions are written out, each a state that a mask is made for.
  std::string regex(std::string_view hint, std::string_view pattern, Spelling spelling, int64_t parts);
  // A whole string, quotes included where there are some: any; one of min to max characters (max -1: no bound; both at most kMaxCounted).
  std::string string(Spelling spelling);
  std::string string(Spelling spelling, int64_t min, int64_t max);
  // Any string that is none of `names`; characters that JSON escapes are left out. At least one character in a tag.
  std::string string_except(const std::vector<std::string>& names, Spelling spelling);

  std::string integer();
  std::string number();
  // Written without exponent, with at most `decimals` digits behind the point (0: an integer). Errors: no such number; a bound of 1e18 or
  // more.
  Result<std::string> number(std::optional<NumberBound> low, std::optional<NumberBound> high, int decimals);
  // Integers of at most 11 digits that are multiples of `divisor`, 1 to kMaxDivisor.
  static constexpr int kMaxDivisor = 32;
  std::string multiple(int divisor);
  // Any JSON value; any JSON object.
  std::string any(Spelling spelling);
  std::string any_object(Spelling spelling);

 private:
  std::string shared(const std::string& key, std::string_view hint, const std::string& body);

  std::string text_;
  int64_t count_ = 0;
  int64_t parts_ = 0;
  std::map<std::string, std::string> shared_;  // what is the same for all who ask -> its rule
};

}  // namespace ingot::text
