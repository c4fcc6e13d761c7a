// Symptom: every turn of an agent is prefilled again, since what the client sends back is written otherwise than it was sampled. And the
// opposite: a prompt that says what its client does not.
#include "serve/replay.h"

#include <gtest/gtest.h>

#include "serve/answer.h"
#include "text/chat_messages.h"

namespace ingot::serve {
namespace {

SampledTurn turn() {
  SampledTurn turn;
  turn.starts_in_reasoning = true;
  turn.reasoning = "Hm.\n";
  turn.content = "\nLet me look.\n";
  turn.calls = {{"look", R"({"b": 1.0, "a": [1,2]})"}, {"ping", "{}"}};
  turn.tokens = {1, 2, 3};
  return turn;
}

Json message() {
  return Json::parse(R"({"role": "assistant", "content": "Let me look.", "reasoning_content": "Hm.", "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"a": [1, 2], "b": 1}}},
    {"id": "call_2", "type": "function", "function": {"name": "ping", "arguments": {}}}]})");
}

TEST(Replay, ACopyIsFoundByIdsAndByWords) {
  ReplayStore store;
  store.add({"call_1", "call_2"}, turn());
  EXPECT_NE(store.find(message()), nullptr);
  Json words = message();
  for (Json& call : words["tool_calls"]) call["id"] = "another";
  EXPECT_NE(store.find(words), nullptr);
  Json flat = words;  // the short form of a call
  for (Json& call : flat["tool_calls"]) call = call["function"];
  EXPECT_NE(store.find(flat), nullptr);
}

TEST(Replay, ReasoningThatWasLeftOutComesBackByIdAlone) {
  ReplayStore store;
  store.add({"call_1", "call_2"}, turn());
  Json short_one = message();
  short_one.erase("reasoning_content");
  EXPECT_NE(store.find(short_one), nullptr);
  for (Json& call : short_one["tool_calls"]) call["id"] = "guessed";
  EXPECT_EQ(store.find(short_one), nullptr) << "who does not know the id is not given another's thoughts";
}

TEST(Replay, ReasoningInTheContentIsReasoning) {
  ReplayStore store;
  store.add({}, turn());
  Json tagged = message();
  tagged.erase("reasoning_content");
  tagged["content"] = "<think>Hm.\n</think>\nLet me look.";
  EXPECT_NE(store.find(tagged), nullptr);
  tagged["content"] = "<think>Hm</think>\nLet me look.";
  EXPECT_EQ(store.find(tagged), nullptr);
}

TEST(Replay, WhatTheClientChangedIsNoCopy) {
  ReplayStore store;
  store.add({"call_1", "call_2"}, turn());
  const auto changed = [&](auto change) {
    Json other = message();
    change(other);
    return store.find(other) == nullptr;
  };
  EXPECT_TRUE(changed([](Json& m) { m["content"] = "Let me look"; }));
  EXPECT_TRUE(changed([](Json& m) { m["reasoning_content"] = "Hm"; }));
  EXPECT_TRUE(changed([](Json& m) { m["tool_calls"][0]["function"]["arguments"]["b"] = 2; }));
  EXPECT_TRUE(changed([](Json& m) { m["tool_calls"][0]["function"]["arguments"]["a"] = Json::array({2, 1}); }));
  EXPECT_TRUE(changed([](Json& m) { m["tool_calls"][0]["function"]["arguments"].erase("a"); }));
  EXPECT_TRUE(changed([](Json& m) { m["tool_calls"][1]["function"]["name"] = "pong"; }));
  EXPECT_TRUE(changed([](Json& m) { m["tool_calls"].erase(1); }));
  EXPECT_TRUE(changed([](Json& m) { m.erase("tool_calls"); }));
  EXPECT_FALSE(changed([](Json&) {}));
}

TEST(Replay, TheLeastUsedTurnsAreForgotten) {
  ReplayStore store({.max_turns = 2, .max_bytes = 1 << 20});
  const auto numbered = [](int i) {
    SampledTurn turn;
    turn.content = std::to_string(i);
    turn.tokens = {i};
    return turn;
  };
  const auto find = [&](int i) { return store.find({{"role", "assistant"}, {"content", std::to_string(i)}}); };
  store.add({"a"}, numbered(1));
  store.add({"b"}, numbered(2));
  EXPECT_NE(find(1), nullptr);
  store.add({"c"}, numbered(3));
  EXPECT_EQ(find(2), nullptr);
  EXPECT_NE(find(1), nullptr);
  EXPECT_EQ(store.num_turns(), 2u);
  // The same words again: the newer turn has them, and the older one's end does not take them away.
  store.add({"d"}, numbered(1));
  store.add({"e"}, numbered(4));
  EXPECT_EQ(store.num_turns(), 2u);
  EXPECT_NE(find(1), nullptr);
}

TEST(Replay, ATurnThatIsTooLargeIsNotKept) {
  ReplayStore store({.max_turns = 10, .max_bytes = 1000});
  SampledTurn large = turn();
  large.tokens.resize(10'000);
  store.add({"call_1"}, large);
  EXPECT_EQ(store.num_turns(), 0u);
}

// What a template of GLM writes of a message.
std::string written(const Json& m, bool shows_reasoning) {
  std::string text = "<|assistant|><think>";
  if (shows_reasoning) text += m.value("reasoning_content", "");
  text += "</think>" + m["content"].get<std::string>();
  for (const Json& call : m.value("tool_calls", Json::array()))
    text += "<tool_call>" + call["function"]["name"].get<std::string>() + "</tool_call>";
  return text;
}

TEST(Replay, MarksStandWhereTheTurnIsWrittenWhole) {
  ReplayStore store;
  store.add({"call_1"}, turn());
  const Json messages = Json::array({{{"role", "user"}, {"content", "hi"}}, message(), {{"role", "user"}, {"content", "well?"}}});
  ReplayMarks marks(store, messages);
  ASSERT_FALSE(marks.empty());
  const std::string text = "<|user|>hi" + written(marks.messages()[1], true) + "<|user|>well?";
  EXPECT_FALSE(marks.drop_misplaced(text));
  const auto parts = marks.split(text);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text, "<|user|>hi<|assistant|><think>");
  EXPECT_EQ(parts[1].turn->tokens, turn().tokens);
  EXPECT_EQ(parts[2].text, "<|user|>well?");
}

TEST(Replay, ATurnWhoseThinkingTheTemplateForgetsIsWrittenAsTheClientSentIt) {
  ReplayStore store;
  store.add({"call_1"}, turn());
  const Json messages = Json::array({message(), {{"role", "user"}, {"content", "well?"}}});
  ReplayMarks marks(store, messages);
  EXPECT_TRUE(marks.drop_misplaced(written(marks.messages()[0], false) + "<|user|>well?"));
  EXPECT_TRUE(marks.empty());
  EXPECT_EQ(marks.messages(), messages);
}

TEST(Replay, ATurnWithoutThinkingKeepsItsEmptyTags) {
  ReplayStore store;
  SampledTurn plain;
  plain.content = "Hello";
  plain.tokens = {7};
  store.add({}, plain);
  ReplayMarks marks(store, Json::array({{{"role", "assistant"}, {"content", "Hello"}}}));
  ASSERT_FALSE(marks.empty());
  const std::string text = written(marks.messages()[0], true);
  EXPECT_FALSE(marks.drop_misplaced(text));
  const auto parts = marks.split(text);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text, "<|assistant|><think></think>");
  EXPECT_EQ(parts[1].turn->tokens, plain.tokens);
}

TEST(Replay, NobodyCanWriteAMark) {
  ReplayStore store;
  store.add({"call_1"}, turn());
  const auto name = [&] { return ReplayMarks(store, Json::array({message()})).messages()[0]["content"].get<std::string>(); };
  EXPECT_NE(name(), name());
}

}  // namespace
}  // namespace ingot::serve
