#include "text/grammar_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "text/grammar_regex.h"
#include "text/grammar_schema_parts.h"

namespace ingot::text {
namespace {

constexpr int kMaxDepth = 64;         // of values in values
constexpr int kMaxReferences = 32;    // $ref, anyOf, ... without a value between
constexpr size_t kMaxWays = 256;      // of one schema
constexpr int64_t kMaxWork = 20'000;  // schemas looked at, again and again counted

bool is_annotation(const std::string& keyword) {
  static const std::set<std::string> kWords{
      "title",    "description", "default",    "examples", "example",     "$comment",        "$schema", "$id",
      "readOnly", "writeOnly",   "deprecated", "$defs",    "definitions", "contentEncoding", "strict",  "contentMediaType"};
  return kWords.contains(keyword) || keyword.starts_with("x-");
}

// Keyword of one type -> that type.
const std::map<std::string, std::string>& keyword_types() {
  static const std::map<std::string, std::string> kTypes{{"properties", "object"},
                                                         {"required", "object"},
                                                         {"additionalProperties", "object"},
                                                         {"patternProperties", "object"},
                                                         {"minProperties", "object"},
                                                         {"maxProperties", "object"},
                                                         {"items", "array"},
                                                         {"prefixItems", "array"},
                                                         {"minItems", "array"},
                                                         {"maxItems", "array"},
                                                         {"pattern", "string"},
                                                         {"format", "string"},
                                                         {"minLength", "string"},
                                                         {"maxLength", "string"},
                                                         {"minimum", "number"},
                                                         {"maximum", "number"},
                                                         {"exclusiveMinimum", "number"},
                                                         {"exclusiveMaximum", "number"},
                                                         {"multipleOf", "number"}};
  return kTypes;
}

std::string type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "object";
    case Json::value_t::array: return "array";
    case Json::value_t::string: return "string";
    case Json::value_t::boolean: return "boolean";
    case Json::value_t::null: return "null";
    case Json::value_t::number_float: return std::trunc(value.get<double>()) == value.get<double>() ? "integer" : "number";
    default: return "integer";
  }
}

const std::set<std::string>& all_types() {
  static const std::set<std::string> kAll{"object", "array", "string", "number", "boolean", "null"};
  return kAll;
}

bool type_allows(const std::set<std::string>& types, const std::string& type) {
  return types.contains(type) || (type == "integer" && types.contains("number"));
}

std::set<std::string> intersection(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> out;
  for (const std::string& type : a) {
    if (type_allows(b, type)) out.insert(type);
  }
  for (const std::string& type : b) {
    if (type_allows(a, type)) out.insert(type);
  }
  return out;
}

std::set<std::string> listed_types(const Json& way) {
  std::set<std::string> out;
  for (const Json& type : way["type"]) out.insert(type.get<std::string>());
  return out;
}

// What a value of this way can be.
std::set<std::string> types_of(const Json& way) {
  std::set<std::string> out = all_types();
  if (way.contains("enum")) {
    out.clear();
    for (const Json& value : way["enum"]) out.insert(type_name(value));
  } else if (!way.contains("type")) {
    std::set<std::string> meant;
    for (const auto& [keyword, type] : keyword_types()) {
      if (way.contains(keyword)) meant.insert(type);
    }
    if (!meant.empty()) out = meant;
  }
  return way.contains("type") ? intersection(out, listed_types(way)) : out;
}

// The values that a property is fixed to, when its schema says so itself.
std::optional<Json> fixed_values(const Json& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (schema.contains("const")) return Json::array({schema["const"]});
  if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
  return std::nullopt;
}

bool have_common(const Json& a, const Json& b) {
  return std::any_of(a.begin(), a.end(), [&](const Json& value) { return std::find(b.begin(), b.end(), value) != b.end(); });
}

bool requires_key(const Json& way, const std::string& key) {
  return way.contains("required") && std::find(way["required"].begin(), way["required"].end(), key) != way["required"].end();
}

// No value can be both, whatever else the schemas say.
bool are_disjoint(const Json& a, const Json& b) {
  if (a.contains("enum") && b.contains("enum")) return !have_common(a["enum"], b["enum"]);
  const std::set<std::string> common = intersection(types_of(a), types_of(b));
  if (common.empty()) return true;
  // Keywords of one type say nothing of values of another: only with `type` does a way end there.
  if (common != std::set<std::string>{"object"} || !a.contains("type") || !b.contains("type")) return false;
  const auto one_sided = [](const Json& x, const Json& y) {
    if (!x.contains("required") || !y.contains("additionalProperties") || y["additionalProperties"] != Json(false)) return false;
    return std::any_of(x["required"].begin(), x["required"].end(),
                       [&](const Json& key) { return !y.contains("properties") || !y["properties"].contains(key.get<std::string>()); });
  };
  if (one_sided(a, b) || one_sided(b, a)) return true;
  if (!a.contains("properties") || !b.contains("properties")) return false;
  for (const auto& [key, schema] : a["properties"].items()) {
    if (!requires_key(a, key) || !requires_key(b, key) || !b["properties"].contains(key)) continue;
    const auto x = fixed_values(schema), y = fixed_values(b["properties"][key]);
    if (x && y && !have_common(*x, *y)) return true;
  }
  return false;
}

std::string pointer_part(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '~' && i + 1 < text.size();
    out += !escape ? text[i] : text[++i] == '1' ? '/' : '~';
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  return parts.size() == 1 ? parts[0] : fmt::format("({})", fmt::join(parts, " | "));
}

}  // namespace

Result<> SchemaRules::cannot(const std::string& where, std::string_view keyword, std::string_view why) {
  const std::string place = keyword.empty() ? where : fmt::format("{}.{}", where, keyword);
  if (options_.strict) return fail("{}: {}", place, why);
  if (ignored_.size() < 20) ignored_.push_back(place);
  return {};
}

Result<int64_t> SchemaRules::count(const Way& way, const char* keyword, const std::string& where, int64_t none, int64_t limit) {
  if (!way.contains(keyword)) return none;
  const Json& value = way[keyword];
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number < 0 || number != std::trunc(number)) {
    INGOT_TRY(cannot(where, keyword, "must be an integer that is not negative"));
    return none;
  }
  if (number > static_cast<double>(limit)) {
    INGOT_TRY(cannot(where, keyword, fmt::format("at most {} can be counted", limit)));
    return none;
  }
  return static_cast<int64_t>(number);
}

Result<const Json*> SchemaRules::resolve(const std::string& reference, const std::string& where) const {
  if (reference == "#") return &root_;
  if (!reference.starts_with("#/")) return fail("{}.$ref: \"{}\" is not a place in this schema (\"#/...\")", where, reference);
  const Json* at = &root_;
  for (std::string_view rest = std::string_view(reference).substr(1); !rest.empty();) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string part = pointer_part(rest.substr(0, end));
    rest.remove_prefix(end);
    if (at->is_object() && at->contains(part)) {
      at = &(*at)[part];
    } else if (at->is_array() && !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(part) < at->size()) {
      at = &(*at)[std::stoul(part)];
    } else {
      return fail("{}.$ref: \"{}\" leads nowhere", where, reference);
    }
  }
  return at;
}

// "#/$defs/node" -> "response_format.json_schema.schema.$defs.node"
std::string SchemaRules::place_of(std::string reference) const {
  std::replace(reference.begin(), reference.end(), '/', '.');
  return root_where_ + reference.substr(1);
}

// --- from a schema to its ways

Result<SchemaRules::Way> SchemaRules::own_keywords(const Json& schema, const std::string& where) {
  static const std::set<std::string> kInPlace{"$ref", "allOf", "anyOf", "oneOf"};
  Way out = Json::object();
  for (const auto& [keyword, value] : schema.items()) {
    if (is_annotation(keyword) || kInPlace.contains(keyword) || keyword == "nullable" || keyword == "additionalItems") continue;
    if (keyword == "type") {
      Json list = value.is_array() ? value : Json::array({value});
      Json known = Json::array();
      for (Json& type : list) {
        std::string name = type.is_string() ? type.get<std::string>() : "";
        if (!options_.strict) std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
        if (all_types().contains(name) || name == "integer")
          known.push_back(name);
        else
          INGOT_TRY(cannot(where, keyword, fmt::format("{} is not a type", type.dump())));
      }
      if (value.is_array() && value.empty()) INGOT_TRY(cannot(where, keyword, "an empty list allows nothing"));
      if (!known.empty()) out["type"] = known;
    } else if (keyword == "const") {
      out["enum"] = Json::array({value});
    } else if (keyword == "enum") {
      if (value.is_array() && !value.empty())
        out["enum"] = value;
      else
        INGOT_TRY(cannot(where, keyword, "must be a list with at least one value"));
    } else if (keyword == "properties" || keyword == "patternProperties") {
      if (value.is_object())
        out[keyword] = value;
      else
        INGOT_TRY(cannot(where, keyword, "must be an object"));
    } else if (keyword == "required") {
      if (value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& name) { return name.is_string(); }))
        out[keyword] = value;
      else
        INGOT_TRY(cannot(where, keyword, "must be a list of strings"));
    } else if (keyword == "items" && value.is_array()) {
      out["prefixItems"] = value;
    } else if (keyword == "unevaluatedProperties" && value == Json(false)) {
      // Properties that are not declared are forbidden as it is.
    } else if (keyword_types().contains(keyword)) {
      out[keyword] = value;
    } else {
      INGOT_TRY(cannot(where, keyword, "this keyword is not supported"));
    }
  }
  // Older drafts: a list of items, and what may stand behind them.
  if (schema.contains("items") && schema["items"].is_array() && schema.contains("additionalItems"))
    out["items"] = schema["additionalItems"];
  if (schema.contains("const") && schema.contains("enum") && schema["enum"].is_array()) {
    if (std::find(schema["enum"].begin(), schema["enum"].end(), schema["const"]) == schema["enum"].end())
      INGOT_TRY(cannot(where, "const", "is not in enum"));
    out["enum"] = Json::array({schema["const"]});
  }
  // OpenAPI's way to say it.
  if (schema.contains("nullable") && schema["nullable"] == Json(true)) {
    if (out.contains("type")) out["type"].push_back("null");
    if (out.contains("enum") && std::find(out["enum"].begin(), out["enum"].end(), Json()) == out["enum"].end())
      out["enum"].push_back(nullptr);
  }
  return out;
}

Result<std::vector<SchemaRules::Way>> SchemaRules::ways(const Json& schema, const std::string& where, int depth) {
  if (schema.is_boolean()) return schema.get<bool>() ? std::vector<Way>{Json::object()} : std::vector<Way>{};
  if (!schema.is_object()) return fail("{}: a schema must be an object or a boolean, not {}", where, schema.type_name());
  if (depth > kMaxReferences)
    return fail("{}: $ref, anyOf, oneOf or allOf lead back to themselves without a value between, or nest too deeply", where);
  if (++work_ > kMaxWork) return fail("{}: the schema is too large, counted with its references", where);
  INGOT_ASSIGN(Way own, own_keywords(schema, where));
  std::vector<std::pair<const Json*, std::string>> all;
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) return fail("{}.$ref: must be a string", where);
    auto target = resolve(schema["$ref"].get<std::string>(), where);
    // A tool's schema is not ours to mend: what leads nowhere says nothing.
    if (target)
      all.emplace_back(*target, place_of(schema["$ref"].get<std::string>()));
    else if (options_.strict)
      return forward_error(target.error());
    else
      INGOT_TRY(cannot(where, "$ref", ""));
  }
  if (schema.contains("allOf")) {
    const Json& list = schema["allOf"];
    if (!list.is_array()) return fail("{}.allOf: must be a list", where);
    for (size_t i = 0; i < list.size(); ++i) all.emplace_back(&list[i], fmt::format("{}.allOf[{}]", where, i));
  }
  INGOT_ASSIGN(std::vector<Way> out, ways_of_all(all, {std::move(own)}, where, depth));
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    const std::string place = fmt::format("{}.{}", where, keyword);
    if (!schema[keyword].is_array() || schema[keyword].empty()) return fail("{}: must be a list with at least one schema", place);
    std::vector<std::vector<Way>> parts;
    std::vector<Way> any;
    for (size_t i = 0; i < schema[keyword].size(); ++i) {
      INGOT_ASSIGN(std::vector<Way> part, ways(schema[keyword][i], fmt::format("{}[{}]", place, i), depth + 1));
      any.insert(any.end(), part.begin(), part.end());
      parts.push_back(std::move(part));
    }
    if (any.size() > kMaxWays) return fail("{}: more than {} ways", place, kMaxWays);
    if (keyword == std::string_view("oneOf")) {
      bool disjoint = true;
      for (size_t i = 0; i < parts.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          for (const Way& a : parts[i])
            disjoint &= std::all_of(parts[j].begin(), parts[j].end(), [&](const Way& b) { return are_disjoint(a, b); });
        }
      }
      if (!disjoint)
        INGOT_TRY(cannot(
            where, keyword,
            "supported only where no value can be two of its parts (different types, or a required property with const); use anyOf"));
    }
    std::vector<Way> merged;
    for (const Way& base : out) {
      for (const Way& part : any) {
        Way both = base;
        bool possible = true;
        INGOT_TRY(merge(both, part, place, possible));
        if (possible) merged.push_back(std::move(both));
      }
    }
    if (merged.size() > kMaxWays) return fail("{}: more than {} ways", place, kMaxWays);
    out = std::move(merged);
  }
  if (out.empty() && depth == 0) return fail("{}: no value is valid for it", where);
  return out;
}

Result<std::vector<SchemaRules::Way>> SchemaRules::ways_of_all(const std::vector<std::pair<const Json*, std::string>>& parts,
                                                               std::vector<Way> out, const std::string& where, int depth) {
  for (const auto& [part, place] : parts) {
    INGOT_ASSIGN(std::vector<Way> more, ways(*part, place, depth + 1));
    std::vector<Way> merged;
    for (const Way& base : out) {
      for (const Way& other : more) {
        Way both = base;
        bool possible = true;
        INGOT_TRY(merge(both, other, where, possible));
        if (possible) merged.push_back(std::move(both));
      }
    }
    if (merged.size() > kMaxWays) return fail("{}: more than {} ways", where, kMaxWays);
    out = std::move(merged);
  }
  return out;
}

// What is valid for both.
Result<> SchemaRules::merge(Way& into, const Way& other, const std::string& where, bool& possible) {
  if (++work_ > kMaxWork) return fail("{}: the schema is too large, counted with its references", where);
  const auto closed = [](const Way& way) { return way.contains("additionalProperties") && way["additionalProperties"] != Json(true); };
  if ((closed(into) && other.contains("properties")) || (closed(other) && into.contains("properties"))) {
    // Each declares what the other one's additionalProperties is about.
    const auto only_false = [](const Way& way) {
      return !way.contains("additionalProperties") || way["additionalProperties"].is_boolean();
    };
    if (!only_false(into) || !only_false(other))
      INGOT_TRY(cannot(where, "", "additionalProperties beside properties of another part is not supported"));
  }
  // What one part declares and the other forbids is no property of both.
  std::vector<std::string> forbidden;
  const auto forbid = [&](const Way& by, const Way& of) {
    if (!by.contains("additionalProperties") || by["additionalProperties"] != Json(false) || !of.contains("properties")) return;
    for (const auto& [key, schema] : of["properties"].items()) {
      if (by.contains("properties") && by["properties"].contains(key) && by["properties"][key] != Json(false)) continue;
      forbidden.push_back(key);
      if (requires_key(of, key)) possible = false;
    }
  };
  forbid(into, other);
  forbid(other, into);
  for (const auto& [keyword, value] : other.items()) {
    if (!into.contains(keyword)) {
      into[keyword] = value;
      continue;
    }
    Json& mine = into[keyword];
    if (mine == value) continue;
    if (keyword == "type") {
      const std::set<std::string> both = intersection(listed_types(into), listed_types(other));
      mine = Json(both);
      possible &= !both.empty();
    } else if (keyword == "enum") {
      Json both = Json::array();
      for (const Json& v : mine) {
        if (std::find(value.begin(), value.end(), v) != value.end()) both.push_back(v);
      }
      possible &= !both.empty();
      mine = both;
    } else if (keyword == "properties") {
      for (const auto& [key, schema] : value.items())
        mine[key] = mine.contains(key) && mine[key] != schema ? Json{{"allOf", Json::array({mine[key], schema})}} : schema;
    } else if (keyword == "required") {
      for (const Json& key : value) {
        if (std::find(mine.begin(), mine.end(), key) == mine.end()) mine.push_back(key);
      }
    } else if (keyword == "additionalProperties" || keyword == "items") {
      mine = mine == Json(false) || value == Json(false) ? Json(false) : Json{{"allOf", Json::array({mine, value})}};
    } else if (mine.is_number() && value.is_number() && keyword != "multipleOf") {
      const bool lower = keyword.starts_with("min") || keyword == "exclusiveMinimum";
      if (lower == (value.get<double>() > mine.get<double>())) mine = value;
    } else {
      INGOT_TRY(cannot(where, keyword, "two parts say different things, which is not supported"));
    }
  }
  for (const std::string& key : forbidden) into["properties"][key] = false;
  return {};
}

// --- values

Result<std::string> SchemaRules::value(const Json& schema, const std::string& where) {
  const std::string key = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto [at, is_new] = done_.try_emplace(key);
  if (!is_new) return at->second;
  if (root_where_.empty()) root_where_ = where;
  if (++depth_ > kMaxDepth) return fail("{}: the schema nests deeper than {}", where, kMaxDepth);
  if (rules_.too_large()) return fail("{}: the schema is too large for a grammar", where);
  const std::string name = at->second = rules_.reserve("value");
  INGOT_ASSIGN(std::vector<Way> found, ways(schema, where));
  std::vector<std::string> parts;
  for (const Way& way : found) {
    INGOT_ASSIGN(std::string part, one_way(way, where, types_of(way)));
    if (!part.empty()) parts.push_back(std::move(part));
  }
  if (parts.empty()) return fail("{}: no value is valid for it", where);
  rules_.define(name, joined(parts));
  --depth_;
  return name;
}

// `types`: those of the way that are wanted. Empty: there is no such value.
Result<std::string> SchemaRules::one_way(const Way& way, const std::string& where, const std::set<std::string>& types) {
  std::vector<std::string> parts;
  if (way.contains("enum")) {
    for (const auto& [keyword, type] : keyword_types()) {
      if (way.contains(keyword)) INGOT_TRY(cannot(where, keyword, "beside enum or const is not supported"));
    }
    for (const Json& value : way["enum"]) {
      if (type_allows(types, type_name(value))) parts.push_back(json_literal(value, options_.spelling));
    }
    return parts.empty() ? std::string() : joined(parts);
  }
  if (way.empty() && types == all_types()) return rules_.any(options_.spelling);
  for (const std::string& type : types) {
    std::string part;
    if (type == "integer" || type == "number") {
      if (type == "integer" && types.contains("number")) continue;
      INGOT_ASSIGN(part, number_of(way, where, type == "integer"));
    } else if (type == "string") {
      INGOT_ASSIGN(part, string_of(way, where, options_.spelling));
    } else if (type == "boolean") {
      part = R"(("true" | "false"))";
    } else if (type == "null") {
      part = R"("null")";
    } else if (type == "array") {
      INGOT_ASSIGN(part, array_of(way, where));
    } else {
      INGOT_ASSIGN(part, object_of(way, where));
    }
    parts.push_back(std::move(part));
  }
  return parts.empty() ? std::string() : joined(parts);
}

Result<std::string> SchemaRules::string_of(const Way& way, const std::string& where, Spelling spelling) {
  INGOT_ASSIGN(const int64_t min, count(way, "minLength", where, 0, GrammarRules::kMaxCounted));
  INGOT_ASSIGN(const int64_t max, count(way, "maxLength", where, -1, GrammarRules::kMaxCounted));
  if (max >= 0 && min > max) return fail("{}: minLength {} is more than maxLength {}", where, min, max);
  const bool has_length = min > 0 || max >= 0;
  bool has_pattern = way.contains("pattern");
  if (has_pattern && !way["pattern"].is_string()) {
    INGOT_TRY(cannot(where, "pattern", "must be a string"));
    has_pattern = false;
  }
  std::string_view format;
  if (way.contains("format")) {
    format = way["format"].is_string() ? format_pattern(way["format"].get<std::string>()) : std::string_view();
    if (format.empty())
      INGOT_TRY(cannot(where, "format", fmt::format("{} is not supported; supported: {}", way["format"].dump(), supported_formats())));
    if (!format.empty() && has_pattern) INGOT_TRY(cannot(where, "format", "beside pattern is not supported"));
    if (!format.empty() && has_length) INGOT_TRY(cannot(where, "format", "beside minLength or maxLength is not supported"));
  }
  if (has_pattern) {
    auto rule = regex_rules(way["pattern"].get<std::string>(), rules_,
                            {.spelling = spelling, .search = true, .min_length = min, .max_length = max});
    if (rule) return *rule;
    INGOT_TRY(cannot(where, "pattern", rule.error().text()));
  } else if (!format.empty()) {
    return regex_rules(format, rules_, {.spelling = spelling});
  }
  return has_length ? rules_.string(spelling, min, max) : rules_.string(spelling);
}

Result<std::string> SchemaRules::number_of(const Way& way, const std::string& where, bool integer) {
  const auto number_at = [&](const char* keyword) -> Result<std::optional<double>> {
    if (!way.contains(keyword)) return std::nullopt;
    if (!way[keyword].is_number()) {
      INGOT_TRY(cannot(where, keyword, "must be a number"));
      return std::nullopt;
    }
    return way[keyword].get<double>();
  };
  INGOT_ASSIGN(const auto minimum, number_at("minimum"));
  INGOT_ASSIGN(const auto maximum, number_at("maximum"));
  INGOT_ASSIGN(const auto above, number_at("exclusiveMinimum"));
  INGOT_ASSIGN(const auto below, number_at("exclusiveMaximum"));
  INGOT_ASSIGN(const auto multiple, number_at("multipleOf"));
  std::optional<NumberBound> low, high;
  if (minimum) low = NumberBound{*minimum, false};
  if (above && (!low || *above >= low->value)) low = NumberBound{*above, true};
  if (maximum) high = NumberBound{*maximum, false};
  if (below && (!high || *below <= high->value)) high = NumberBound{*below, true};

  int decimals = integer ? 0 : kMaxDecimals;
  bool bounded = low || high;
  if (multiple) {
    const std::optional<int> digits = decimals_of(*multiple);
    if (digits) {
      decimals = integer ? 0 : *digits;
      // 1, 0.1, 0.01, ...: so many digits and no more.
      bounded = bounded || !integer;
    } else if (integer && !bounded && *multiple == std::trunc(*multiple) && *multiple >= 1 && *multiple <= GrammarRules::kMaxDivisor) {
      return rules_.multiple(static_cast<int>(*multiple));
    } else {
      std::vector<std::string> few =
          integer && *multiple == std::trunc(*multiple) ? multiples_between(*multiple, low, high) : std::vector<std::string>{};
      if (!few.empty()) return joined(few);
      INGOT_TRY(cannot(where, "multipleOf",
                       "supported for integers (up to 32, or with bounds that leave at most 1000 values) and as 0.1, 0.01, ..."));
    }
  }
  if (!bounded) return integer ? rules_.integer() : rules_.number();
  auto rule = rules_.number(low, high, decimals);
  if (rule) return *rule;
  INGOT_TRY(cannot(where, "", rule.error().text()));
  return integer ? rules_.integer() : rules_.number();
}

Result<std::string> SchemaRules::array_of(const Way& way, const std::string& where) {
  INGOT_ASSIGN(const int64_t min, count(way, "minItems", where, 0));
  INGOT_ASSIGN(const int64_t max, count(way, "maxItems", where, -1));
  if (max >= 0 && min > max) return fail("{}: minItems {} is more than maxItems {}", where, min, max);
  const std::string gap = rules_.space();
  std::vector<std::string> first;
  if (way.contains("prefixItems")) {
    const Json& list = way["prefixItems"];
    if (!list.is_array()) return fail("{}.prefixItems: must be a list", where);
    for (size_t i = 0; i < list.size() && (max < 0 || static_cast<int64_t>(i) < max); ++i) {
      INGOT_ASSIGN(std::string item, value(list[i], fmt::format("{}.prefixItems[{}]", where, i)));
      first.push_back(std::move(item));
    }
  }
  const auto fixed = static_cast<int64_t>(first.size());
  // Behind the first ones: any number of the same.
  std::string more;
  if (!way.contains("items")) {
    // A list that is spelled out ends with it, as properties do; one of which nothing is said holds anything.
    if (fixed == 0) more = rules_.any(options_.spelling);
  } else if (way["items"] != Json(false)) {
    INGOT_ASSIGN(more, value(way["items"], where + ".items"));
  }
  if (more.empty() && min > fixed) return fail("{}.minItems: {} items are wanted where only {} can be", where, min, fixed);
  const auto repeated = [&](const std::string& item, int64_t at_least, int64_t at_most) {
    const std::string next = rules_.add("next_item", fmt::format(R"({0} "," {0} {1})", gap, item));
    if (at_most == 0) return std::string("\"\"");
    return at_most < 0 ? fmt::format("{}{{{},}}", next, at_least) : fmt::format("{}{{{},{}}}", next, at_least, at_most);
  };
  const bool may_be_empty = min == 0;
  std::string items;
  if (fixed == 0) {
    if (more.empty() || max == 0) return rules_.add("array", fmt::format(R"("[" {} "]")", gap));
    items = fmt::format("{} {}", more, repeated(more, std::max<int64_t>(min - 1, 0), max < 0 ? -1 : max - 1));
  } else {
    // From the last one back: what may follow so many items.
    std::string rest;
    if (!more.empty()) rest = repeated(more, std::max<int64_t>(min - fixed, 0), max < 0 ? -1 : max - fixed);
    for (int64_t i = fixed - 1; i >= 1; --i) {
      const std::string next = fmt::format(R"({0} "," {0} {1} {2})", gap, first[static_cast<size_t>(i)], rest);
      rest = rules_.add("rest", i >= min ? fmt::format(R"(("" | {}))", next) : next);
    }
    items = fmt::format("{} {}", first[0], rest);
  }
  return rules_.add(
      "array", may_be_empty ? fmt::format(R"("[" {0} ({1} {0})? "]")", gap, items) : fmt::format(R"("[" {0} {1} {0} "]")", gap, items));
}

}  // namespace ingot::text
