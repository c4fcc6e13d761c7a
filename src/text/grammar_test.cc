#include "text/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/rng.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr int64_t kPadding = 70;  // ids of the logits beyond the tokenizer's, as checkpoints round their vocabulary up

struct House {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> stops;
  int64_t vocab_size = 0;
  std::shared_ptr<GrammarCompiler> compiler;
};

const House& house() {
  static const House kHouse = [] {
    House h;
    h.tokenizer = Tokenizer::load(INGOT_SOURCE_DIR "/models/demo/tokenizer.json").value();
    for (const char* name : {"<|endoftext|>", "<|user|>", "<|observation|>"}) h.stops.push_back(h.tokenizer->token_to_id(name).value());
    h.vocab_size = h.tokenizer->vocab_size() + kPadding;
    h.compiler = GrammarCompiler::create(h.tokenizer, {.vocab_size = h.vocab_size, .stop_token_ids = h.stops}).value();
    return h;
  }();
  return kHouse;
}

bool is_stop(int32_t id) { return std::find(house().stops.begin(), house().stops.end(), id) != house().stops.end(); }

std::vector<int32_t> allowed(GrammarMatcher& matcher) {
  std::vector<int32_t> out;
  const std::span<const uint32_t> mask = matcher.mask();
  for (size_t i = 0; i < mask.size() * 32; ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) != 0) out.push_back(static_cast<int32_t>(i));
  }
  return out;
}

struct Walk {
  std::string text;
  bool ended = false;
};

// Draws among the tokens that the mask allows until the end comes; later on with a taste for what closes strings and brackets.
Walk random_walk(const std::shared_ptr<const Grammar>& grammar, Rng& rng, int max_tokens = 300) {
  Walk out;
  GrammarMatcher matcher(grammar);
  for (int step = 0; step < max_tokens; ++step) {
    std::vector<int32_t> may = allowed(matcher);
    EXPECT_FALSE(may.empty()) << "the mask leaves nothing behind " << out.text;
    if (may.empty()) return out;
    int32_t token = may[rng.below(may.size())];
    for (int32_t id : may) {
      const std::string_view bytes = house().tokenizer->token_bytes(id);
      const bool closes =
          is_stop(id) || bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "</arg_value>" || bytes == "</tool_call>";
      if (closes && rng.below(step < max_tokens / 2 ? 12 : 2) == 0) token = id;
    }
    EXPECT_LT(token, house().tokenizer->vocab_size()) << "an id without a token may come";
    EXPECT_TRUE(is_stop(token) || !house().tokenizer->is_special(token)) << "a special token may come";
    const bool could_end = matcher.may_end();
    EXPECT_TRUE(matcher.accept(token)) << "the mask allows what is then refused: " << house().tokenizer->token_bytes(token) << " behind "
                                       << out.text;
    if (is_stop(token)) {
      EXPECT_TRUE(could_end);
      EXPECT_TRUE(allowed(matcher).empty()) << "nothing follows the end";
      out.ended = true;
      return out;
    }
    out.text += house().tokenizer->token_bytes(token);
  }
  return out;
}

bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  const std::vector<int32_t> ids = house().tokenizer->encode(text).value();
  return std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return matcher.accept(id); }) && matcher.may_end();
}

// An oracle of its own for the keywords of the schemas below: plain recursion, no code shared with what is tested.
bool valid(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) return valid(value, root.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), root);
  const auto is = [&](const std::string& type) {
    return type == "object"    ? value.is_object()
           : type == "array"   ? value.is_array()
           : type == "string"  ? value.is_string()
           : type == "boolean" ? value.is_boolean()
           : type == "null"    ? value.is_null()
           : type == "integer" ? value.is_number_integer()
                               : value.is_number();
  };
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const Json& type) { return is(type.get<std::string>()); })) return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) return false;
  if (schema.contains("anyOf") &&
      std::none_of(schema["anyOf"].begin(), schema["anyOf"].end(), [&](const Json& part) { return valid(value, part, root); }))
    return false;
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
    if (schema.contains("multipleOf") && value.get<int64_t>() % schema["multipleOf"].get<int64_t>() != 0) return false;
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto length = static_cast<uint64_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    if (length < schema.value("minLength", uint64_t{0}) || length > schema.value("maxLength", UINT64_MAX)) return false;
    if (schema.value("pattern", "") == "^[a-z]{2}-\\d+$" &&
        !(text.size() > 3 && text[2] == '-' && text.find_first_not_of("0123456789", 3) == std::string::npos && std::islower(text[0]) &&
          std::islower(text[1])))
      return false;
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", uint64_t{0}) || value.size() > schema.value("maxItems", UINT64_MAX)) return false;
    for (const Json& item : value) {
      if (schema.contains("items") && !valid(item, schema["items"], root)) return false;
    }
  }
  if (value.is_object()) {
    for (const Json& key : schema.value("required", Json::array())) {
      if (!value.contains(key.get<std::string>())) return false;
    }
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [key, member] : value.items()) {
      if (!valid(member, properties.contains(key) ? properties[key] : schema.value("additionalProperties", Json(true)), root)) return false;
    }
  }
  return true;
}

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"exclusiveMaximum":150}},"required":["name","age"],"additionalProperties":false})",
    R"({"type":"array","items":{"type":"number","minimum":-0.25,"exclusiveMaximum":7.5},"minItems":1,"maxItems":4})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","pattern":"^[a-z]{2}-\\d+$"})",
    R"({"enum":["red","é\"</",null,12,{"k":[1,true]}]})",
    R"({"type":"object","properties":{"v":{"type":"integer","multipleOf":7},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v"],
        "$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v"]}}})",
    R"({"type":"object","properties":{"a":{"type":"boolean"},"ab":{"const":"x"}},"additionalProperties":{"type":"integer"}})",
    R"({"type":["integer","null","string"],"minLength":3})",
    R"({"type":"object","properties":{}})",
    R"({})",
};

TEST(Grammar, RandomWalksUnderTheMaskGiveOnlyValidDocuments) {
  Rng rng(20260801);
  int ended = 0;
  for (const char* text : kSchemas) {
    const Json schema = Json::parse(text);
    const auto grammar = house().compiler->json_schema(schema, "schema");
    ASSERT_TRUE(grammar) << grammar.error().text();
    for (int i = 0; i < 20; ++i) {
      const Walk walk = random_walk(*grammar, rng);
      if (!walk.ended) continue;
      ++ended;
      EXPECT_EQ(find_invalid_utf8(walk.text), kValidUtf8) << text << "\n" << walk.text;
      const auto value = parse_json(walk.text, "answer");
      ASSERT_TRUE(value) << text << "\n" << walk.text << "\n" << value.error().text();
      EXPECT_TRUE(valid(*value, schema, schema)) << text << "\n" << walk.text;
    }
  }
  EXPECT_GE(ended, 150) << "too few of 200 walks came to an end to say anything";
}

TEST(Grammar, JsonObjectIsAnObjectWithBoundedWhiteSpace) {
  const auto grammar = house().compiler->json_object().value();
  EXPECT_TRUE(accepts(grammar, R"({"a": [1, -2.5e3, "x\né\ud83d\ude00", {"b": null}], "c": {}})"));
  EXPECT_FALSE(accepts(grammar, "[1]"));
  EXPECT_FALSE(accepts(grammar, "{\"a\": \"\\ud800\"}")) << "half a surrogate pair is no text";
  EXPECT_TRUE(accepts(grammar, "{\n" + std::string(24, ' ') + "\"a\": [\n\t1\n]\n}")) << "written with indents";
  EXPECT_FALSE(accepts(grammar, "{\n" + std::string(25, ' ') + "}")) << "white space without end";
  for (const char* text : {"{  }", "{\n\n}", "{ \n}"})
    EXPECT_FALSE(accepts(grammar, text)) << "an answer filled with white space: " << text;
  Rng rng(3);
  for (int i = 0; i < 40; ++i) {
    const Walk walk = random_walk(grammar, rng);
    if (!walk.ended) continue;
    EXPECT_TRUE(parse_json(walk.text, "answer").value().is_object()) << walk.text;
  }
}

// B24, B25: a forced call is a call in the model's format, and the parser finds it.
TEST(Grammar, ForcedCallsAreInTheModelsFormatAndParseBackToValidArguments) {
  const Json tools = Json::parse(R"([
    {"type":"function","function":{"name":"get-weather.v1:x/y_2","parameters":{"type":"object","properties":{
       "city":{"type":"string"},"days":{"type":"integer","minimum":1,"exclusiveMaximum":15},"unit":{"enum":["C","F",null]},"note":{"type":["string","null"]},
       "id":{"anyOf":[{"type":"integer","minimum":10},{"type":"string"}]},"place":{"$ref":"#/$defs/place"},"any":{},"code":{"type":"string","minLength":2,"maxLength":4},
       "flag":{"type":"boolean"},"html":{"type":"array","items":{"type":"string"}}},
       "required":["city","days"],"$defs":{"place":{"type":"object","properties":{"lat":{"type":"number"}},"required":["lat"]}}}}},
    {"type":"function","function":{"name":"ping"}},
    {"type":"function","function":{"name":"put","parameters":{"type":"object","properties":{"key":{"type":"string"}},"additionalProperties":{"type":"integer"}}}}])");
  Rng rng(11);
  for (const bool parallel : {false, true}) {
    const auto grammar = house().compiler->tool_calls(tools, {.parallel = parallel}).value();
    int ended = 0;
    for (int i = 0; i < 60; ++i) {
      const Walk walk = random_walk(grammar, rng, 400);
      if (!walk.ended) continue;
      ++ended;
      OutputParser parser({.parse_tool_calls = true, .tools = tools});
      std::vector<std::pair<std::string, std::string>> calls;
      for (const OutputDelta& delta : {parser.push(walk.text), parser.finish()}) {
        EXPECT_EQ(delta.content, "") << walk.text;
        for (const ToolCallDelta& call : delta.tool_calls) {
          if (!call.name.empty()) calls.emplace_back(call.name, "");
          calls.back().second += call.arguments;
        }
      }
      EXPECT_TRUE(parallel ? !calls.empty() : calls.size() == 1) << walk.text;
      for (const auto& [name, arguments] : calls) {
        const auto tool = std::find_if(tools.begin(), tools.end(), [&](const Json& t) { return t["function"]["name"] == name; });
        ASSERT_NE(tool, tools.end()) << name;
        const Json schema = (*tool)["function"].value("parameters", Json::parse(R"({"additionalProperties":false})"));
        EXPECT_TRUE(valid(parse_json(arguments, "arguments").value(), schema, schema)) << walk.text << "\n" << arguments;
      }
    }
    EXPECT_GE(ended, 30);
  }
  const auto named = house().compiler->tool_calls(tools, {.choice = ToolCallRules::Choice::named, .name = "ping"}).value();
  EXPECT_TRUE(accepts(named, "<tool_call>ping</tool_call>"));
  EXPECT_FALSE(accepts(named, "<tool_call>put</tool_call>"));
  EXPECT_FALSE(accepts(named, R"([{"name": "ping", "arguments": {}}])"));
  EXPECT_FALSE(accepts(named, "")) << "no call at all";
}

TEST(Grammar, AutoWithStrictToolsLeavesTextFreeAndHoldsTheArguments) {
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"add","strict":true,"parameters":{"type":"object","properties":{
      "n":{"type":"integer"}},"required":["n"],"additionalProperties":false}}},{"type":"function","function":{"name":"free","parameters":{}}}])");
  const auto grammar = house().compiler->tool_calls(tools, {.choice = ToolCallRules::Choice::strict_auto}).value();
  EXPECT_TRUE(accepts(grammar, "Just text, with < and {."));
  EXPECT_TRUE(accepts(grammar, "Let me see.<tool_call>add<arg_key>n</arg_key><arg_value>4</arg_value></tool_call>"));
  EXPECT_FALSE(accepts(grammar, "<tool_call>add<arg_key>n</arg_key><arg_value>four</arg_value></tool_call>"));
  EXPECT_FALSE(accepts(grammar, "<tool_call>add</tool_call>"));
  EXPECT_FALSE(accepts(grammar, "<tool_call>other</tool_call>"));
  EXPECT_FALSE(accepts(grammar, "<tool_call>add<arg_key>n</arg_key>"));
  EXPECT_TRUE(accepts(grammar, "<tool_call>free<arg_key>x</arg_key><arg_value>anything</arg_value></tool_call>"));
}

TEST(Grammar, RegexHoldsTheWholeAnswer) {
  const auto grammar = house().compiler->regex(R"((ab|c)+(\.\d{1,3})?)", "regex").value();
  EXPECT_TRUE(accepts(grammar, "abc.12"));
  EXPECT_TRUE(accepts(grammar, "c"));
  EXPECT_FALSE(accepts(grammar, "abc12")) << "an optional group must come whole";
  EXPECT_FALSE(accepts(grammar, "abc."));
  EXPECT_FALSE(accepts(grammar, "xabc"));
}

// Token pieces of one character: é is two bytes, and vocabularies split it.
TEST(Grammar, HalvesOfCharactersMayComeOnlyWhereTheCharacterMay) {
  const auto grammar = house().compiler->regex("[é]", "regex").value();
  int32_t first = -1, second = -1, other = -1;
  for (int32_t id = 0; id < house().tokenizer->vocab_size(); ++id) {
    const std::string_view bytes = house().tokenizer->token_bytes(id);
    if (bytes == "\xc3") first = id;
    if (bytes == "\xa9") second = id;
    if (bytes == "\xa8") other = id;
  }
  ASSERT_TRUE(first >= 0 && second >= 0 && other >= 0);
  GrammarMatcher right(grammar), wrong(grammar);
  EXPECT_TRUE(right.accept(first) && !right.may_end() && right.accept(second) && right.may_end());
  EXPECT_TRUE(wrong.accept(first));
  EXPECT_FALSE(wrong.accept(other));
  EXPECT_TRUE(allowed(wrong).empty()) << "a broken matcher lets nothing pass";
}

TEST(Grammar, WhatASchemaAsksAndNoGrammarHoldsIsRefusedByItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})", "f.properties.a.uniqueItems: "},
      {R"({"not":{"type":"string"}})", "f.not: "},
      {R"({"type":"object","propertyNames":{"pattern":"a"}})", "f.propertyNames: "},
      {R"({"type":"object","properties":{"a":{"type":"strin"}}})", "f.properties.a.type: "},
      {R"({"properties":{"a":{"$ref":"#/$defs/b"}}})", "f.properties.a.$ref: "},
      {R"({"$ref":"#"})", "f: $ref"},
      {R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/a"}}})", "f.$defs.a: $ref"},
      {R"([1])", "f: a schema must be"},
      {R"(false)", "f: no value"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "f.oneOf: "},
      {R"({"type":"string","pattern":"(?=a)b"})", "f.pattern: "},
      {R"({"type":"string","maxLength":100000})", "f.maxLength: "},
      {R"({"type":"number","minimum":3,"maximum":2})", "f: no number"},
      {R"({"type":"integer","allOf":[{"type":"string"}]})", "f: no value"},
      {R"({"type":"object","minProperties":2,"maxProperties":1})", "f: minProperties"},
  };
  for (const auto& [schema, place] : cases) {
    const auto grammar = house().compiler->json_schema(Json::parse(schema), "f");
    ASSERT_FALSE(grammar) << schema;
    EXPECT_TRUE(grammar.error().message.starts_with(place)) << schema << "\n" << grammar.error().text();
  }
  EXPECT_FALSE(house().compiler->regex("a(b", "regex"));
  EXPECT_FALSE(house().compiler->tool_calls(Json::array(), {}));
  EXPECT_FALSE(house().compiler->tool_calls(Json::parse(R"([{"function":{"name":"a b"}}])"), {}));
  EXPECT_FALSE(
      house().compiler->tool_calls(Json::parse(R"([{"function":{"name":"a"}}])"), {.choice = ToolCallRules::Choice::named, .name = "b"}));
}

// F6: the schemas of tools come from everywhere.
TEST(Grammar, AToolWithAKeywordThatIsNotSupportedIsStillCalled) {
  const Json tools = Json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","propertyNames":{"pattern":"^a"},"properties":{
      "a":{"type":"array","uniqueItems":true,"items":{"type":"integer"}},"b":{"type":"string","maxLength":100000},"c":{"$ref":"#/nowhere"}},"required":true}}}])");
  const auto grammar = house().compiler->tool_calls(tools, {});
  ASSERT_TRUE(grammar) << grammar.error().text();
  EXPECT_TRUE(accepts(*grammar, "<tool_call>f<arg_key>a</arg_key><arg_value>[1, 1]</arg_value></tool_call>"));
  EXPECT_FALSE(accepts(*grammar, "<tool_call>f<arg_key>a</arg_key><arg_value>[true]</arg_value></tool_call>"));
}

TEST(Grammar, HostileSchemasAndPatternsEndSoon) {
  std::string nested = R"({"type":"integer"})";
  for (int i = 0; i < 100; ++i) nested = R"({"type":"array","items":)" + nested + "}";
  EXPECT_FALSE(house().compiler->json_schema(Json::parse(nested), "f"));
  Json wide = Json::parse(R"({"type":"string"})");
  for (int i = 0; i < 12; ++i) wide = Json{{"anyOf", {{{"properties", {{"a", wide}, {"b", wide}}}}, {{"items", wide}}}}};
  EXPECT_FALSE(house().compiler->json_schema(wide, "f"));
  Json product = Json::object();
  for (int i = 0; i < 8; ++i)
    product["allOf"].push_back(
        {{"anyOf", {{{"required", {std::to_string(i)}}}, {{"required", {std::to_string(i) + "x"}}}, {{"minItems", i}}}}});
  EXPECT_FALSE(house().compiler->json_schema(product, "f"));
  for (const char* pattern : {"(a{1,100}){1,100}", "((a{0,50}){0,50}){0,50}", "a{1,999999999999999999999}", "(a*)*"})
    EXPECT_FALSE(house().compiler->regex(pattern, "f")) << pattern;
  Json counted = {{"type", "object"}};
  for (int i = 100; i < 125; ++i) counted["properties"][std::to_string(i)] = {{"type", "string"}, {"maxLength", i}};
  EXPECT_FALSE(house().compiler->json_schema(counted, "f")) << "minutes of compiling for a large vocabulary";
  EXPECT_FALSE(house().compiler->regex(std::string(5000, 'a'), "f"));
  EXPECT_FALSE(house().compiler->regex(std::string(200, '('), "f"));
  EXPECT_TRUE(house().compiler->regex("[ab]*a[ab]{20}", "f")) << "2^20 states if it were made deterministic";
  // `false` keeps the name itself out of the grammar: what is tested is the tree of names that other keys must not have.
  Json long_name = {{"type", "object"}, {"additionalProperties", true}};
  long_name["properties"][std::string(50'000, 'a')] = false;
  EXPECT_TRUE(house().compiler->json_schema(long_name, "f")) << "a stack frame for each character of a name";
}

TEST(Grammar, WhatOnePartForbidsNoOtherPartAllows) {
  const std::string closed = R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false})";
  const std::string open = R"({"type":"object","properties":{"b":{"type":"integer"}}})";
  for (const std::string& parts : {closed + "," + open, open + "," + closed}) {
    const auto grammar = house().compiler->json_schema(Json::parse(R"({"allOf":[)" + parts + "]}"), "f");
    ASSERT_TRUE(grammar) << grammar.error().text();
    EXPECT_TRUE(accepts(*grammar, R"({"a": 1})"));
    EXPECT_FALSE(accepts(*grammar, R"({"b": 1})"));
    EXPECT_FALSE(accepts(*grammar, R"({"a": 1, "b": 1})"));
  }
}

TEST(Grammar, ManyThreadsCompileAndWalkAtOnce) {
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      Rng rng(i);
      for (const char* text : {kSchemas[0], kSchemas[1], kSchemas[6]}) {
        const auto grammar = house().compiler->json_schema(Json::parse(text), "schema");
        ASSERT_TRUE(grammar);
        random_walk(*grammar, rng, 60);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto again = house().compiler->json_schema(Json::parse(kSchemas[0]), "schema").value();
  EXPECT_EQ(again, house().compiler->json_schema(Json::parse(kSchemas[0]), "schema").value()) << "the same question compiles once";
}

}  // namespace
}  // namespace ingot::text
