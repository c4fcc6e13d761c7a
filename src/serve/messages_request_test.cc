// Bodies of Anthropic's API as chat requests: what Claude Code sends must work, and errors must name the field that the client wrote.
#include "serve/messages_request.h"

#include <gtest/gtest.h>

#include "support/request_defaults.h"
#include "text/utf8_text.h"

namespace ingot::serve {
namespace {

using test_support::request_defaults;

Json body() { return Json::parse(R"({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]})"); }

MessagesRequest parsed(const Json& json, MessagesUse use = MessagesUse::answer) {
  auto request = parse_messages_request(json, request_defaults(), use);
  EXPECT_TRUE(request) << request.error().message;
  return request ? std::move(*request) : MessagesRequest();
}

std::string refused(const Json& change) {
  Json json = body();
  json.update(change);
  const auto request = parse_messages_request(json, request_defaults(), MessagesUse::answer);
  EXPECT_FALSE(request) << json.dump();
  if (request) return {};
  EXPECT_TRUE(request.error().message.starts_with(request.error().param + ":")) << request.error().message;
  return request.error().param;
}

TEST(MessagesRequest, ALongTypeIsShownInWholeCharacters) {
  std::string type = "a";
  for (int i = 0; i < 60; ++i) type += "\xc3\xa9";
  Json json = body();
  json["messages"][0]["content"] = Json::array({{{"type", type}}});
  const auto request = parse_messages_request(json, request_defaults(), MessagesUse::answer);
  ASSERT_FALSE(request);
  EXPECT_EQ(text::find_invalid_utf8(request.error().message), text::kValidUtf8);
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  Json json = body();
  json["system"] = Json::parse(R"([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "A"},
    {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}])");
  json["messages"] = Json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "ingot-1"}, {"type": "text", "text": "a"},
      {"type": "text", "text": "b"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "r"}], "is_error": true},
      {"type": "text", "text": "and now?"}]}])");
  const Json messages = parsed(json).chat.messages;
  EXPECT_EQ(messages, Json::parse(R"([
    {"role": "system", "content": "A\nB"},
    {"role": "user", "content": "one\ntwo"},
    {"role": "assistant", "content": "ab", "id": "ingot-1", "reasoning_content": "Hm",
      "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: r"},
    {"role": "user", "content": "and now?"}])"));
}

TEST(MessagesRequest, ThinkingIsOffUnlessAskedFor) {
  const auto thinks = [](const Json& thinking) {
    Json json = body();
    json["thinking"] = thinking;
    return parsed(json).chat.template_kwargs.at("enable_thinking").get<bool>();
  };
  EXPECT_FALSE(thinks(nullptr));
  EXPECT_FALSE(thinks({{"type", "disabled"}}));
  EXPECT_TRUE(thinks({{"type", "adaptive"}}));
  EXPECT_TRUE(thinks({{"type", "enabled"}, {"budget_tokens", 1024}}));
  Json json = body();
  json["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  EXPECT_EQ(parsed(json).chat.options.thinking_budget, 1024);
  json["thinking"] = {{"type", "adaptive"}};
  json["output_config"] = {{"effort", "low"}};
  json["context_management"] = {{"edits", Json::array({{{"type", "clear_thinking_20251015"}, {"keep", "all"}}})}};
  const Json kwargs = parsed(json).chat.template_kwargs;
  EXPECT_EQ(kwargs.at("reasoning_effort"), "high");
  EXPECT_EQ(kwargs.at("clear_thinking"), false);
}

TEST(MessagesRequest, CountingNeedsNoLimitAndTakesNoSampling) {
  Json json = body();
  json.erase("max_tokens");
  parsed(json, MessagesUse::count_tokens);
  json["temperature"] = 1;
  EXPECT_FALSE(parse_messages_request(json, request_defaults(), MessagesUse::count_tokens));
}

TEST(MessagesRequest, RefusalsNameTheClientsOwnField) {
  EXPECT_EQ(refused({{"max_tokens", nullptr}}), "max_tokens");
  EXPECT_EQ(refused({{"stop_sequences", Json::array({""})}}), "stop_sequences");
  EXPECT_EQ(refused({{"system", 1}}), "system");
  EXPECT_EQ(refused({{"system", Json::array({{{"type", "image"}}})}}), "system[0].type");
  EXPECT_EQ(refused({{"messages", Json::array({{{"role", "user"}, {"content", 1}}})}}), "messages[0].content");
  EXPECT_EQ(refused({{"messages", Json::array({{{"role", "user"}, {"content", "a"}, {"name", "b"}}})}}), "messages[0].name");
  EXPECT_EQ(refused({{"tools", Json::array({{{"name", "f"}, {"input_schema", 1}}})}}), "tools[0].input_schema");
  EXPECT_EQ(refused({{"tools", Json::array({{{"name", "f"}, {"input_schema", Json::object()}, {"wibble", 1}}})}}), "tools[0].wibble");
  EXPECT_EQ(refused({{"tool_choice", {{"type", "any"}, {"name", "x"}}}}), "tool_choice.name");
  EXPECT_EQ(refused({{"output_config", {{"effort", "wild"}}}}), "output_config.effort");
}

}  // namespace
}  // namespace ingot::serve
