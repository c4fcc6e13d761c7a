// Objects of a schema: as JSON, and as the arguments of a tool call in the model's own format.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "text/grammar_regex.h"
#include "text/grammar_schema.h"
#include "text/grammar_schema_parts.h"

namespace ingot::text {
namespace {

// Only said to be of some type, or nothing at all: every value of the type is valid.
bool is_plain(const Json& way) {
  return std::all_of(way.items().begin(), way.items().end(), [](const auto& member) { return member.key() == "type"; });
}

}  // namespace

// Rules that read the declared members in order, each or, when it is optional, none: one chain for "nothing yet", one for "behind another".
std::string SchemaRules::members(const Members& members, const std::string& separator) {
  std::string rest = "\"\"", begin = members.need_one ? "" : "\"\"";
  if (!members.other.empty()) {
    const std::string next = rules_.add("next_member", separator.empty() ? members.other : separator + " " + members.other);
    const auto up_to = [&](int64_t max) {
      return max < 0 ? fmt::format("{}{{0,}}", next) : max == 0 ? "\"\"" : fmt::format("{}{{0,{}}}", next, max);
    };
    rest = up_to(members.max_other);
    const std::string some = fmt::format("{} {}", members.other, up_to(members.max_other < 0 ? -1 : members.max_other - 1));
    if (members.max_other != 0) begin = begin.empty() ? some : fmt::format(R"(("" | {}))", some);
  }
  for (auto at = members.declared.rbegin(); at != members.declared.rend(); ++at) {
    const std::string behind = separator.empty() ? at->text : separator + " " + at->text;
    const std::string after = rest;
    rest = rules_.add("members", at->required ? fmt::format("{} {}", behind, after) : fmt::format("({} {} | {})", behind, after, after));
    const std::string first = fmt::format("{} {}", at->text, after);
    begin = rules_.add("members", at->required || begin.empty() ? first : fmt::format("({} | {})", first, begin));
  }
  return begin;
}

Result<SchemaRules::Members> SchemaRules::members_of(
    const Way& way, const std::string& where,
    const std::function<Result<std::string>(const std::string& key, const Json& schema, const std::string& where)>& declared,
    const std::function<Result<std::string>(const std::vector<std::string>& names, const Json& schema, const std::string& where)>& other) {
  Members out;
  const bool has_patterns = way.contains("patternProperties") && !way["patternProperties"].empty();
  const bool is_map = !way.contains("properties") || way["properties"].empty();
  // An object of which no property is declared may have any; `properties` closes it, as an empty one does.
  Json open = way.contains("additionalProperties") ? way["additionalProperties"] : Json(!way.contains("properties") && !has_patterns);
  if (has_patterns && (!is_map || (open != Json(false) && way.contains("additionalProperties")) || way["patternProperties"].size() > 1))
    INGOT_TRY(cannot(where, "patternProperties", "supported as a single pattern without properties and additionalProperties"));
  std::set<std::string> required;
  if (way.contains("required")) {
    for (const Json& name : way["required"]) required.insert(name.get<std::string>());
  }
  std::vector<std::string> names;
  int64_t num_required = 0;
  const auto add = [&](const std::string& key, const Json& schema, const std::string& place) -> Result<> {
    if (schema == Json(false)) {
      if (required.contains(key)) return fail("{}: is required, and no value is valid for it", place);
      return {};
    }
    INGOT_ASSIGN(std::string text, declared(key, schema, place));
    out.declared.push_back({std::move(text), required.contains(key)});
    num_required += required.contains(key) ? 1 : 0;
    return {};
  };
  if (!is_map) {
    for (const auto& [key, schema] : way["properties"].items()) {
      names.push_back(key);
      INGOT_TRY(add(key, schema, fmt::format("{}.properties.{}", where, key)));
    }
  }
  if (way.contains("required")) {
    for (const Json& name : way["required"]) {
      const auto key = name.get<std::string>();
      if (std::find(names.begin(), names.end(), key) != names.end()) continue;
      if (open == Json(false)) {
        INGOT_TRY(cannot(where, "required", fmt::format("\"{}\" is not among the properties, and others are forbidden", key)));
        continue;
      }
      names.push_back(key);
      INGOT_TRY(add(key, open, where + ".additionalProperties"));
    }
  }
  INGOT_ASSIGN(const int64_t min, count(way, "minProperties", where, 0));
  INGOT_ASSIGN(const int64_t max, count(way, "maxProperties", where, -1));
  const auto num_declared = static_cast<int64_t>(out.declared.size());
  if (has_patterns && open == Json(false) && is_map && way["patternProperties"].size() == 1) {
    const auto& pattern = way["patternProperties"].items().begin();
    const std::string place = fmt::format("{}.patternProperties.{}", where, pattern.key());
    auto body = regex_rules(pattern.key(), rules_, {.spelling = options_.spelling, .search = true});
    if (!body) {
      INGOT_TRY(cannot(place, "", body.error().text()));
    } else {
      INGOT_ASSIGN(std::string value_rule, value(pattern.value(), place));
      out.other = rules_.add("pair", fmt::format(R"({0} {1} ":" {1} {2})", *body, rules_.space(), value_rule));
    }
  } else if (open != Json(false)) {
    INGOT_ASSIGN(out.other, other(names, open, where + ".additionalProperties"));
  }
  if (max >= 0 && min > max) return fail("{}: minProperties {} is more than maxProperties {}", where, min, max);
  if (out.other.empty() && min > num_declared)
    return fail("{}.minProperties: {} properties are wanted where only {} can be", where, min, num_declared);
  // Keys beyond the declared ones may come twice, so that a count of theirs is none of the object's properties.
  if (min > std::max<int64_t>(num_required, 1))
    INGOT_TRY(cannot(where, "minProperties", "more than the required properties is supported only as 1"));
  if (max >= 0 && max < num_declared) INGOT_TRY(cannot(where, "maxProperties", "fewer than the declared properties is not supported"));
  if (max >= 0) out.max_other = std::max<int64_t>(max - num_declared, 0);
  out.need_one = min > 0 && num_required == 0;
  return out;
}

Result<std::string> SchemaRules::object_of(const Way& way, const std::string& where) {
  const bool free = !way.contains("properties") && !way.contains("required") && !way.contains("patternProperties") &&
                    !way.contains("minProperties") && !way.contains("maxProperties") &&
                    (!way.contains("additionalProperties") || way["additionalProperties"] == Json(true));
  if (free) return rules_.any_object(options_.spelling);
  const std::string gap = rules_.space();
  const auto pair = [&](const std::string& key, const std::string& rule) { return fmt::format(R"({} {} ":" {} {})", key, gap, gap, rule); };
  INGOT_ASSIGN(const Members all,
               members_of(
                   way, where,
                   [&](const std::string& key, const Json& schema, const std::string& place) -> Result<std::string> {
                     INGOT_ASSIGN(const std::string rule, value(schema, place));
                     return pair(json_literal(key, options_.spelling), rule);
                   },
                   [&](const std::vector<std::string>& names, const Json& schema, const std::string& place) -> Result<std::string> {
                     INGOT_ASSIGN(const std::string rule, value(schema, place));
                     return rules_.add("pair", pair(rules_.string_except(names, options_.spelling), rule));
                   }));
  if (all.declared.empty() && all.other.empty()) return rules_.add("object", fmt::format(R"("{{" {} "}}")", gap));
  const std::string body = members(all, fmt::format(R"({0} "," {0})", gap));
  return rules_.add("object", fmt::format(R"("{{" {0} {1} {0} "}}")", gap, body));
}

// --- tool calls

Result<std::string> SchemaRules::argument(const Json& schema, const ArgumentType& type, const std::string& where) {
  // Not a string, or nothing is known (then JSON is what it says): JSON text, of which OutputParser keeps every byte.
  if (type.known && !type.string) return value(schema, where);
  INGOT_ASSIGN(const std::vector<Way> found, ways(schema, where));
  const bool says_nothing = std::any_of(found.begin(), found.end(), [](const Way& way) { return way.empty(); });
  if (!type.known) return says_nothing ? rules_.string(Spelling::tag) : value(schema, where);

  std::vector<std::string> parts;
  bool others_bounded = false;
  const auto types_in = [](const Way& way) {
    std::set<std::string> out{"object", "array", "string", "number", "integer", "boolean", "null"};
    if (way.contains("type")) {
      out.clear();
      for (const Json& name : way["type"]) out.insert(name.get<std::string>());
    }
    return out;
  };
  if (!type.only_string()) {
    for (const Way& way : found) {
      std::set<std::string> others = types_in(way);
      if (is_plain(way) && !way.contains("type")) others = {"object", "array", "number", "boolean", "null"};
      others.erase("string");
      if (others.contains("number")) others.erase("integer");
      // Keywords of strings say nothing of other types; alone they mean a string.
      const bool only_of_strings =
          !way.contains("type") && !way.contains("enum") &&
          (way.contains("pattern") || way.contains("format") || way.contains("minLength") || way.contains("maxLength"));
      if (others.empty() || only_of_strings) continue;
      if (!is_plain(way) && (way.contains("enum") || others != std::set<std::string>{"null"})) others_bounded = true;
      INGOT_ASSIGN(std::string part, one_way(way, where, others));
      if (!part.empty()) parts.push_back(std::move(part));
    }
  }
  for (const Way& way : found) {
    if (!types_in(way).contains("string")) continue;
    if (way.contains("enum")) {
      for (const Json& value : way["enum"]) {
        if (!value.is_string()) continue;
        const auto& text = value.get_ref<const std::string&>();
        // What would be read as something else is that only where anything of it is valid.
        const bool comes_back = argument_json(text, type).starts_with('"');
        if (text.find("</arg_value>") == std::string::npos && (comes_back || !others_bounded)) parts.push_back(GrammarRules::literal(text));
      }
    } else if (!others_bounded) {
      INGOT_ASSIGN(std::string part, string_of(way, where, Spelling::tag));
      parts.push_back(std::move(part));
    } else {
      // A string beside numbers with bounds, say: it must not read like one of them.
      if (way.contains("pattern") || way.contains("format"))
        INGOT_TRY(cannot(where, "", "a string with a pattern or a format beside bounded values of another type is not supported"));
      INGOT_ASSIGN(const int64_t min, count(way, "minLength", where, 0, GrammarRules::kMaxCounted));
      INGOT_ASSIGN(const int64_t max, count(way, "maxLength", where, -1, GrammarRules::kMaxCounted));
      CharacterSet first = CharacterSet::all();
      for (const char c : std::string_view(" \t\r\n\"[{-0123456789tfnTFN<")) {
        const auto code = static_cast<uint32_t>(static_cast<unsigned char>(c));
        first.remove(CharacterSet::range(code, code));
      }
      const bool has_length = min > 0 || max >= 0;
      if (max != 0)
        parts.push_back(fmt::format("{} {}", first.ebnf(),
                                    has_length ? rules_.string(Spelling::tag, std::max<int64_t>(min - 1, 0), max < 0 ? -1 : max - 1)
                                               : rules_.string(Spelling::tag)));
    }
  }
  if (parts.empty()) return fail("{}: no value is valid for it", where);
  return rules_.add("argument", fmt::format("({})", fmt::join(parts, " | ")));
}

Result<std::string> SchemaRules::argument_lists(const std::string& where, const std::function<ArgumentType(const std::string&)>& type_of) {
  root_where_ = where;
  INGOT_ASSIGN(const std::vector<Way> found, ways(root_, where));
  std::vector<std::string> lists;
  for (const Way& way : found) {
    if (way.contains("type") && std::find(way["type"].begin(), way["type"].end(), Json("object")) == way["type"].end()) continue;
    if (way.contains("enum")) INGOT_TRY(cannot(where, "enum", "of the arguments as a whole is not supported"));
    INGOT_ASSIGN(const Members all,
                 members_of(
                     way, where,
                     [&](const std::string& key, const Json& schema, const std::string& place) -> Result<std::string> {
                       // The parser takes white space from both ends of a key, and ends it at a tag.
                       if (key.empty() || key.find('<') != std::string::npos ||
                           std::string_view(" \t\r\n").find(key.front()) != std::string_view::npos ||
                           std::string_view(" \t\r\n").find(key.back()) != std::string_view::npos)
                         return fail("{}: the name of an argument must not be empty, have < in it, or begin or end with white space",
                                     place);
                       INGOT_ASSIGN(const std::string text, argument(schema, type_of(key), place));
                       return argument_pair(GrammarRules::literal(key), text);
                     },
                     [&](const std::vector<std::string>& names, const Json& schema, const std::string& place) -> Result<std::string> {
                       INGOT_ASSIGN(const std::string text, argument(schema, {}, place));
                       return rules_.add("argument", argument_pair(rules_.string_except(names, Spelling::tag), text));
                     }));
    lists.push_back(members(all, ""));
  }
  if (lists.empty()) return fail("{}: the arguments of a call are an object, and no object is valid for it", where);
  return rules_.add("arguments", fmt::format("({})", fmt::join(lists, " | ")));
}

}  // namespace ingot::text
