// Bodies of the Responses API as chat requests: items of one answer are one message, and errors must name the field that the client wrote.
#include "serve/responses_request.h"

#include <gtest/gtest.h>

#include "support/request_defaults.h"

namespace ingot::serve {
namespace {

using test_support::request_defaults;

ApiResult<ResponsesRequest> parse(const Json& body, const Json& history = Json::array()) {
  auto request = parse_responses_request(body, true);
  if (!request) return request;
  if (auto error = finish_responses_request(*request, history, request_defaults())) return tl::unexpected(std::move(*error));
  return request;
}

ResponsesRequest parsed(const Json& body, const Json& history = Json::array()) {
  auto request = parse(body, history);
  EXPECT_TRUE(request) << request.error().message;
  return request ? std::move(*request) : ResponsesRequest();
}

std::string refused(const Json& body) {
  const auto request = parse(body);
  EXPECT_FALSE(request) << body.dump();
  return request ? "" : request.error().param;
}

TEST(ResponsesRequest, ItemsOfOneAnswerAreOneMessage) {
  const Json items = Json::parse(R"([
    {"role": "user", "content": "hi"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "one"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "two"}]},
    {"type": "message", "role": "assistant", "content": "b"},
    {"type": "message", "role": "assistant", "content": "c"}])");
  const Json expected = Json::parse(R"([
    {"role": "system", "content": "Be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "a", "id": "rs_1", "reasoning_content": "Hm", "tool_calls": [
      {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
      {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
    {"role": "assistant", "content": "b"},
    {"role": "assistant", "content": "c"}])");
  EXPECT_EQ(parsed({{"input", items}, {"instructions", "Be brief"}}).chat.messages, expected);
  Json before = items;
  before.erase(items.size() - 1);
  const Json messages = parsed({{"input", "d"}}, before).chat.messages;
  EXPECT_EQ(messages.back(), Json::parse(R"({"role": "user", "content": "d"})"));
  EXPECT_EQ(messages[1], expected[2]);
}

TEST(ResponsesRequest, MessagesInShortFormAreListedWhole) {
  const Json input = parsed({{"input", Json::array({{{"role", "user"}, {"content", "hi"}}})}}).input;
  EXPECT_EQ(input[0]["type"], "message");
  EXPECT_EQ(input[0]["content"], Json::parse(R"([{"type": "input_text", "text": "hi"}])"));
}

TEST(ResponsesRequest, FieldsReachTheEngine) {
  const auto request = parsed(Json::parse(R"({"input": "hi", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_logprobs": 3,
    "reasoning": {"effort": "low", "summary": "auto"}, "stream": true, "tools": [{"type": "function", "name": "f", "parameters": {}}]})"));
  const auto& options = request.chat.options;
  EXPECT_EQ(options.sampling.max_tokens, 7);
  EXPECT_FLOAT_EQ(options.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(options.sampling.top_p, 0.25f);
  EXPECT_EQ(options.sampling.top_logprobs, 3);
  EXPECT_TRUE(options.stream);
  EXPECT_EQ(request.chat.template_kwargs.at("reasoning_effort"), "high");
  EXPECT_EQ(request.chat.tools[0]["function"]["name"], "f");
  EXPECT_TRUE(request.store);
}

TEST(ResponsesRequest, RefusalsNameTheClientsOwnField) {
  EXPECT_EQ(refused({{"input", "hi"}, {"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(refused({{"input", "hi"}, {"reasoning", {{"effort", "wild"}}}}), "reasoning.effort");
  EXPECT_EQ(refused({{"input", "hi"}, {"tools", Json::array({{{"type", "function"}, {"name", "a b"}}})}}), "tools[0].name");
  EXPECT_EQ(refused({{"input", "hi"}, {"tools", Json::array({{{"type", "function"}, {"name", "f"}, {"parameters", 1}}})}}),
            "tools[0].parameters");
  EXPECT_EQ(refused({{"input", Json::array({{{"role", "user"}}})}}), "input[0].content");
  EXPECT_EQ(refused({{"input", Json::array({{{"role", "user"}, {"content", "a"}, {"name", "b"}}})}}), "input[0].name");
  EXPECT_EQ(refused({{"input", "hi"}, {"background", true}}), "background");
  EXPECT_EQ(refused({{"input", "hi"}, {"wibble", 1}}), "wibble");
}

TEST(ResponsesRequest, WithoutAStoreNothingIsKeptAndNothingAskedFor) {
  EXPECT_FALSE(parse_responses_request({{"input", "hi"}}, false)->store);
  EXPECT_EQ(parse_responses_request({{"input", "hi"}, {"store", true}}, false).error().param, "store");
  EXPECT_EQ(parse_responses_request({{"input", "hi"}, {"previous_response_id", "r"}}, false).error().param, "previous_response_id");
}

}  // namespace
}  // namespace ingot::serve
