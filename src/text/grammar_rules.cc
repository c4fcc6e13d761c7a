#include "text/grammar_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr uint32_t kLastCharacter = 0x10ffff;
constexpr int kMaxIndent = 24;  // white space behind a newline; elsewhere one space, or an unsure model fills its answer with nothing
constexpr int kMaxDigits = 18;  // of an integer part: below 2^63
constexpr std::string_view kEndValue = "</arg_value>";

std::string white_space() { return fmt::format(R"((" " | "\n" [ \t]{{0,{}}})?)", kMaxIndent); }

std::vector<uint32_t> code_points(const std::string& utf8) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at < utf8.size();) {
    const CodePoint c = decode_valid(utf8.data() + at);
    out.push_back(c.value);
    at += c.len;
  }
  return out;
}

std::string escape_class(uint32_t c) {
  if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) return std::string(1, static_cast<char>(c));
  return c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
}

// What must be escaped inside a JSON string, and how (as a regular expression); other control characters only as \u00xx, which nobody
// misses.
struct JsonEscape {
  uint32_t character;
  std::string_view spelled;
};
constexpr JsonEscape kJsonEscapes[] = {{'"', R"(\\")"},  {'\\', R"(\\\\)"}, {'\n', R"(\\n)"}, {'\r', R"(\\r)"},
                                       {'\t', R"(\\t)"}, {'\b', R"(\\b)"},  {'\f', R"(\\f)"}};

CharacterSet json_specials() {
  CharacterSet set = CharacterSet::range(0, 0x1f);
  set.add(CharacterSet::range('"', '"'));
  set.add(CharacterSet::range('\\', '\\'));
  return set;
}

}  // namespace

// --- CharacterSet

CharacterSet CharacterSet::range(uint32_t first, uint32_t last) {
  CharacterSet set;
  set.ranges_.emplace_back(first, last);
  set.normalize();
  return set;
}

CharacterSet CharacterSet::all() { return range(0, kLastCharacter); }

void CharacterSet::normalize() {
  std::vector<std::pair<uint32_t, uint32_t>> parts;
  for (auto [first, last] : ranges_) {
    last = std::min(last, kLastCharacter);
    if (first > last) continue;
    // Without the surrogates.
    if (first < 0xd800) parts.emplace_back(first, std::min(last, 0xd7ffU));
    if (last > 0xdfff) parts.emplace_back(std::max(first, 0xe000U), last);
  }
  std::sort(parts.begin(), parts.end());
  ranges_.clear();
  for (const auto& part : parts) {
    if (!ranges_.empty() && part.first <= ranges_.back().second + 1)
      ranges_.back().second = std::max(ranges_.back().second, part.second);
    else
      ranges_.push_back(part);
  }
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

CharacterSet CharacterSet::inverse() const {
  CharacterSet out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) out.ranges_.emplace_back(next, kLastCharacter);
  out.normalize();
  return out;
}

void CharacterSet::remove(const CharacterSet& other) {
  // a \ b = not (not a or b)
  CharacterSet out = inverse();
  out.add(other);
  *this = out.inverse();
}

bool CharacterSet::contains(uint32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& r) { return r.first <= character && character <= r.second; });
}

std::string CharacterSet::written(bool as_regex) const {
  INGOT_CHECK(!ranges_.empty(), "an empty set has no class");
  const auto escape = [&](uint32_t c) { return as_regex && c > 0xffff ? fmt::format("\\u{{{:x}}}", c) : escape_class(c); };
  std::string out = "[";
  for (const auto& [first, last] : ranges_) {
    out += escape(first);
    if (last > first) out += '-' + escape(last);
  }
  return out + ']';
}

// --- rules

std::string GrammarRules::reserve(std::string_view hint) {
  std::string name;
  for (char c : hint.substr(0, 24)) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return fmt::format("r{}_{}", count_++, name);
}

void GrammarRules::define(const std::string& name, std::string_view body) {
  // Beyond the bound nothing is kept: the grammar is refused anyway.
  if (!too_large()) text_ += fmt::format("{} ::= {}\n", name, body);
}

std::string GrammarRules::add(std::string_view hint, std::string_view body) {
  std::string name = reserve(hint);
  define(name, body);
  return name;
}

std::string GrammarRules::shared(const std::string& key, std::string_view hint, const std::string& body) {
  auto [at, is_new] = shared_.try_emplace(key);
  if (is_new) at->second = add(hint, body);
  return at->second;
}

std::string GrammarRules::text(std::string_view root) const { return fmt::format("root ::= {}\n{}", root, text_); }

std::string GrammarRules::literal(std::string_view utf8) {
  std::string out = "\"";
  for (char c : utf8) {
    if (c == '"' || c == '\\')
      out += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    else
      out += c;
  }
  return out + '"';
}

std::string GrammarRules::space() { return shared("space", "space", white_space()); }

std::string GrammarRules::character(const CharacterSet& set, Spelling spelling) {
  CharacterSet as_is = set;
  if (is_json(spelling)) as_is.remove(json_specials());
  if (in_tag(spelling)) as_is.remove(CharacterSet::range('<', '<'));
  std::vector<std::string> ways;
  if (!as_is.empty()) ways.push_back(as_is.regex());
  if (is_json(spelling)) {
    for (const JsonEscape& escape : kJsonEscapes) {
      if (set.contains(escape.character)) ways.emplace_back(escape.spelled);
    }
  }
  if (ways.empty()) return {};
  return ways.size() == 1 ? ways[0] : fmt::format("({})", fmt::join(ways, "|"));
}

std::string GrammarRules::regex(std::string_view hint, std::string_view pattern, Spelling spelling, int64_t parts) {
  const auto [at, is_new] = shared_.try_emplace(fmt::format("regex {}", pattern));
  if (is_new) {
    at->second = add(hint, fmt::format("Regex({})", literal(pattern)));
    parts_ += parts;
  }
  return is_json(spelling) ? fmt::format(R"(("\"" {} "\""))", at->second) : at->second;
}

// --- strings

namespace {

// Behind a backslash: a short escape, a character by its number, or a surrogate pair.
constexpr std::string_view kEscape =
    R"((["\\/bfnrt] | "u" ([0-9abcefABCEF] [0-9a-fA-F] | [dD] [0-7]) [0-9a-fA-F]{2} | "u" [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))";
// What may stand behind a string: lets XGrammar settle most tokens that reach beyond its end when the grammar is compiled.
std::string behind_string() { return fmt::format(R"( (=({} [,}}\]:<])))", white_space()); }

}  // namespace

std::string GrammarRules::string(Spelling spelling) {
  if (spelling == Spelling::plain) return shared("plain", "text", CharacterSet::all().ebnf() + "*");
  if (spelling == Spelling::tag)
    return shared("tag", "text", fmt::format("TagDispatch(loop_after_dispatch=false, excludes=({}))", literal(kEndValue)));
  auto [at, is_new] = shared_.try_emplace(spelling == Spelling::json ? "string" : "string_in_tag");
  if (!is_new) return at->second;
  CharacterSet plain = json_specials().inverse();
  const std::string escape = shared("escape", "escape", std::string(kEscape));
  const std::string rest = reserve("string_rest");
  const std::string behind_quote = behind_string();
  if (spelling == Spelling::json) {
    define(rest, fmt::format(R"(("\"" | {} {} | "\\" {} {}){})", plain.ebnf(), rest, escape, rest, behind_quote));
  } else {
    // `</` could become </arg_value>: a slash behind `<` is written with the backslash that JSON allows it.
    const std::string behind = reserve("string_behind_less");
    CharacterSet no_less = plain;
    no_less.remove(CharacterSet::range('<', '<'));
    CharacterSet no_slash = no_less;
    no_slash.remove(CharacterSet::range('/', '/'));
    define(rest, fmt::format(R"(("\"" | {} {} | "<" {} | "\\" {} {}){})", no_less.ebnf(), rest, behind, escape, rest, behind_quote));
    define(behind, fmt::format(R"(("\"" | {} {} | "<" {} | "\\" {} {}){})", no_slash.ebnf(), rest, behind, escape, rest, behind_quote));
  }
  at->second = add("string", fmt::format(R"("\"" {})", rest));
  return at->second;
}

std::string GrammarRules::string(Spelling spelling, int64_t min, int64_t max) {
  INGOT_CHECK(min <= kMaxCounted && max <= kMaxCounted);
  if (max == 0) return is_json(spelling) ? literal("\"\"") : literal("");
  const std::string one = character(CharacterSet::all(), spelling);
  const std::string counts = max < 0 ? fmt::format("{{{},}}", min) : fmt::format("{{{},{}}}", min, max);
  return regex("string", one + counts, spelling, std::max(min, max));
}

std::string GrammarRules::string_except(const std::vector<std::string>& names, Spelling spelling) {
  // A tree of the names' characters: off the tree anything may follow; a string may end on it where no name does.
  // The tree is walked by recursion, on a client's names: of a longer one the beginning decides, and every key that begins so is left out.
  constexpr int kMaxHeight = 128;
  struct Node {
    std::map<uint32_t, Node> next;
    bool is_name = false;
    bool is_cut = false;
  };
  Node top;
  for (const std::string& name : names) {
    Node* at = &top;
    int height = 0;
    for (uint32_t c : code_points(name)) {
      at = &at->next[c];
      at->is_cut = at->is_cut || ++height == kMaxHeight;
      if (at->is_cut) break;
    }
    at->is_name = true;
  }
  CharacterSet allowed = json_specials().inverse();
  if (in_tag(spelling)) {
    allowed.remove(CharacterSet::range('<', '<'));
    // White space around a key is nobody's.
    if (spelling == Spelling::tag) allowed.remove(CharacterSet::range(' ', ' '));
  }
  const std::string rest = shared(fmt::format("key {}", static_cast<int>(spelling)), "key_rest", allowed.ebnf() + "*");
  const auto emit = [&](const auto& self, const Node& node, bool may_end) -> std::string {
    CharacterSet off = allowed;
    std::vector<std::string> ways;
    if (may_end && !node.is_name) ways.emplace_back("\"\"");
    for (const auto& [c, below] : node.next) {
      const CharacterSet one = CharacterSet::range(c, c);
      off.remove(one);
      if (allowed.contains(c) && !below.is_cut) ways.push_back(fmt::format("{} {}", one.ebnf(), self(self, below, true)));
    }
    if (!off.empty()) ways.push_back(fmt::format("{} {}", off.ebnf(), rest));
    return add("key", fmt::format("({})", fmt::join(ways, " | ")));
  };
  const std::string body = emit(emit, top, is_json(spelling));
  return is_json(spelling) ? fmt::format(R"(("\"" {} "\""))", body) : body;
}

// --- numbers

std::string GrammarRules::integer() {
  return shared("integer", "integer", fmt::format(R"("-"? ("0" | [1-9] [0-9]{{0,{}}}))", kMaxDigits - 1));
}

std::string GrammarRules::number() {
  return shared("number", "number",
                fmt::format(R"("-"? ("0" | [1-9] [0-9]{{0,{}}}) ("." [0-9]{{1,17}})? ([eE] [+\-]? [0-9]{{1,2}})?)", kMaxDigits - 1));
}

namespace {

// A bound of a magnitude, digit by digit: `whole` digits before the point, then those behind it.
struct Digits {
  std::string text;
  bool exclusive = false;
};

// Numbers of exactly `whole` digits before the point between two such bounds, as rules that read a digit each. A state: how many digits
// are read, and whether they are still those of the lower and of the upper bound.
class DigitRules {
 public:
  DigitRules(GrammarRules& rules, Digits low, Digits high, int whole)
      : rules_(rules), low_(std::move(low)), high_(std::move(high)), whole_(whole), length_(static_cast<int>(low_.text.size())) {}

  // Empty: there is no such number.
  std::string start() { return state(0, true, true); }

 private:
  static bool only_zeros(const std::string& digits, int from) {
    return digits.find_first_not_of('0', static_cast<size_t>(from)) == std::string::npos;
  }

  bool may_end(int at, bool at_low, bool at_high) const {
    if (at < whole_) return false;
    if (at_low && (!only_zeros(low_.text, at) || low_.exclusive)) return false;
    return !(at_high && high_.exclusive && only_zeros(high_.text, at));
  }

  std::string state(int at, bool at_low, bool at_high) {
    const auto key = std::make_pair(at, (at_low ? 2 : 0) + (at_high ? 1 : 0));
    if (const auto found = done_.find(key); found != done_.end()) return found->second;
    std::vector<std::string> ways;
    if (may_end(at, at_low, at_high)) ways.emplace_back("\"\"");
    if (at < length_) {
      const char from = at_low ? low_.text[static_cast<size_t>(at)] : '0';
      const char to = at_high ? high_.text[static_cast<size_t>(at)] : '9';
      const std::string point = at == whole_ ? "\".\" " : "";
      const auto add_way = [&](char first, char last, bool low, bool high) {
        if (first > last) return;
        const std::string below = state(at + 1, low, high);
        if (!below.empty()) ways.push_back(fmt::format("{}[{}-{}] {}", point, first, last, below));
      };
      // The digit of a bound stays with it; those between are free.
      if (at_low && at_high && from == to) {
        add_way(from, to, true, true);
      } else if (from <= to) {
        if (at_low) add_way(from, from, true, false);
        if (at_high) add_way(to, to, false, true);
        add_way(static_cast<char>(from + (at_low ? 1 : 0)), static_cast<char>(to - (at_high ? 1 : 0)), false, false);
      }
    }
    std::string& name = done_[key];
    if (!ways.empty()) name = rules_.add("digits", fmt::format("({})", fmt::join(ways, " | ")));
    return name;
  }

  GrammarRules& rules_;
  Digits low_, high_;
  int whole_;   // digits before the point
  int length_;  // of both
  std::map<std::pair<int, int>, std::string> done_;
};

// The digits of a magnitude, rounded towards the inside of its range: up for a lower bound, down for an upper one.
Digits digits_of(NumberBound bound, int decimals, bool up) {
  std::string text = fmt::format("{:.{}f}", bound.value, decimals);
  const double rounded = std::strtod(text.c_str(), nullptr);
  if (rounded != bound.value) {
    // What was rounded is no longer the bound itself.
    bound.exclusive = (rounded < bound.value) == up;
  }
  text.erase(std::remove(text.begin(), text.end(), '.'), text.end());
  return {text, bound.exclusive};
}

}  // namespace

Result<std::string> GrammarRules::number(std::optional<NumberBound> low, std::optional<NumberBound> high, int decimals) {
  // Numbers here are shorter than 1e18: a bound beyond that is none, or leaves nothing. A double holds integers up to 2^53.
  constexpr double kEnd = 1e18, kExact = 9007199254740992.0;
  if (low && low->value <= -kEnd) low.reset();
  if (high && high->value >= kEnd) high.reset();
  for (const auto& bound : {low, high}) {
    if (bound && !(std::abs(bound->value) <= kExact)) return fail("a bound of a number must be below 2^53, or beyond 1e18");
  }
  std::vector<std::string> ways;
  // Magnitudes from `from` to `to` (none: as long as a number may be).
  const auto add_magnitudes = [&](std::string_view sign, NumberBound from, std::optional<NumberBound> to) {
    const Digits first = digits_of(from, decimals, true);
    const Digits last = to ? digits_of(*to, decimals, false) : Digits{std::string(static_cast<size_t>(kMaxDigits + decimals), '9'), false};
    const int shortest = static_cast<int>(first.text.size()) - decimals;
    const int longest = static_cast<int>(last.text.size()) - decimals;
    for (int whole = shortest; whole <= longest; ++whole) {
      const auto length = static_cast<size_t>(whole + decimals);
      const Digits least = whole == shortest ? first : Digits{"1" + std::string(length - 1, '0'), false};
      const Digits most = whole == longest ? last : Digits{std::string(length, '9'), false};
      if (least.text > most.text) continue;
      const std::string rule = DigitRules(*this, least, most, whole).start();
      if (!rule.empty()) ways.push_back(sign.empty() ? rule : fmt::format("{} {}", literal(sign), rule));
    }
  };
  if (!high || high->value >= 0)
    add_magnitudes("", low && low->value > 0 ? *low : NumberBound{0, low && low->value == 0 && low->exclusive}, high);
  if (!low || low->value < 0) {
    const NumberBound nearest = high && high->value < 0 ? NumberBound{-high->value, high->exclusive} : NumberBound{0, true};
    add_magnitudes("-", nearest, low ? std::optional(NumberBound{-low->value, low->exclusive}) : std::nullopt);
  }
  if (ways.empty()) return fail("no number is within its bounds");
  return add("number", fmt::format("({})", fmt::join(ways, " | ")));
}

std::string GrammarRules::multiple(int divisor) {
  // A state for each remainder of the digits so far, and for how many may still come.
  constexpr int kDigits = 12;
  std::vector<std::string> last(static_cast<size_t>(divisor));
  for (int left = 0; left < kDigits; ++left) {
    std::vector<std::string> states;
    for (int remainder = 0; remainder < divisor; ++remainder) {
      std::vector<std::string> ways;
      if (remainder == 0) ways.emplace_back("\"\"");
      for (int digit = 0; digit <= 9 && left > 0; ++digit) {
        const std::string& next = last[static_cast<size_t>((remainder * 10 + digit) % divisor)];
        if (!next.empty()) ways.push_back(fmt::format("\"{}\" {}", digit, next));
      }
      if (left + 1 == kDigits && remainder == 0) ways.erase(ways.begin());  // a first digit comes, and is not 0
      if (left + 1 == kDigits) std::erase_if(ways, [](const std::string& way) { return way.starts_with("\"0\""); });
      states.push_back(ways.empty() ? "" : add("multiple", fmt::format("({})", fmt::join(ways, " | "))));
      if (left + 1 == kDigits) break;
    }
    last = std::move(states);
  }
  return add("multiple", fmt::format("(\"0\" | \"-\"? {})", last[0]));
}

// --- any value

std::string GrammarRules::any(Spelling spelling) {
  auto [at, is_new] = shared_.try_emplace(in_tag(spelling) ? "any_in_tag" : "any");
  if (is_new) {
    const std::string name = at->second = reserve("any");
    const std::string gap = space();
    const Spelling quoted = in_tag(spelling) ? Spelling::json_tag : Spelling::json;
    const std::string array = add("array", fmt::format(R"("[" {0} ({1} ({0} "," {0} {1})* {0})? "]")", gap, name));
    define(name, fmt::format(R"(({} | {} | {} | {} | "true" | "false" | "null"))", any_object(spelling), array, string(quoted), number()));
  }
  return in_tag(spelling) ? shared_["any_in_tag"] : shared_["any"];
}

std::string GrammarRules::any_object(Spelling spelling) {
  const char* key = in_tag(spelling) ? "object_in_tag" : "object";
  auto [at, is_new] = shared_.try_emplace(key);
  if (is_new) {
    const std::string name = at->second = reserve("object");
    const std::string gap = space();
    const std::string pair = add(
        "pair", fmt::format(R"({} {} ":" {} {})", string(in_tag(spelling) ? Spelling::json_tag : Spelling::json), gap, gap, any(spelling)));
    define(name, fmt::format(R"("{{" {0} ({1} ({0} "," {0} {1})* {0})? "}}")", gap, pair));
  }
  return shared_[key];
}

}  // namespace ingot::text
