// Hours of answers lost to a kill, or mixed with another run's.
#include "eval/runner.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/file_map.h"
#include "eval/items_file.h"
#include "eval/report.h"
#include "support/checkpoint_writer.h"

namespace ingot::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Item item(const std::string& id, bool ok, const std::string& finish = "stop") {
  Item i;
  i.id = id, i.score.ok = ok, i.finish_reason = finish, i.completion_tokens = 7, i.output = "text of " + id;
  return i;
}

const Json kHead = {{"schema", "ingot-eval-items/1"}, {"task", "t"}, {"model", "m"}, {"prompts_sha256", "00"}};

TEST(ParseAnswer, ReadsBothEndpoints) {
  const auto chat =
      parse_answer(Json::parse(R"({"choices": [{"finish_reason": "tool_calls", "message": {"content": null, "reasoning_content": "r",
      "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"function": {"name": "g", "arguments": "{\"a\": "}}]}}],
      "usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}})"))
          .value();
  EXPECT_EQ(chat.content, "");
  EXPECT_EQ(chat.reasoning, "r");
  ASSERT_EQ(chat.calls.size(), 2u);
  EXPECT_EQ(chat.calls[0].arguments, Json::parse(R"({"a": 1})"));
  EXPECT_EQ(chat.calls[1].arguments, "{\"a\": ") << "kept as it was written";
  EXPECT_EQ(chat.cached_tokens, 4);
  EXPECT_EQ(parse_answer(Json::parse(R"({"choices": [{"text": " 5", "finish_reason": "length"}]})")).value().content, " 5");
  EXPECT_THAT(parse_answer(Json::parse(R"({"choices": []})")).error().text(), HasSubstr("choices"));
  EXPECT_THAT(parse_answer(Json::parse(R"({"choices": [{}]})")).error().text(), HasSubstr("message"));
}

TEST(TextOf, IsEmptyWhereThereIsNoText) {
  const Json object = Json::parse(R"({"a": "text", "b": null, "c": 5})");
  EXPECT_EQ(text_of(object, "a"), "text");
  for (const char* name : {"b", "c", "d"}) EXPECT_EQ(text_of(object, name), "") << name;
  EXPECT_EQ(text_of(Json::array({"a"}), "a"), "");
}

TEST(ItemsFile, GoesOnAfterALineThatWasCut) {
  test_support::TempDir dir;
  const auto path = dir.path() / "run.jsonl";
  {
    auto file = ItemsFile::open(path, kHead).value();
    Item whole = item("a", true);
    whole.cluster = "c", whole.score.extracted = "5", whole.score.marks = {{"flexible", false}};
    whole.calls = Json::parse(R"([{"name": "f", "arguments": {}}])");
    ASSERT_TRUE(file.append(whole).has_value());
    ASSERT_TRUE(file.append(item("b", false)).has_value());
  }
  std::ofstream(path, std::ios::app) << R"({"id": "c", "ok": tr)";
  {
    auto file = ItemsFile::open(path, kHead).value();
    const auto earlier = file.take_earlier();
    ASSERT_EQ(earlier.size(), 2u);
    EXPECT_EQ(earlier.at("a").score.extracted, "5");
    EXPECT_EQ(earlier.at("a").cluster, "c");
    EXPECT_THAT(earlier.at("a").score.marks, ElementsAre(Pair("flexible", false)));
    EXPECT_EQ(earlier.at("a").calls[0]["name"], "f");
    EXPECT_EQ(earlier.at("b").output, "text of b");
    ASSERT_TRUE(file.append(item("c", true)).has_value());
  }
  EXPECT_EQ(ItemsFile::open(path, kHead).value().take_earlier().size(), 3u);
}

TEST(ItemsFile, AnotherRunsFileIsRefusedByTheFieldThatDiffers) {
  test_support::TempDir dir;
  const auto path = dir.path() / "run.jsonl";
  ASSERT_TRUE(ItemsFile::open(path, kHead).has_value());
  Json other = kHead;
  other["model"] = "n";
  EXPECT_THAT(ItemsFile::open(path, other).error().text(), AllOf(HasSubstr("model"), HasSubstr("\"m\""), HasSubstr("\"n\"")));
  const auto foreign = dir.path() / "foreign.jsonl";
  std::ofstream(foreign) << "{\"id\": \"x\"}\n";
  EXPECT_THAT(ItemsFile::open(foreign, kHead).error().text(), HasSubstr("head"));
  EXPECT_THAT(ItemsFile::open(dir.path() / "none/run.jsonl", kHead).error().text(), HasSubstr("none/run.jsonl"));
}

Task task_of(size_t questions) {
  Task task;
  task.name = "t", task.rule = "r-1";
  for (size_t i = 0; i < questions; ++i) {
    Question q;
    q.id = std::string(1, static_cast<char>('a' + i));
    q.groups = {{"set", i < 2 ? "first" : "second"}};
    q.body = {{"prompt", q.id}};
    task.questions.push_back(q);
  }
  return task;
}

TEST(Report, CountsReasonsGroupsAndErrors) {
  const Task task = task_of(4);
  const std::vector<Item> items = {item("a", true), item("b", false, "length"), item("c", true), item("d", false, "error")};
  const Report report = make_report(task, items);
  EXPECT_EQ(report.main.right, 2);
  EXPECT_DOUBLE_EQ(report.main.share.value, 0.5);
  EXPECT_DOUBLE_EQ(report.main.standard_error, 0.25);
  EXPECT_THAT(report.finish_reasons, ElementsAre(Pair("stop", 2), Pair("error", 1), Pair("length", 1)));
  ASSERT_EQ(report.groups.size(), 2u);
  EXPECT_EQ(report.groups[0].name, "first");
  EXPECT_EQ(report.groups[0].right, 1);
  EXPECT_THAT(report_warnings(report), ElementsAre(HasSubstr("1 of 4 answers were cut"), HasSubstr("1 questions were refused")));
  EXPECT_TRUE(report_warnings(make_report(task_of(1), {item("a", true)})).empty());
}

TEST(Report, IsABaselineOfItsOwnTaskAlone) {
  Task task = task_of(3);
  const std::vector<Item> items = {item("a", true), item("b", true), item("c", false)};
  const Json json = report_json({}, task, make_report(task, items), items, {});
  const auto d = compare_with(json, task, {item("a", false), item("b", true), item("c", true)}).value();
  EXPECT_THAT(d.lost, ElementsAre("a"));
  EXPECT_THAT(d.won, ElementsAre("c"));
  EXPECT_EQ(baseline_warning(json, task, 3), "");
  EXPECT_THAT(baseline_warning(json, task, 2), HasSubstr("2 of these 3"));
  task.questions[0].body["prompt"] = "another";
  EXPECT_THAT(baseline_warning(json, task, 3), HasSubstr("prompts_sha256"));
  task.rule = "r-2";
  EXPECT_THAT(compare_with(json, task, items).error().text(), AllOf(HasSubstr("rule"), HasSubstr("r-1")));
  EXPECT_THAT(compare_with(Json::array(), task, items).error().text(), HasSubstr("--baseline"));
}

TEST(Report, ASecretTaskShowsNoQuestion) {
  Task task = task_of(1);
  task.questions[0].body["prompt"] = "the secret";
  const std::vector<Item> items = {item("a", true)};
  EXPECT_THAT(report_json({}, task, make_report(task, items), items, {}).dump(), HasSubstr("the secret"));
  task.secret = true;
  EXPECT_THAT(report_json({}, task, make_report(task, items), items, {}).dump(), Not(HasSubstr("the secret")));
}

}  // namespace
}  // namespace ingot::eval
