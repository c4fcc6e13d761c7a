#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/rng.h"
#include "text/tool_arguments.h"

namespace ingot::text {
namespace {

const Json kTools = Json::parse(R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
     "city":{"type":"string"},"days":{"type":"integer"},"opt":{"type":"object"},"exact":{"type":"boolean"},"ratio":{"type":"number"},
     "tags":{"type":"array"},"nothing":{"type":"null"},"kind":{"enum":["a","b"]},"either":{"anyOf":[{"type":"integer"},{"type":"null"}]},
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
