#include "text/grammar_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr size_t kMaxPatternBytes = 4096;
// XGrammar 0.2.9 takes (a[0-9]+)? for one that [0-9]+ alone matches as well; the same thing said this way it takes right.
constexpr const char* kOptional = "{0,1}";
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxParts = 1000;
constexpr int64_t kMaxCount = GrammarRules::kMaxCounted;

struct Node {
  enum class Kind : uint8_t { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;
  CharacterSet set;
  std::vector<Node> parts;  // of sequence and choice; repeat: one
  int64_t min = 0, max = -1;

  // It may be the empty string.
  bool nullable() const {
    switch (kind) {
      case Kind::set: return false;
      case Kind::sequence: return std::all_of(parts.begin(), parts.end(), [](const Node& part) { return part.nullable(); });
      case Kind::choice: return std::any_of(parts.begin(), parts.end(), [](const Node& part) { return part.nullable(); });
      case Kind::repeat: return min == 0 || parts[0].nullable();
      default: return true;
    }
  }

  // Sets of characters once repetitions are written out.
  int64_t size() const {
    int64_t sum = 1;
    for (const Node& part : parts) sum = std::min(kMaxParts + 1, sum + part.size());
    if (kind != Kind::repeat) return sum;
    return std::min(kMaxParts + 1, sum * std::max<int64_t>(1, max < 0 ? min + 1 : max));
  }
};

CharacterSet digits() { return CharacterSet::range('0', '9'); }
CharacterSet word() {
  CharacterSet set = digits();
  set.add(CharacterSet::range('a', 'z'));
  set.add(CharacterSet::range('A', 'Z'));
  set.add(CharacterSet::range('_', '_'));
  return set;
}
// ECMAScript's WhiteSpace and LineTerminator.
CharacterSet white_space() {
  CharacterSet set = CharacterSet::range(0x09, 0x0d);
  for (const auto& [first, last] : std::initializer_list<std::pair<uint32_t, uint32_t>>{{' ', ' '},
                                                                                        {0xa0, 0xa0},
                                                                                        {0x1680, 0x1680},
                                                                                        {0x2000, 0x200a},
                                                                                        {0x2028, 0x2029},
                                                                                        {0x202f, 0x202f},
                                                                                        {0x205f, 0x205f},
                                                                                        {0x3000, 0x3000},
                                                                                        {0xfeff, 0xfeff}})
    set.add(CharacterSet::range(first, last));
  return set;
}
CharacterSet dot() {
  CharacterSet line_ends = CharacterSet::range('\n', '\n');
  line_ends.add(CharacterSet::range('\r', '\r'));
  line_ends.add(CharacterSet::range(0x2028, 0x2029));
  return line_ends.inverse();
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  Result<Node> parse() {
    INGOT_ASSIGN(Node node, choice(0));
    if (at_ < pattern_.size()) return error("unmatched )");
    return node;
  }

 private:
  template <class... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> format, Args&&... args) const {
    return fail("regular expression, position {}: {}", at_, fmt::format(format, std::forward<Args>(args)...));
  }
  bool done() const { return at_ >= pattern_.size(); }
  bool is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!is(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t next_character() {
    const CodePoint c = decode_valid(pattern_.data() + at_);
    at_ += c.len;
    return c.value;
  }

  Result<Node> choice(int depth) {
    if (depth > kMaxDepth) return error("groups nest deeper than {}", kMaxDepth);
    Node out;
    out.kind = Node::Kind::choice;
    do {
      INGOT_ASSIGN(Node part, sequence(depth));
      out.parts.push_back(std::move(part));
    } while (take("|"));
    if (out.parts.size() == 1) return std::move(out.parts[0]);
    return out;
  }

  Result<Node> sequence(int depth) {
    Node out;
    while (!done() && !is("|") && !is(")")) {
      INGOT_ASSIGN(Node part, repeated(depth));
      out.parts.push_back(std::move(part));
    }
    return out;
  }

  Result<Node> repeated(int depth) {
    INGOT_ASSIGN(Node part, atom(depth));
    int64_t min = 0, max = -1;
    if (take("*")) {
    } else if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (is("{")) {
      if (!counts(min, max)) return part;
      if (max >= 0 && max < min) return error("a repetition counts down");
      if (std::max(min, max) > kMaxCount) return error("a repetition counts beyond {}", kMaxCount);
    } else {
      return part;
    }
    take("?");  // lazy: the same strings
    if (is("*") || is("+") || is("?")) return error("nothing to repeat");
    if (part.kind == Node::Kind::begin || part.kind == Node::Kind::end) return error("an anchor is repeated");
    if (part.nullable()) {
      if (max < 0) return error("what is repeated without end may be empty");
      min = 0;
    }
    Node out;
    out.kind = Node::Kind::repeat;
    out.min = min;
    out.max = max;
    out.parts.push_back(std::move(part));
    return out;
  }

  // "{2}", "{2,}", "{2,5}"; anything else is a brace.
  bool counts(int64_t& min, int64_t& max) {
    size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<int64_t> {
      const size_t begin = at;
      int64_t value = 0;
      for (; at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9'; ++at)
        value = std::min(kMaxCount + 1, value * 10 + (pattern_[at] - '0'));
      return at == begin ? std::nullopt : std::optional(value);
    };
    const auto first = number();
    if (!first) return false;
    min = max = *first;
    if (at < pattern_.size() && pattern_[at] == ',') {
      ++at;
      max = number().value_or(-1);
    }
    if (at >= pattern_.size() || pattern_[at] != '}') return false;
    at_ = at + 1;
    return true;
  }

  static Node of(CharacterSet set) {
    Node node;
    node.kind = Node::Kind::set;
    node.set = std::move(set);
    return node;
  }

  Result<Node> atom(int depth) {
    if (take("(")) {
      if (take("?")) {
        if (is("=") || is("!") || is("<=") || is("<!")) return error("look-around is not supported");
        if (take("<") || take("P<")) {
          const size_t end = pattern_.find('>', at_);
          if (end == std::string_view::npos) return error("the name of a group has no end");
          at_ = end + 1;
        } else if (!take(":")) {
          return error("flags of groups are not supported");
        }
      }
      INGOT_ASSIGN(Node inner, choice(depth + 1));
      if (!take(")")) return error("a group has no end");
      // A group is one part, also when anchors stand in it.
      if (inner.kind == Node::Kind::begin || inner.kind == Node::Kind::end) return error("an anchor in a group is not supported");
      return inner;
    }
    Node anchor;
    if (take("^")) {
      anchor.kind = Node::Kind::begin;
      return anchor;
    }
    if (take("$")) {
      anchor.kind = Node::Kind::end;
      return anchor;
    }
    if (is("*") || is("+") || is("?")) return error("nothing to repeat");
    if (take(".")) return of(dot());
    if (take("[")) {
      INGOT_ASSIGN(CharacterSet set, bracket());
      if (set.empty()) return error("a set without characters");
      return of(std::move(set));
    }
    if (take("\\")) {
      INGOT_ASSIGN(CharacterSet set, escape(false));
      return of(std::move(set));
    }
    const uint32_t c = next_character();
    return of(CharacterSet::range(c, c));
  }

  Result<CharacterSet> bracket() {
    const bool negated = take("^");
    CharacterSet out;
    while (!is("]")) {
      if (done()) return error("a set has no end");
      INGOT_ASSIGN(CharacterSet first, in_bracket());
      const std::optional<uint32_t> from = single_;
      if (is("-") && !is("-]")) {
        const size_t dash = at_++;
        if (done()) return error("a set has no end");
        INGOT_ASSIGN(CharacterSet last, in_bracket());
        if (!from || !single_) {
          // Beside a class a dash is a dash.
          out.add(last);
          out.add(CharacterSet::range('-', '-'));
        } else {
          if (*from > *single_) {
            at_ = dash;
            return error("a range that counts down");
          }
          out.add(CharacterSet::range(*from, *single_));
        }
      }
      out.add(first);
    }
    ++at_;
    return negated ? out.inverse() : out;
  }

  Result<CharacterSet> in_bracket() {
    if (take("\\")) return escape(true);
    const uint32_t c = next_character();
    single_ = c;
    return CharacterSet::range(c, c);
  }

  std::optional<uint32_t> hex(size_t min, size_t max) {
    uint32_t value = 0;
    size_t n = 0;
    for (; n < max && !done(); ++n, ++at_) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return n >= min ? std::optional(value) : std::nullopt;
  }

  // Behind a backslash. single_: the one character it is, if it is one.
  Result<CharacterSet> escape(bool in_set) {
    single_.reset();
    if (done()) return error("a backslash at the end");
    const uint32_t c = next_character();
    const auto one = [&](uint32_t character) -> Result<CharacterSet> {
      if (character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff)) return error("no such character");
      single_ = character;
      return CharacterSet::range(character, character);
    };
    switch (c) {
      case 'd': return digits();
      case 'D': return digits().inverse();
      case 'w': return word();
      case 'W': return word().inverse();
      case 's': return white_space();
      case 'S': return white_space().inverse();
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'b':
        if (in_set) return one('\b');
        return error("\\b is not supported");
      case 'B': return error("\\B is not supported");
      case 'p':
      case 'P': return error("\\p is not supported");
      case 'k': return error("a back reference is not supported");
      case 'x': {
        const auto value = hex(2, 2);
        if (!value) return error("\\x wants two hexadecimal digits");
        return one(*value);
      }
      case 'u': {
        const bool braced = take("{");
        const auto value = braced ? hex(1, 6) : hex(4, 4);
        if (!value || (braced && !take("}"))) return error("\\u wants four hexadecimal digits, or some in braces");
        return one(*value);
      }
      default: break;
    }
    if (c >= '1' && c <= '9') return error("a back reference is not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return error("\\{} is not supported", static_cast<char>(c));
    return one(c);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::optional<uint32_t> single_;
};

bool has_anchor(const Node& node) {
  if (node.kind == Node::Kind::begin || node.kind == Node::Kind::end) return true;
  return std::any_of(node.parts.begin(), node.parts.end(), has_anchor);
}

Node anything() {
  Node all;
  all.kind = Node::Kind::set;
  all.set = CharacterSet::all();
  Node node;
  node.kind = Node::Kind::repeat;
  node.parts.push_back(std::move(all));
  return node;
}

// One way of the pattern without its anchors; where there is none, anything may stand when the pattern is searched for.
Result<Node> without_anchors(Node node, bool search) {
  Node out;
  if (node.kind == Node::Kind::sequence)
    out = std::move(node);
  else
    out.parts.push_back(std::move(node));
  std::vector<Node>& parts = out.parts;
  bool begins = false, ends = false;
  while (!parts.empty() && parts.front().kind == Node::Kind::begin) {
    parts.erase(parts.begin());
    begins = true;
  }
  while (!parts.empty() && parts.back().kind == Node::Kind::end) {
    parts.pop_back();
    ends = true;
  }
  if (has_anchor(out)) return fail("regular expression: ^ and $ are supported at the ends alone");
  if (search && !begins) parts.insert(parts.begin(), anything());
  if (search && !ends) parts.push_back(anything());
  return out;
}

// The pattern again, in the syntax that XGrammar has, with characters as they are spelled. Empty: no string that can be spelled matches.
std::optional<std::string> written(const Node& node, Spelling spelling) {
  switch (node.kind) {
    case Node::Kind::set: {
      std::string one = GrammarRules::character(node.set, spelling);
      return one.empty() ? std::nullopt : std::optional(std::move(one));
    }
    case Node::Kind::sequence: {
      std::string out;
      for (const Node& part : node.parts) {
        const auto text = written(part, spelling);
        if (!text) return std::nullopt;
        out += *text;
      }
      return out;
    }
    case Node::Kind::choice: {
      std::vector<std::string> ways;
      bool may_be_empty = false;
      for (const Node& part : node.parts) {
        auto text = written(part, spelling);
        if (text && text->empty())
          may_be_empty = true;
        else if (text)
          ways.push_back(std::move(*text));
      }
      if (ways.empty()) return may_be_empty ? std::optional(std::string()) : std::nullopt;
      return fmt::format("({}){}", fmt::join(ways, "|"), may_be_empty ? kOptional : "");
    }
    case Node::Kind::repeat: {
      const auto body = written(node.parts[0], spelling);
      if (node.max == 0 || (body && body->empty())) return std::string();
      if (!body) return node.min == 0 ? std::optional(std::string()) : std::nullopt;
      if (node.max < 0 && node.min <= 1) return fmt::format("({}){}", *body, node.min == 0 ? '*' : '+');
      if (node.max == 1 && node.min == 0) return fmt::format("({}){}", *body, kOptional);
      return node.max < 0 ? fmt::format("({}){{{},}}", *body, node.min) : fmt::format("({}){{{},{}}}", *body, node.min, node.max);
    }
    default: return std::nullopt;
  }
}

}  // namespace

Result<std::string> regex_rules(std::string_view pattern, GrammarRules& rules, const RegexOptions& options) {
  if (pattern.size() > kMaxPatternBytes) return fail("regular expression: {} bytes are more than {}", pattern.size(), kMaxPatternBytes);
  if (find_invalid_utf8(pattern) != kValidUtf8) return fail("regular expression: not UTF-8");
  INGOT_ASSIGN(Node node, Parser(pattern).parse());
  std::vector<Node> ways;
  if (node.kind == Node::Kind::choice)
    ways = std::move(node.parts);
  else
    ways.push_back(std::move(node));
  node = Node{};
  node.kind = Node::Kind::choice;
  for (Node& way : ways) {
    INGOT_ASSIGN(Node whole, without_anchors(std::move(way), options.search));
    node.parts.push_back(std::move(whole));
  }
  if (node.size() > kMaxParts) return fail("regular expression: more than {} parts once its repetitions are written out", kMaxParts);
  if (options.min_length > 0 || options.max_length >= 0) {
    Node* only = node.parts.size() == 1 && node.parts[0].parts.size() == 1 ? &node.parts[0].parts[0] : nullptr;
    if (only == nullptr || only->kind != Node::Kind::repeat || only->parts[0].kind != Node::Kind::set)
      return fail("minLength and maxLength beside a pattern are supported only where it is one repeated set of characters, as ^[a-z]+$");
    only->min = std::max(only->min, options.min_length);
    if (options.max_length >= 0) only->max = only->max < 0 ? options.max_length : std::min(only->max, options.max_length);
    if (only->max >= 0 && only->min > only->max) return fail("no string has the pattern and the length");
  }
  const auto text = written(node, options.spelling);
  if (!text) return fail("regular expression: no string matches it here");
  if (text->empty()) return is_json(options.spelling) ? GrammarRules::literal("\"\"") : GrammarRules::literal("");
  return rules.regex("pattern", *text, options.spelling, node.size());
}

}  // namespace ingot::text
