#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/rng.h"
#include "text/tool_arguments.h"

namespace ingot::text {
namespace {

const Json kTools = Json::parse(R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
     "city":{"type":"string"},"days":{"type":"integer"},"opt":{"type":"object"},"exact":{"type":"boolean"},"ratio":{"type":"number"},
     "tags":{"type":"array"},"note":{"type":["string","null"]},"nothing":{"type":"null"},"kind":{"enum":["a","b"]},"either":{"anyOf":[{"type":"integer"},{"type":"null"}]},
     "id_or_name":{"type":["integer","string"]},"ref":{"$ref":"#/$defs/Code"}},"$defs":{"Code":{"type":"string"}}}}},
  {"type":"function","function":{"name":"get","parameters":{"type":"object","oneOf":[{"properties":{"code":{"type":"string"}}},{"properties":{"n":{"type":"integer"}}}]}}},
  {"type":"function","function":{"name":"get_current_time"}}])");

struct Whole {
  std::string reasoning, content;
  std::map<int, std::pair<std::string, std::string>> calls;  // index -> name, arguments
  bool operator==(const Whole&) const = default;
};

void fold(const OutputDelta& delta, Whole& whole) {
  whole.reasoning += delta.reasoning;
  whole.content += delta.content;
  for (const auto& call : delta.tool_calls) {
    auto& [name, arguments] = whole.calls[call.index];
    if (!call.name.empty()) {
      EXPECT_TRUE(name.empty() && arguments.empty()) << "a name is sent once, first";
      name = call.name;
    }
    arguments += call.arguments;
  }
}

OutputParserOptions with(bool in_reasoning, bool tools = true) { return {in_reasoning, true, tools, kTools}; }

template <class Cuts>
Whole parse_cut(std::string_view text, const OutputParserOptions& options, Cuts&& next_length) {
  OutputParser parser(options);
  Whole whole;
  while (!text.empty()) {
    const size_t n = std::min(text.size(), static_cast<size_t>(next_length()));
    fold(parser.push(text.substr(0, n)), whole);
    text.remove_prefix(n);
  }
  fold(parser.finish(), whole);
  EXPECT_EQ(parser.num_tool_calls(), static_cast<int>(whole.calls.size()));
  return whole;
}

Whole parse(std::string_view text, const OutputParserOptions& options) {
  return parse_cut(text, options, [] { return SIZE_MAX; });
}

std::string arguments_of(std::string_view key, std::string_view value, std::string_view name = "get_weather") {
  const Whole whole =
      parse(fmt::format("<tool_call>{}<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", name, key, value), with(false));
  EXPECT_EQ(whole.calls.size(), 1u);
  return whole.calls.begin()->second.second;
}

TEST(OutputParser, zero_argument_call_was_dropped_when_streamed) {  // B1, B2
  const Whole whole = parse("<tool_call>get_current_time</tool_call>", with(false));
  EXPECT_EQ(whole.calls.at(0), std::make_pair(std::string("get_current_time"), std::string("{}")));
  EXPECT_EQ(whole.content, "");
}

TEST(OutputParser, tool_call_before_the_end_of_thinking_leaked_as_reasoning) {  // B4
  const Whole whole = parse("a<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>", with(true));
  EXPECT_EQ(whole.reasoning, "a");
  EXPECT_EQ(whole.calls.at(0).second, R"({"days": 1})");
}

TEST(OutputParser, a_name_that_begins_with_another_tools_name_was_cut) {  // B5: name once, whole, for every cut
  for (int step = 1; step < 12; ++step) {
    const Whole whole =
        parse_cut("<tool_call>get_weather<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>", with(false), [&] { return step; });
    EXPECT_EQ(whole.calls.at(0).first, "get_weather");
  }
}

TEST(OutputParser, a_value_with_backslashes_was_garbled_when_streamed) {  // B8
  const std::string value = R"(C:\src\worker.js "q" </arg_valu </arg_key> )"
                            "\n\ttab \x01 \xf0\x9f\x99\x82 東京";
  const Json arguments = Json::parse(arguments_of("city", value));
  EXPECT_EQ(arguments["city"].get<std::string>(), value);
}

TEST(OutputParser, a_long_string_argument_arrives_in_pieces) {  // B30
  OutputParser parser(with(false));
  parser.push("<tool_call>get_weather<arg_key>city</arg_key><arg_value>");
  const OutputDelta delta = parser.push("Bern is a town");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].arguments, "Bern is a town");
}

TEST(OutputParser, values_are_typed_by_the_schema) {  // B10, B11
  EXPECT_EQ(arguments_of("days", "5"), R"({"days": 5})");
  EXPECT_EQ(arguments_of("days", "abc"), R"({"days": "abc"})");
  EXPECT_EQ(arguments_of("days", "007"), R"({"days": "007"})");
  EXPECT_EQ(arguments_of("days", "1.5"), R"({"days": "1.5"})");
  EXPECT_EQ(arguments_of("ratio", "1.5"), R"({"ratio": 1.5})");
  EXPECT_EQ(arguments_of("ratio", "NaN"), R"({"ratio": "NaN"})");
  EXPECT_EQ(arguments_of("ratio", "0x10"), R"({"ratio": "0x10"})");
  EXPECT_EQ(arguments_of("exact", "true"), R"({"exact": true})");
  EXPECT_EQ(arguments_of("exact", "False"), R"({"exact": false})");
  EXPECT_EQ(arguments_of("nothing", "null"), R"({"nothing": null})");
  EXPECT_EQ(arguments_of("tags", R"(["x", 1])"), R"({"tags": ["x", 1]})");
  EXPECT_EQ(arguments_of("opt", R"({"a":{"b":1}})"), R"({"opt": {"a":{"b":1}}})");
  EXPECT_EQ(arguments_of("city", "001"), R"({"city": "001"})");
  EXPECT_EQ(arguments_of("city", "true"), R"({"city": "true"})");
  EXPECT_EQ(arguments_of("city", "[]"), R"({"city": "[]"})");
  EXPECT_EQ(arguments_of("city", ""), R"({"city": ""})");
}

TEST(OutputParser, types_are_found_through_combinators_references_and_enums) {  // B12
  EXPECT_EQ(arguments_of("code", "12", "get"), R"({"code": "12"})");
  EXPECT_EQ(arguments_of("n", "12", "get"), R"({"n": 12})");
  EXPECT_EQ(arguments_of("ref", "12"), R"({"ref": "12"})");
  EXPECT_EQ(arguments_of("kind", "1"), R"({"kind": "1"})");
  EXPECT_EQ(arguments_of("either", "null"), R"({"either": null})");
  EXPECT_EQ(arguments_of("either", "x"), R"({"either": "x"})");
  EXPECT_EQ(arguments_of("id_or_name", "5"), R"({"id_or_name": 5})");
  EXPECT_EQ(arguments_of("id_or_name", "Bob"), R"({"id_or_name": "Bob"})");
}

TEST(OutputParser, an_undeclared_key_or_tool_takes_json_or_text) {
  EXPECT_EQ(arguments_of("extra", "5"), R"({"extra": 5})");
  EXPECT_EQ(arguments_of("extra", "five"), R"({"extra": "five"})");
  EXPECT_EQ(arguments_of("x", "[1]", "nobody_declared_this"), R"({"x": [1]})");
}

TEST(OutputParser, a_schema_that_refers_to_itself_ends) {
  const Json tools = Json::parse(R"([{"function":{"name":"f","parameters":{"properties":{"x":{"$ref":"#/properties/x"}}}}}])");
  EXPECT_FALSE(argument_type(tools, "f", "x").known);
}

TEST(OutputParser, a_tool_schema_that_fans_out_hung_a_thread) {
  const Json fan_out = Json::parse(R"({"type":"object","properties":{"x":{"$ref":"#/$defs/N"}},"$defs":{"N":{}}})");
  Json parameters = fan_out;
  parameters["$defs"]["N"]["anyOf"] = Json(8, Json{{"$ref", "#/$defs/N"}});
  Json of_properties = parameters;  // the same among the parts that may declare the key
  of_properties["$ref"] = "#/$defs/N";
  const auto begin = std::chrono::steady_clock::now();
  for (const Json& schema : {parameters, of_properties}) {
    const Json tools = Json::array({Json{{"function", Json{{"name", "f"}, {"parameters", schema}}}}});
    for (const char* key : {"x", "y"}) EXPECT_FALSE(argument_type(tools, "f", key).known);
  }
  // 8^8 visits would be a second even at a nanosecond each, and a visit takes far longer.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
}

ArgumentType type_named(std::string_view type) {
  const Json schema = Json::parse(type);
  return argument_type(schema, schema);
}

TEST(OutputParser, an_unknown_type_word_made_every_value_a_string) {
  for (const char* type : {R"({"type":"any"})", R"({"type":["whatever"]})", R"({"type":""})"}) {
    EXPECT_FALSE(type_named(type).known) << type;
    EXPECT_EQ(argument_json("5", type_named(type)), "5") << type;
  }
  EXPECT_EQ(argument_json("5", type_named(R"({"type":"INTEGER"})")), "5");
  EXPECT_EQ(argument_json("x", type_named(R"({"type":"INTEGER"})")), R"("x")");
  EXPECT_EQ(argument_json("5", type_named(R"({"type":"String"})")), R"("5")");
  EXPECT_EQ(argument_json("5", type_named(R"({"type":"any","enum":["5"]})")), R"("5")");
}

TEST(OutputParser, python_words_became_json_where_a_string_was_meant) {
  for (const char* word : {"None", "True", "False"}) {
    EXPECT_EQ(argument_json(word, {}), fmt::format("\"{}\"", word));
    for (const char* type : {"integer", "array", "string"}) {
      EXPECT_EQ(argument_json(word, type_named(fmt::format(R"({{"type":"{}"}})", type))), fmt::format("\"{}\"", word)) << type;
    }
    EXPECT_EQ(argument_json(word, type_named(R"({"type":["string","boolean","null"]})")), fmt::format("\"{}\"", word));
  }
  EXPECT_EQ(argument_json("null", {}), "null");
  EXPECT_EQ(argument_json("True", type_named(R"({"type":"boolean"})")), "true");
  EXPECT_EQ(argument_json("None", type_named(R"({"type":"boolean"})")), R"("None")");
  EXPECT_EQ(argument_json("None", type_named(R"({"type":["integer","null"]})")), "null");
}

TEST(OutputParser, a_large_or_integral_number_became_a_string) {
  const ArgumentType integer = type_named(R"({"type":"integer"})");
  for (const char* text : {"123456789012345678901234567890", "-99999999999999999999", "18446744073709551616", "1.0", "-0.0", "1e3",
                           "1.50e1", "100e-2", "12.5E+1", "0e-7"}) {
    EXPECT_EQ(argument_json(text, integer), text);
    EXPECT_EQ(argument_json(text, {}), text);
  }
  for (const char* text : {"1.5", "9007199254740993.5", "1.50e0", "10e-2", "1e-400", "1e400", "1.", "+1", "01"}) {
    EXPECT_EQ(argument_json(text, integer), fmt::format("\"{}\"", text));
  }
}

TEST(OutputParser, a_reference_into_an_array_was_not_followed) {
  const auto code_type = [](std::string_view reference) {
    const Json parameters = Json::parse(fmt::format(
        R"({{"properties":{{"u":{{"anyOf":[{{"type":"string"}},{{"type":"integer"}}]}},"code":{{"$ref":"{}"}}}}}})", reference));
    return argument_type(Json::array({Json{{"name", "f"}, {"parameters", parameters}}}), "f", "code");
  };
  EXPECT_TRUE(code_type("#/properties/u/anyOf/0").only_string());
  EXPECT_TRUE(code_type("#/properties/u/anyOf/1").integer);
  for (const char* reference : {"#/properties/u/anyOf/2", "#/properties/u/anyOf/-1", "#/properties/u/anyOf/0x", "#/properties/u/anyOf/",
                                "#/properties/u/anyOf/99999999999999999999"}) {
    EXPECT_FALSE(code_type(reference).string || code_type(reference).integer) << reference;
  }
}

TEST(OutputParser, an_optional_string_arrived_only_at_its_end) {
  const std::string begin = "<tool_call>get_weather<arg_key>note</arg_key><arg_value>";
  const auto streamed = [&](const std::vector<std::string>& pieces) {
    OutputParser parser(with(false));
    parser.push(begin);
    std::string all;
    for (const auto& piece : pieces) {
      const OutputDelta delta = parser.push(piece);
      all += '[';
      for (const auto& call : delta.tool_calls) all += call.arguments;
      all += ']';
    }
    return all;
  };
  EXPECT_EQ(streamed({"B", "ern"}), R"(["B][ern])");
  EXPECT_EQ(streamed({"n", "u", "l", "l", "i", "fy"}), R"([][][][]["nulli][fy])");
  EXPECT_EQ(streamed({" nu", "ll ", "</arg_", "value>"}), "[][][][null]");
  EXPECT_EQ(streamed({"nu", "</arg_value>"}), R"([]["nu"])");
  EXPECT_EQ(streamed({"null", "<"}), "[][]");
  EXPECT_EQ(streamed({"null", "< "}), R"([]["null< ])");
  EXPECT_EQ(streamed({"", "</arg_value>"}), R"([][""])");
}

TEST(OutputParser, a_malformed_call_swallowed_the_next) {
  const std::string next = "<tool_call>get<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>";
  const auto expect = [&](const std::string& broken, const std::string& arguments, const std::string& content) {
    const Whole whole = parse(broken + next, with(false));
    ASSERT_EQ(whole.calls.size(), 2u) << broken;
    EXPECT_EQ(whole.calls.at(0).second, arguments) << broken;
    EXPECT_EQ(whole.calls.at(1), std::make_pair(std::string("get"), std::string(R"({"n": 2})"))) << broken;
    EXPECT_EQ(whole.content, content) << broken;
  };
  expect("<tool_call>get<arg_key>lost</tool_call>", "{}", "lost");
  expect("<tool_call>get<arg_key>lost", "{}", "lost");
  expect("<tool_call>get<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>lost", R"({"n": 1})", "lost");
  expect("<tool_call>get<arg_key>n</arg_key>", R"({"n": null})", "");
  expect("<tool_call>get<arg_key>n</arg_key> stray", R"({"n": null})", "stray");
}

TEST(OutputParser, prose_about_the_tag_became_a_call) {
  for (const std::string text :
       {"The tag <tool_call> starts a call and </tool_call> ends it.", "<tool_call>two words</tool_call>",
        "<tool_call>two words<arg_key>n</arg_key><arg_value>1</arg_value></tool_call> x", "a <tool_call> \\n b c"}) {
    EXPECT_EQ(parse(text, with(false)), (Whole{"", text, {}}));
    EXPECT_EQ(parse(text, with(true)), (Whole{text, "", {}}));
  }
  const Whole whole = parse("<tool_call> is the tag: <tool_call>get</tool_call>", with(false));
  EXPECT_EQ(whole.content, "<tool_call> is the tag: ");
  EXPECT_EQ(whole.calls.at(0).first, "get");
}

TEST(OutputParser, a_tag_named_while_thinking_ended_the_thinking) {
  const std::string text = "I could use <tool_call> but no";
  EXPECT_EQ(parse(text + "</think>Answer", with(true)), (Whole{text, "Answer", {}}));
  EXPECT_EQ(parse("the <tool_call></think>Answer", with(true)), (Whole{"the <tool_call>", "Answer", {}}));
  EXPECT_EQ(parse("the <tool_call>get</think>Answer", with(true)), (Whole{"the <tool_call>get", "Answer", {}}));
  const Whole whole = parse(text + "<tool_call>get</tool_call>", with(true));
  EXPECT_EQ(whole.reasoning, text);
  EXPECT_EQ(whole.calls.at(0).first, "get");
}

TEST(OutputParser, prose_after_the_tag_was_held_to_the_end) {
  OutputParser parser(with(false));
  EXPECT_EQ(parser.push("<tool_call> is").content, "");
  EXPECT_EQ(parser.push(" a ").content, "<tool_call> is a ");
  EXPECT_EQ(parser.push("tag").content, "tag");
}

TEST(OutputParser, only_white_space_around_calls_and_their_tags_is_dropped) {
  EXPECT_EQ(parse(" \n a \n", with(false)).content, " \n a \n");
  EXPECT_EQ(parse(" \n ", with(false)).content, " \n ");
  EXPECT_EQ(parse(" r \n</think>\n c ", with(true)), (Whole{" r \n", "\n c ", {}}));
  const Whole whole =
      parse(" a \n<tool_call>\tget_weather\n<arg_key> city\n</arg_key> <arg_value> B \n</arg_value>\n</tool_call>\r\n b ", with(false));
  EXPECT_EQ(whole.content, " a \nb ");
  EXPECT_EQ(whole.calls.at(0), std::make_pair(std::string("get_weather"), std::string(R"({"city": " B \n"})")));
}

TEST(OutputParser, parallel_calls_have_their_own_index) {  // B19
  const Whole whole = parse(
      "<tool_call>get<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>\n<tool_call>get<arg_key>n</arg_key><arg_value>2</arg_value></"
      "tool_call>",
      with(false));
  EXPECT_EQ(whole.calls.at(0).second, R"({"n": 1})");
  EXPECT_EQ(whole.calls.at(1).second, R"({"n": 2})");
  EXPECT_EQ(whole.content, "");
}

TEST(OutputParser, with_thinking_off_all_output_went_to_reasoning) {  // B21
  const Whole whole = parse("answer", with(false));
  EXPECT_EQ(whole.content, "answer");
  EXPECT_EQ(whole.reasoning, "");
}

TEST(OutputParser, thinking_landed_in_content_because_the_prompt_opened_it) {  // B22
  EXPECT_EQ(parse("because</think>yes", with(true)), (Whole{"because", "yes", {}}));
  EXPECT_EQ(parse("<think>because</think>yes", with(true)), (Whole{"because", "yes", {}}));
  EXPECT_EQ(parse(" \n<think>because</think>yes", with(false)), (Whole{"because", "yes", {}}));
  EXPECT_EQ(parse("never ends", with(true)), (Whole{"never ends", "", {}}));
  EXPECT_EQ(parse("a </think> b", {false, false, false, {}}), (Whole{"", "a </think> b", {}}));
}

TEST(OutputParser, without_declared_tools_the_tags_are_text) {
  const std::string text = "use <tool_call>f</tool_call>";
  EXPECT_EQ(parse(text, with(false, false)).content, text);
}

TEST(OutputParser, unfinished_calls_are_closed_to_valid_json) {
  const std::string full =
      "x<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></"
      "tool_call>";
  for (size_t n = 0; n <= full.size(); ++n) {
    const Whole whole = parse(full.substr(0, n), with(false));
    for (const auto& [index, call] : whole.calls) EXPECT_TRUE(Json::accept(call.second)) << n << ": " << call.second;
  }
}

TEST(OutputParser, malformed_calls_lose_no_text) {
  EXPECT_EQ(parse("<tool_call></tool_call>", with(false)).content, "<tool_call></tool_call>");
  EXPECT_EQ(parse("<tool_call>half a na", with(false)).content, "<tool_call>half a na");
  const Whole stray = parse("<tool_call>get<arg_key>n</arg_key> so it is <arg_value>1</arg_value> and more</tool_call>", with(false));
  EXPECT_EQ(stray.calls.at(0).second, R"({"n": 1})");
  EXPECT_EQ(stray.content, "so it is and more");
  EXPECT_EQ(parse("<tool_call>get<arg_key>n</arg_key></tool_call>", with(false)).calls.at(0).second, R"({"n": null})");
}

TEST(OutputParser, newlines_real_or_written_out_may_stand_between_tags) {
  const Whole whole = parse("<tool_call>\nget_weather\\n<arg_key>days</arg_key>\\n<arg_value>3</arg_value>\n</tool_call>", with(false));
  EXPECT_EQ(whole.calls.at(0), std::make_pair(std::string("get_weather"), std::string(R"({"days": 3})")));
}

const std::vector<std::string> kOutputs = {
    "",
    "plain",
    "a < b <think <tool <tool_call",
    "think\n</think>\n\nanswer",
    "<think>x</think>y</think>z",
    "</think> xxx<tool_call>get</tool_call>",  // B29
    "t</think>let "
    "me<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call><tool_call>get_current_time</tool_call>tail",
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>\xf0\x9f\x99\x82\"\\\n東京</arg_value><arg_key>opt</"
    "arg_key><arg_value>{\"a\": [1, {\"b\": \"}\"}]}</arg_value></tool_call>",
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value></arg_valu</arg_key><tool_call></arg_value></tool_call>",
    "<tool_call>get_weather<arg_key>a\"b</arg_key><arg_value>x</arg_value><arg_key></arg_key><arg_value></arg_value></tool_call>",
    "<tool_call>a<tool_call>b</tool_call></tool_call>",
    "<tool_call>get<arg_key>n</arg_key> stray  text < here <arg_value>1</arg_value>\\n more \\n</tool_call> \n <tool_call> x",
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>bad \xff\xc3 bytes \xe6\x9d</arg_value></tool_call>\xe6",
    "<tool_call>get_weather<arg_key>city</arg_key>\\",
    "<tool_call>get_weather<arg_key>note</arg_key><arg_value> nul</arg_value><arg_key>note</arg_key><arg_value>\nnull </arg_value><arg_key>"
    "note</arg_key><arg_value>null<</arg_value><arg_key>note</arg_key><arg_value>null",
    "I could use <tool_call> but no</think>The tag <tool_call> starts a call and </tool_call> ends it.",
    "a<tool_call>get</think>b<tool_call>a\\n b</tool_call><tool_call> \\n\\\\n a \\n</tool_call>\\",
    "<tool_call>get<arg_key>lost</tool_call><tool_call>get<arg_key>n</arg_key><tool_call>get<arg_key>lost <tool_call>get<arg_key>lost",
    " \n\t<thin",
    " \n\t<think>x",
    " \n\t",
    "x<tool_call>get_weather<arg_key>city</arg_key><arg_value>unfinished \xe6\x9d",
};

TEST(OutputParser, every_cut_gives_the_same_message) {  // B6, B9
  for (const auto& text : kOutputs) {
    for (bool in_reasoning : {false, true}) {
      const Whole expected = parse(text, with(in_reasoning));
      for (const auto& [index, call] : expected.calls) EXPECT_TRUE(Json::accept(call.second)) << call.second;
      for (size_t step : {1, 2, 3, 5}) {
        EXPECT_EQ(parse_cut(text, with(in_reasoning), [&] { return step; }), expected) << text << " step " << step;
      }
      for (size_t cut = 1; cut < text.size(); ++cut) {
        bool first = true;
        EXPECT_EQ(parse_cut(text, with(in_reasoning), [&] { return std::exchange(first, false) ? cut : SIZE_MAX; }), expected)
            << text << " cut " << cut;
      }
    }
  }
}

// B9: 71-91% of random cuts into one to four pieces lost data of two parallel calls.
TEST(OutputParser, five_hundred_random_cuts_of_each_output_give_the_same_message) {
  ASSERT_GE(kOutputs.size(), 20u);
  constexpr uint64_t kSeed = 20260930;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (const auto& text : kOutputs) {
    for (const bool in_reasoning : {false, true}) {
      const Whole expected = parse(text, with(in_reasoning));
      for (int i = 0; i < 500; ++i) {
        // Many short pieces, or a few long ones; a piece may be empty.
        const size_t longest = i % 2 == 0 ? 4 : text.size() + 1;
        ASSERT_EQ(parse_cut(text, with(in_reasoning), [&] { return rng.below(longest + 1); }), expected)
            << text << " cut at random, number " << i;
      }
    }
  }
}

TEST(OutputParser, random_tag_soup_never_breaks_the_json) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  const std::vector<std::string> parts = {
      "<think>",      "</think>",    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",       "<arg_value>",
      "</arg_value>", "get_weather", "city",        "days",         "5",         "{\"a\":1}",        " ",
      "\n",           "\\n",         "<",           "\\",           "\"",        "\xf0\x9f\x99\x82", "\xff",
      "text"};
  Rng rng(kSeed);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint64_t i = rng.below(30); i > 0; --i) text += parts[rng.below(parts.size())];
    const auto options = with(rng.below(2) == 0);
    const Whole expected = parse(text, options);
    for (const auto& [index, call] : expected.calls)
      ASSERT_TRUE(Json::accept(call.second)) << round << ": " << text << " -> " << call.second;
    ASSERT_EQ(parse_cut(text, options, [&] { return 1 + rng.below(7); }), expected) << round << ": " << text;
  }
}

// What the parser drops is tags and white space only: every word that was put in comes out once, whole, wherever it went.
TEST(OutputParser, random_tag_soup_loses_no_word) {
  constexpr uint64_t kSeed = 20261201;
  SCOPED_TRACE(kSeed);
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "<arg_key>",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<tool_call>get_weather<arg_key>",
                                          "</arg_key><arg_value>",
                                          "</arg_value></tool_call>",
                                          "city",
                                          "note",
                                          "null",
                                          "opt",
                                          " ",
                                          "\n",
                                          "\\n",
                                          "<",
                                          "\\",
                                          "\xff"};
  Rng rng(kSeed);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    size_t num_words = 0;
    for (uint64_t i = rng.below(40); i > 0; --i) {
      const uint64_t part = rng.below(parts.size() * 3 / 2);
      text += part < parts.size() ? parts[part] : fmt::format("W{}E", num_words++);
    }
    const auto options = with(rng.below(2) == 0);
    const Whole whole = parse_cut(text, options, [&] { return 1 + rng.below(9); });
    std::string out = whole.reasoning + "|" + whole.content;
    for (const auto& [index, call] : whole.calls) {
      ASSERT_TRUE(Json::accept(call.second)) << round << ": " << text << " -> " << call.second;
      out += "|" + call.first + "|" + call.second;
    }
    ASSERT_EQ(static_cast<size_t>(std::count(out.begin(), out.end(), 'W')), num_words) << round << ": " << text << " -> " << out;
    for (size_t i = 0; i < num_words; ++i)
      ASSERT_NE(out.find(fmt::format("W{}E", i)), std::string::npos) << round << ": word " << i << " of " << text << " -> " << out;
  }
}

TEST(OutputParser, white_space_in_single_bytes_was_quadratic) {
  const std::string space(1 << 20, ' ');
  const auto begin = std::chrono::steady_clock::now();
  const auto one = [] { return 1; };
  EXPECT_EQ(parse_cut(space + "a", with(false), one).content, space + "a");
  EXPECT_EQ(parse_cut(space + "<think>a", with(false), one).reasoning, "a");
  EXPECT_EQ(parse_cut("<tool_call>" + space + "get" + space + "</tool_call>" + space, with(false), one).calls.at(0).first, "get");
  EXPECT_EQ(parse_cut("<tool_call>get_weather<arg_key>note</arg_key><arg_value>" + space + "null", with(false), one).calls.at(0).second,
            R"({"note": null})");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(OutputParser, many_calls_in_one_piece_were_quadratic) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "<tool_call>get</tool_call>";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse(text, with(false)).calls.size(), 50'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(OutputParser, a_megabyte_in_single_bytes_is_linear) {
  for (const char* key : {"city", "opt"}) {
    const std::string value(1 << 20, 'x');
    const auto begin = std::chrono::steady_clock::now();
    const Whole whole =
        parse_cut(fmt::format("<tool_call>get_weather<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", key, value), with(false),
                  [] { return 1; });
    EXPECT_EQ(Json::parse(whole.calls.at(0).second)[key].get<std::string>(), value);
    // Quadratic would be hours; the bound is for a slow, busy machine under a sanitizer.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace ingot::text
