#include "text/chat_messages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "text/chat_template.h"

namespace ingot::text {
namespace {

Json json(std::string_view text) { return parse_json(text, "test").value(); }

std::string normal(std::string_view messages) {
  const auto result = normalize_messages(json(messages));
  return result ? result->dump() : "!" + result.error().message;
}

TEST(ChatMessagesTest, NullContentDoesNotReachTheTemplateAsTheWordNone) {
  EXPECT_EQ(normal(R"([{"role":"user","content":null}])"), R"([{"role":"user","content":""}])");
}

// vllm#39614: the tool result vanished from the prompt since its content was a list.
TEST(ChatMessagesTest, ToolResultGivenAsPartsIsFlattened) {
  EXPECT_EQ(normal(R"([{"role":"tool","content":[{"type":"text","text":"15C"},{"type":"text","text":", sunny"}]}])"),
            R"([{"role":"tool","content":"15C, sunny"}])");
}

TEST(ChatMessagesTest, AnImagePartIsRefusedByIndexAndType) {
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]}])"),
            "!messages[0].content[1].type: part 1 has the unsupported type \"image_url\"");
}

// sglang#9489: the second turn was a 500, "Can only get item pairs from a mapping".
TEST(ChatMessagesTest, ArgumentsInAStringBecomeAnObjectInTheSameKeyOrder) {
  EXPECT_EQ(
      normal(
          R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}}]}])"),
      R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}}],"content":""}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":2}}}]}])"),
            R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":2}}}]}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":""}}]}])"),
            R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]}])");
}

TEST(ChatMessagesTest, BrokenArgumentsAreKeptAsTextAndStillRender) {
  const auto messages = normalize_messages(json(
      R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"a\": "}}]}])"));
  ASSERT_TRUE(messages.has_value()) << messages.error().message;
  std::ifstream in(std::string(INGOT_SOURCE_DIR) + "/models/demo/chat_template.jinja");
  std::stringstream source;
  source << in.rdbuf();
  const auto text = ChatTemplate::parse(source.str(), "demo")->render({{"messages", *messages}});
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_TRUE(text->ends_with("<tool_call>f<arg_key>arguments</arg_key><arg_value>{\"a\": </arg_value></tool_call>")) << *text;
  EXPECT_NE(normal(R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])")
                .find(R"({"arguments":"[1]"})"),
            std::string::npos);
}

TEST(ChatMessagesTest, EmptyToolCallsAreDropped) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","tool_calls":[]}])"), R"([{"role":"assistant","content":"a"}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","tool_calls":null}])"), R"([{"role":"assistant","content":"a"}])");
}

TEST(ChatMessagesTest, ReasoningIsKeptUnderOneName) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning":"r"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning_content":"r","reasoning":"q"}])"),
            R"([{"role":"assistant","content":"a","reasoning_content":"r"}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning_content":null}])"), R"([{"role":"assistant","content":"a"}])");
}

TEST(ChatMessagesTest, DeveloperIsSystemAndAnUnknownRoleIsRefusedByName) {
  EXPECT_EQ(normal(R"([{"role":"developer","content":"a"}])"), R"([{"role":"system","content":"a"}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":"a"},{"role":"wizard","content":"a"}])"), "!messages[1].role: unknown role \"wizard\"");
}

TEST(ChatMessagesTest, ARefusalIsWhatTheAssistantSaid) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}])"),
            R"([{"role":"assistant","content":"No."}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":null,"refusal":"No."}])"), R"([{"role":"assistant","content":"No."}])");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"Yes.","refusal":null}])"), R"([{"role":"assistant","content":"Yes."}])");
}

TEST(ChatMessagesTest, WhatTheTemplateWouldPassOverIsRefusedByName) {
  EXPECT_EQ(normal(R"([{"role":"function","name":"f","content":"1"}])"), "!messages[0].role: the old role \"function\" is not supported");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}])"),
            "!messages[0].function_call: this old form is not supported");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":null,"audio":{"id":"a"}}])"), "!messages[0].audio: this model reads text alone");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","function_call":null,"audio":null}])").front(), '[');
}

// What clients send for one history, written by the reference: Jinja2 over the client's own messages, with arguments parsed as the
// model's documentation says. Made by tools/make_history_goldens.py.
TEST(ChatMessagesTest, EveryShapeOfAHistoryRendersAsTheReferenceDoes) {
  std::ifstream template_file(std::string(INGOT_SOURCE_DIR) + "/models/demo/chat_template.jinja");
  std::stringstream source;
  source << template_file.rdbuf();
  const auto chat_template = ChatTemplate::parse(source.str(), "demo").value();
  std::ifstream file(std::string(INGOT_SOURCE_DIR) + "/tests/golden/chat_template/history_shapes.json");
  const Json goldens = Json::parse(file);
  ASSERT_GE(goldens.size(), 14u);
  for (const Json& golden : goldens) {
    const auto messages = normalize_messages(golden["messages"]);
    ASSERT_TRUE(messages.has_value()) << golden["name"] << messages.error().message;
    const auto text = chat_template.render({{"messages", *messages}, {"add_generation_prompt", true}});
    ASSERT_TRUE(text.has_value()) << golden["name"] << text.error().message;
    EXPECT_EQ(*text, golden["rendered"].get<std::string>()) << golden["name"];
  }
}

TEST(ChatMessagesTest, AWrongTypeIsAnErrorWithItsPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages: "},
      {R"([1])", "messages[0]: "},
      {R"([{}])", "messages[0].role: "},
      {R"([{"role":1}])", "messages[0].role: "},
      {R"([{"role":"user"}])", "messages[0].content: "},
      {R"([{"role":"assistant"}])", "messages[0].content: "},
      {R"([{"role":"user","content":5}])", "messages[0].content: "},
      {R"([{"role":"user","content":[5]}])", "messages[0].content[0]: "},
      {R"([{"role":"user","content":[{}]}])", "messages[0].content[0].type: "},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text: "},
      {R"([{"role":"assistant","content":"","tool_calls":{}}])", "messages[0].tool_calls: "},
      {R"([{"role":"assistant","content":"","tool_calls":[1]}])", "messages[0].tool_calls[0]: "},
      {R"([{"role":"assistant","content":"","tool_calls":[{"function":1}]}])", "messages[0].tool_calls[0].function: "},
      {R"([{"role":"assistant","content":"","tool_calls":[{"function":{}}]}])", "messages[0].tool_calls[0].function.name: "},
      {R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":3}}]}])",
       "messages[0].tool_calls[0].function.arguments: "},
      {R"([{"role":"user","content":"","tool_calls":[{"function":{"name":"f"}}]}])", "messages[0].tool_calls: "},
      {R"([{"role":"assistant","content":"","reasoning":[]}])", "messages[0].reasoning: "},
  };
  for (const auto& [messages, path] : cases)
    EXPECT_TRUE(normal(messages).starts_with(std::string("!") + path)) << messages << " gave " << normal(messages);
}

}  // namespace
}  // namespace ingot::text
