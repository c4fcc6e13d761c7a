// Scores as the published figures of the demo model were made; sets that cannot be scored are found before an hour of answers.
#include "eval/demo_tasks.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/checkpoint_writer.h"

namespace ingot::eval {
namespace {

using ::testing::HasSubstr;

Json word(const std::string& expected) { return {{"id", "w"}, {"kind", "word"}, {"expected", expected}}; }
Json retr(const std::string& expected) { return {{"id", "r"}, {"kind", "retr"}, {"expected", expected}}; }
Json tool(const std::string& calls) { return {{"id", "t"}, {"kind", "tool"}, {"expected", {{"calls", Json::parse(calls)}}}}; }
bool says(const Json& task, const std::string& content) {
  return score_demo_answer(task, {.content = content, .calls = {}, .ended = true}).value();
}

TEST(DemoRule, WordIsTheFirstNumberAfterTheMark) {
  EXPECT_TRUE(says(word("72"), "48 + 24 = 72 clips.\n#### 72"));
  EXPECT_FALSE(says(word("72"), "The answer is 72.")) << "no mark";
  EXPECT_FALSE(says(word("72"), "#### 720"));
  EXPECT_FALSE(says(word("72"), "#### 7\n#### 72")) << "the first one counts";
  EXPECT_TRUE(says(word("-3"), "#### -3 degrees"));
  EXPECT_FALSE(says(word("3"), "#### -3"));
}

TEST(DemoRule, RetrievedStringIsAWordOfItsOwn) {
  EXPECT_TRUE(says(retr("DSM34"), "The value is DSM34."));
  EXPECT_FALSE(says(retr("DSM34"), "The value is DSM345."));
  EXPECT_FALSE(says(retr("siding"), "re-siding"));
  EXPECT_FALSE(says(retr("siding"), "\xc3\xa9siding")) << "a letter beyond ASCII goes before it";
  EXPECT_TRUE(says(retr("siding"), "sidings or siding")) << "the second place is right";
}

TEST(DemoRule, CallsAreTheSameInNumberOrderNamesAndArguments) {
  const Json one = tool(R"([{"name": "f", "arguments": {"a": 1, "b": ["x", "y"]}}])");
  const ToolCall right{"f", Json::parse(R"({"b": ["x", "y"], "a": 1})")}, other{"g", Json::object()};
  const auto calls = [](std::vector<ToolCall> made, bool ended_in_call = true) {
    return DemoAnswer{.content = {}, .calls = std::move(made), .ended = true, .ended_in_call = ended_in_call};
  };
  EXPECT_TRUE(score_demo_answer(one, calls({right})).value()) << "the order of the keys says nothing";
  EXPECT_FALSE(score_demo_answer(one, calls({{"f", Json::parse(R"({"a": "1", "b": ["x", "y"]})")}})).value()) << "a string is no number";
  EXPECT_FALSE(score_demo_answer(one, calls({{"f", Json::parse(R"({"a": 1, "b": ["y", "x"]})")}})).value());
  EXPECT_FALSE(score_demo_answer(one, calls({right, other})).value());
  EXPECT_FALSE(score_demo_answer(one, calls({})).value());
  EXPECT_FALSE(score_demo_answer(one, calls({right}, false)).value()) << "it did not ask for the result";
  const Json two = tool(R"([{"name": "f", "arguments": {"a": 1, "b": ["x", "y"]}}, {"name": "g", "arguments": {}}])");
  EXPECT_TRUE(score_demo_answer(two, calls({right, other})).value());
  EXPECT_FALSE(score_demo_answer(two, calls({other, right})).value());
}

TEST(DemoRule, NoCallNeededIsAnAnswerThatEnds) {
  const Json none = tool("[]");
  EXPECT_TRUE(score_demo_answer(none, {.content = "Hello!", .calls = {}, .ended = true}).value());
  EXPECT_FALSE(score_demo_answer(none, {.content = "Hello!", .calls = {}, .ended = false}).value());
  EXPECT_FALSE(score_demo_answer(none, {.content = "", .calls = {{"f", Json::object()}}, .ended = true}).value());
  EXPECT_FALSE(score_demo_answer(none, {.content = "<tool_call> x", .calls = {}, .ended = true}).value());
}

TEST(DemoRule, TasksThatCannotBeScoredAreNamed) {
  EXPECT_THAT(score_demo_answer({{"id", "x7"}, {"kind", "riddle"}, {"expected", ""}}, {}).error().text(),
              AllOf(HasSubstr("x7"), HasSubstr("riddle")));
  EXPECT_THAT(score_demo_answer({{"id", "x7"}, {"kind", "word"}}, {}).error().text(), HasSubstr("expected"));
  EXPECT_THAT(score_demo_answer({{"id", "x7"}, {"kind", "tool"}, {"expected", "12"}}, {}).error().text(), HasSubstr("calls"));
}

TEST(DemoTasks, AskAsTheSetsSayAndScoreWhatAServerTells) {
  test_support::TempDir dir;
  const Json message = Json::array({{{"role", "user"}, {"content", "x"}}});
  const Json call = {{"name", "f"}, {"arguments", {{"a", 1}}}};
  std::ofstream(dir.path() / "b.jsonl") << Json({{"id", "t"},
                                                 {"kind", "tool"},
                                                 {"messages", message},
                                                 {"tools", Json::array({{{"type", "function"}}})},
                                                 {"enable_thinking", false},
                                                 {"reasoning_effort", nullptr},
                                                 {"expected", {{"calls", Json::array({call})}}}});
  std::ofstream(dir.path() / "a.jsonl") << Json({{"kind", "word"}, {"messages", message}, {"expected", "72"}, {"steps", 2}});
  const Task task = make_demo_tasks({.data = {dir.path()}}).value();
  ASSERT_EQ(task.questions.size(), 2u);
  const Question &word = task.questions[0], &tool = task.questions[1];
  EXPECT_EQ(word.id, "a-0") << "files of a folder in the order of their names; a line without id is numbered";
  EXPECT_EQ(word.body["max_tokens"], 220);
  EXPECT_FALSE(word.body.contains("chat_template_kwargs"));
  EXPECT_EQ(tool.body["chat_template_kwargs"], Json({{"enable_thinking", false}}));
  EXPECT_TRUE(tool.body.contains("tools"));
  Answer answer;
  answer.content = "#### 1</think>#### 72", answer.finish_reason = "stop";
  EXPECT_TRUE(task.score(word, answer).ok);
  answer.calls = {{"f", Json::parse(R"({"a": 1})")}};
  EXPECT_FALSE(task.score(tool, answer).ok) << "it did not ask for the result";
  answer.finish_reason = "tool_calls";
  EXPECT_TRUE(task.score(tool, answer).ok);
}

TEST(DemoTasks, LinesThatCannotBeScoredAreNamed) {
  test_support::TempDir dir;
  const auto path = dir.path() / "x.jsonl";
  std::ofstream(path) << "{\"id\": \"q\", \"kind\": \"riddle\", \"expected\": \"\"}\n";
  EXPECT_THAT(make_demo_tasks({.data = {path}}).error().text(), AllOf(HasSubstr("x.jsonl:1"), HasSubstr("riddle")));
  const std::string line = R"({"id": "q", "kind": "word", "messages": [], "expected": "1"})";
  std::ofstream(path) << line << "\n" << line << "\n";
  EXPECT_THAT(make_demo_tasks({.data = {path}}).error().text(), AllOf(HasSubstr("x.jsonl:2"), HasSubstr("twice")));
  EXPECT_THAT(make_demo_tasks({.data = {dir.path() / "none.jsonl"}}).error().text(), HasSubstr("none.jsonl"));
}

}  // namespace
}  // namespace ingot::eval
