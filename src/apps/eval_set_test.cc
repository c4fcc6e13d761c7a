// Scores as the published figures were made, and the paired comparison.
#include "apps/eval_set.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/checkpoint_writer.h"

namespace ingot::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json word(const std::string& expected) { return {{"id", "w"}, {"kind", "word"}, {"expected", expected}}; }
Json retr(const std::string& expected) { return {{"id", "r"}, {"kind", "retr"}, {"expected", expected}}; }
Json tool(const std::string& calls) { return {{"id", "t"}, {"kind", "tool"}, {"expected", {{"calls", Json::parse(calls)}}}}; }
bool says(const Json& task, const std::string& content) {
  return score_answer(task, {.content = content, .calls = {}, .ended = true}).value();
}

TEST(ScoreAnswer, WordIsTheFirstNumberAfterTheMark) {
  EXPECT_TRUE(says(word("72"), "48 + 24 = 72 clips.\n#### 72"));
  EXPECT_FALSE(says(word("72"), "The answer is 72.")) << "no mark";
  EXPECT_FALSE(says(word("72"), "#### 720"));
  EXPECT_FALSE(says(word("72"), "#### 7\n#### 72")) << "the first one counts";
  EXPECT_TRUE(says(word("-3"), "#### -3 degrees"));
  EXPECT_FALSE(says(word("3"), "#### -3"));
}

TEST(ScoreAnswer, RetrievedStringIsAWordOfItsOwn) {
  EXPECT_TRUE(says(retr("DSM34"), "The value is DSM34."));
  EXPECT_FALSE(says(retr("DSM34"), "The value is DSM345."));
  EXPECT_FALSE(says(retr("siding"), "re-siding"));
  EXPECT_FALSE(says(retr("siding"), "\xc3\xa9siding")) << "a letter beyond ASCII goes before it";
  EXPECT_TRUE(says(retr("siding"), "sidings or siding")) << "the second place is right";
}

TEST(ScoreAnswer, CallsAreTheSameInNumberOrderNamesAndArguments) {
  const Json one = tool(R"([{"name": "f", "arguments": {"a": 1, "b": ["x", "y"]}}])");
  const ToolCall right{"f", Json::parse(R"({"b": ["x", "y"], "a": 1})")}, other{"g", Json::object()};
  const auto calls = [](std::vector<ToolCall> made, bool ended_in_call = true) {
    return TaskAnswer{.content = {}, .calls = std::move(made), .ended = true, .ended_in_call = ended_in_call};
  };
  EXPECT_TRUE(score_answer(one, calls({right})).value()) << "the order of the keys says nothing";
  EXPECT_FALSE(score_answer(one, calls({{"f", Json::parse(R"({"a": "1", "b": ["x", "y"]})")}})).value()) << "a string is no number";
  EXPECT_FALSE(score_answer(one, calls({{"f", Json::parse(R"({"a": 1, "b": ["y", "x"]})")}})).value());
  EXPECT_FALSE(score_answer(one, calls({right, other})).value());
  EXPECT_FALSE(score_answer(one, calls({})).value());
  EXPECT_FALSE(score_answer(one, calls({right}, false)).value()) << "it did not ask for the result";
  const Json two = tool(R"([{"name": "f", "arguments": {"a": 1, "b": ["x", "y"]}}, {"name": "g", "arguments": {}}])");
  EXPECT_TRUE(score_answer(two, calls({right, other})).value());
  EXPECT_FALSE(score_answer(two, calls({other, right})).value());
}

TEST(ScoreAnswer, NoCallNeededIsAnAnswerThatEnds) {
  const Json none = tool("[]");
  EXPECT_TRUE(score_answer(none, {.content = "Hello!", .calls = {}, .ended = true}).value());
  EXPECT_FALSE(score_answer(none, {.content = "Hello!", .calls = {}, .ended = false}).value());
  EXPECT_FALSE(score_answer(none, {.content = "", .calls = {{"f", Json::object()}}, .ended = true}).value());
  EXPECT_FALSE(score_answer(none, {.content = "<tool_call> x", .calls = {}, .ended = true}).value());
}

TEST(ScoreAnswer, TasksThatCannotBeScoredAreNamed) {
  EXPECT_THAT(score_answer({{"id", "x7"}, {"kind", "riddle"}, {"expected", ""}}, {}).error().text(),
              AllOf(HasSubstr("x7"), HasSubstr("riddle")));
  EXPECT_THAT(score_answer({{"id", "x7"}, {"kind", "word"}}, {}).error().text(), HasSubstr("expected"));
  EXPECT_THAT(score_answer({{"id", "x7"}, {"kind", "tool"}, {"expected", "12"}}, {}).error().text(), HasSubstr("calls"));
}

std::vector<TaskResult> results(const std::vector<std::pair<std::string, bool>>& ids) {
  std::vector<TaskResult> all;
  for (const auto& [id, ok] : ids) {
    TaskResult r;
    r.id = id, r.kind = "word", r.ok = ok, r.finish = "stop";
    all.push_back(r);
  }
  return all;
}

TEST(Compare, PairsByIdAndCountsWhatWasLostAndWon) {
  const Json earlier = results_json({}, results({{"a", true}, {"b", true}, {"c", false}, {"d", true}, {"gone", true}}));
  const auto c = compare_results(results({{"d", true}, {"c", true}, {"b", false}, {"a", false}, {"new", false}}), earlier).value();
  EXPECT_EQ(c.paired, 4);
  EXPECT_THAT(c.lost, ElementsAre("b", "a"));
  EXPECT_THAT(c.won, ElementsAre("c"));
  EXPECT_DOUBLE_EQ(c.p, 1) << "2 and 1 of 3 are nothing";
  EXPECT_FALSE(compare_results(results({{"z", true}}), earlier).has_value()) << "no id in common";
  EXPECT_FALSE(compare_results(results({{"a", true}}), Json::parse(R"({"items": [{"id": "a"}]})")).has_value());
  EXPECT_FALSE(compare_results(results({{"a", true}}), Json::array()).has_value());
}

TEST(ResultsText, GroupsAndRecordedAnswers) {
  auto all = results({{"a", true}, {"b", false}, {"c", true}});
  all[0].groups = {{"steps", "1"}};
  all[1].groups = {{"steps", "2"}};
  all[1].recorded_ok = true;
  all[2].recorded_ok = true;
  EXPECT_THAT(results_text(all), Not(HasSubstr("speculation")));
  all[0].speculation.add(4, 5, 3);
  all[2].speculation.add(2, 5, 1);
  EXPECT_EQ(results_json({}, all)["speculative"]["word"]["accepted_per_position"], Json::parse("[2, 1, 1, 0, 0]"));
  EvalSetOptions forced;
  forced.speculation.force_acceptance = 3.5;
  EXPECT_EQ(results_json(forced, all)["forced_acceptance"], 3.5);
  const std::string text = results_text(all);
  EXPECT_THAT(text, HasSubstr("speculation, word: mean acceptance length 3.00 over 2 steps, accepted per position 100 50 50 0 0 %"));
  EXPECT_THAT(text, HasSubstr("2 of    3"));
  EXPECT_THAT(text, HasSubstr("steps 2"));
  EXPECT_THAT(text, HasSubstr("1 of 2 the same; not b (wrong, recorded right)"));
}

TEST(ReadJsonLines, NamesTheLineAndStopsAtTheLimit) {
  test_support::TempDir dir;
  const auto path = dir.path() / "tasks.jsonl";
  std::ofstream(path) << "{\"a\": 1}\n\n{\"a\": 2}\nnonsense";
  EXPECT_EQ(read_json_lines(path, 2).value().size(), 2u);
  EXPECT_THAT(read_json_lines(path, 0).error().text(), HasSubstr("tasks.jsonl:4"));
  EXPECT_THAT(read_json_lines(dir.path() / "none", 0).error().text(), HasSubstr("none"));
  EXPECT_THAT(parse_activations("int4").error().text(), HasSubstr("mxfp4"));
}

}  // namespace
}  // namespace ingot::apps
