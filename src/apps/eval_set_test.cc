// Reports of `ingot eval set`, and the paired comparison. What is right is tested with the rule (eval/demo_tasks_test.cc).
#include "apps/eval_set.h"

#include <gmock/gmock.h>

#include <fstream>

#include "support/checkpoint_writer.h"

namespace ingot::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  EXPECT_EQ(c.pairs, 4);
  EXPECT_THAT(c.lost, ElementsAre("b", "a"));
  EXPECT_THAT(c.won, ElementsAre("c"));
  EXPECT_DOUBLE_EQ(c.p, 1) << "2 and 1 of 3 are nothing";
  EXPECT_THAT(compare_results(results({{"z", true}}), earlier).error().text(), HasSubstr("--compare: none of its ids"));
  EXPECT_THAT(compare_results(results({{"a", true}}), Json::parse(R"({"items": [{"id": "a"}]})")).error().text(), HasSubstr("`ok`"));
  EXPECT_THAT(compare_results(results({{"a", true}}), Json::array()).error().text(), HasSubstr("--compare: the file has no `items`"));
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
