// Prompts and marks that differ from the published harness by a byte or an edge case: figures that cannot be compared with anybody's.
#include <gmock/gmock.h>

#include <fstream>

#include "base/file_map.h"
#include "eval/gpqa.h"
#include "eval/gsm8k.h"
#include "eval/python_random.h"
#include "support/checkpoint_writer.h"
#include "support/source_dir.h"

namespace ingot::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Json& golden() {
  static const Json json = [] {
    const auto path = test_support::source_dir() / "tests/golden/eval/rules.json";
    return parse_json(read_file(path, size_t{1} << 24).value(), path.string()).value();
  }();
  return json;
}

std::filesystem::path gsm8k_data() { return std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/gsm8k"; }

std::string prompt_of(const Question& q) {
  return q.body.contains("prompt") ? q.body["prompt"].get<std::string>() : q.body["messages"][0]["content"].get<std::string>();
}

void expect_prompts(const Task& task, const Json& expected) {
  std::string all;
  for (const Question& q : task.questions) all += (all.empty() ? std::string() : std::string(1, '\0')) + prompt_of(q);
  ASSERT_EQ(task.questions.size(), expected["n"].get<size_t>());
  EXPECT_EQ(sha256_hex(prompt_of(task.questions.front())), expected["first"]);
  EXPECT_EQ(sha256_hex(all), expected["all"]);
}

Answer says(const std::string& content, const std::string& finish = "stop") {
  Answer answer;
  answer.content = content;
  answer.finish_reason = finish;
  return answer;
}

TEST(PythonRandom, DrawsWhatPythonDraws) {
  const Json& samples = golden()["samples"];
  PythonRandom random(samples["seed"].get<uint64_t>());
  for (const Json& expected : samples["of_7473"]) EXPECT_EQ(Json(random.sample(7473, 5)), expected) << "from a set";
  EXPECT_EQ(Json(random.sample(21, 9)), samples["of_21"]) << "from a pool";
}

TEST(Gsm8k, PromptsAreThoseOfEachHarnessToTheByte) {
  if (!std::filesystem::exists(gsm8k_data())) GTEST_SKIP() << gsm8k_data() << " is not there";
  for (const auto& [name, expected] : golden()["prompts"].items()) {
    SCOPED_TRACE(name);
    Gsm8kOptions options;
    options.data = gsm8k_data();
    options.rule = parse_gsm8k_rule(name).value();
    expect_prompts(make_gsm8k(options).value(), expected);
  }
}

TEST(Gsm8k, GoldAnswersAreRightUnderEveryRule) {
  if (!std::filesystem::exists(gsm8k_data())) GTEST_SKIP() << gsm8k_data() << " is not there";
  const auto lines = read_objects(gsm8k_data() / "test.jsonl").value();
  for (const char* name : {"lm-eval", "sglang", "vllm", "inferencex", "chat"}) {
    Gsm8kOptions options;
    options.data = gsm8k_data();
    options.rule = parse_gsm8k_rule(name).value();
    const Task task = make_gsm8k(options).value();
    for (size_t i = 0; i < task.questions.size(); ++i) {
      const auto answer = lines[i]["answer"].get<std::string>();
      const Score score = task.score(task.questions[i], says(" " + answer));
      EXPECT_TRUE(score.ok) << name << " " << i;
      for (const auto& [mark, ok] : score.marks) EXPECT_TRUE(ok) << name << " " << mark << " " << i;
    }
  }
}

TEST(Gsm8k, MarksAreThoseOfThePublishedExpressions) {
  for (const Json& row : golden()["marks"]) {
    const auto text = row[0].get<std::string>();
    EXPECT_EQ(gsm8k_strict(text, false), row[1]) << text;
    EXPECT_EQ(gsm8k_strict(text, true), row[2]) << text;
    EXPECT_EQ(gsm8k_flexible(text), row[3]) << text;
    EXPECT_EQ(gsm8k_last_digits(text), row[4]) << text;
    EXPECT_EQ(gsm8k_normalized(text), row[5]) << text;
  }
}

class Gsm8kMarks : public ::testing::Test {
 protected:
  // One question with this gold answer under the rule.
  Task task(const std::string& rule, const std::string& gold) {
    std::ofstream(dir_.path() / "test.jsonl") << Json({{"question", "How many?"}, {"answer", "So many.\n#### " + gold}}).dump() << "\n";
    std::ofstream train(dir_.path() / "train.jsonl");
    for (int i = 0; i < 5; ++i) train << Json({{"question", "q"}, {"answer", "#### 1"}}).dump() << "\n";
    train.close();
    std::ofstream(dir_.path() / "lm_eval_fewshot_indices.json") << R"({"indices": [[0, 1, 2, 3, 4]]})";
    Gsm8kOptions options;
    options.data = dir_.path();
    options.rule = parse_gsm8k_rule(rule).value();
    return make_gsm8k(options).value();
  }
  // Strict and flexible.
  std::pair<bool, bool> lm_eval(const std::string& gold, const std::string& text, const std::string& rule = "lm-eval") {
    const Task t = task(rule, gold);
    const Score score = t.score(t.questions[0], says(text));
    return {score.ok, score.marks.at(0).second};
  }
  test_support::TempDir dir_;
};

using Marks = std::pair<bool, bool>;

TEST_F(Gsm8kMarks, EdgeCasesOfStrictAndFlexible) {
  EXPECT_EQ(lm_eval("18", " 9 + 9 = 18\n#### 18"), Marks(true, true));
  EXPECT_EQ(lm_eval("18", " The answer is 18"), Marks(false, true)) << "no mark";
  EXPECT_EQ(lm_eval("18", " The answer is 18."), Marks(false, true)) << "the dot goes";
  EXPECT_EQ(lm_eval("18", " The answer is 18..."), Marks(false, false)) << "dots are taken with the number, and only the last goes";
  EXPECT_EQ(lm_eval("18", " I think... 18 ..."), Marks(false, false)) << "dots alone look like a number";
  EXPECT_EQ(lm_eval("1,250", "#### 1250"), Marks(true, true)) << "a comma of the gold answer says nothing";
  EXPECT_EQ(lm_eval("1250", "#### $1,250"), Marks(false, true)) << "the strict expression knows no dollar";
  EXPECT_EQ(lm_eval("-3", "#### -3"), Marks(true, true));
  EXPECT_EQ(lm_eval("3", "#### -3"), Marks(false, false));
  EXPECT_EQ(lm_eval("18", "#### 18.00"), Marks(false, false)) << "a string is compared, not a number";
  EXPECT_EQ(lm_eval("18", "#### 17\n#### 18"), Marks(false, true)) << "the first mark counts";
  EXPECT_EQ(lm_eval("18", "#### 17\n#### 18", "inferencex"), Marks(true, true)) << "the last one counts there";
  EXPECT_EQ(lm_eval("18", ""), Marks(false, false));
  const Task t = task("lm-eval", "18");
  EXPECT_TRUE(t.score(t.questions[0], says("eighteen")).no_answer);
}

TEST_F(Gsm8kMarks, ThoughtsAreNotReadInAChat) {
  const Task t = task("chat", "18");
  EXPECT_TRUE(t.score(t.questions[0], says("is it 5? no\n#### 5</think>It is 18")).ok);
  EXPECT_FALSE(t.score(t.questions[0], says("18 </think> I do not know")).ok);
  Answer parted = says("");
  parted.reasoning = "It is 18";
  EXPECT_FALSE(t.score(t.questions[0], parted).ok);
  EXPECT_TRUE(t.score(t.questions[0], parted).no_answer);
}

TEST_F(Gsm8kMarks, TheLastDigitsLoseTheirSign) {
  const Task t = task("vllm", "-3");
  EXPECT_TRUE(t.score(t.questions[0], says("It is 3")).ok) << "so the harness has it";
  EXPECT_TRUE(t.score(t.questions[0], says("#### -3")).ok);
  EXPECT_FALSE(t.score(t.questions[0], says("3.0")).ok) << "the last digits are 0";
  EXPECT_TRUE(t.score(t.questions[0], says("none")).no_answer);
}

TEST(Gsm8k, BadFilesAndRulesAreNamed) {
  test_support::TempDir dir;
  Gsm8kOptions options;
  options.data = dir.path();
  EXPECT_THAT(make_gsm8k(options).error().text(), HasSubstr("test.jsonl"));
  std::ofstream(dir.path() / "test.jsonl") << R"({"question": "q", "answer": "12"})"
                                           << "\n";
  EXPECT_THAT(make_gsm8k(options).error().text(), AllOf(HasSubstr("test.jsonl:1"), HasSubstr("####")));
  EXPECT_THAT(parse_gsm8k_rule("cot").error().text(), HasSubstr("lm-eval"));
  options.enable_thinking = true;
  EXPECT_THAT(make_gsm8k(options).error().text(), HasSubstr("--enable-thinking"));
}

// The rows of tools/make_eval_goldens.py, with what a file can hold: quotes, line ends, another order of columns.
std::string gpqa_csv() {
  std::string csv = "\xef\xbb\xbfRecord ID,Question,Incorrect Answer 1,Correct Answer,Incorrect Answer 2,Incorrect Answer 3\r\n";
  for (int i = 0; i < 7; ++i) csv += fmt::format("id{0},\"What, in short, is {0}?\",wrong {0}a,right {0},\"wrong {0}b\",wrong {0}c\r\n", i);
  return csv;
}

TEST(Gpqa, PromptsAndOrdersAreThoseOfSimpleEvals) {
  test_support::TempDir dir;
  std::ofstream(dir.path() / "gpqa.csv") << gpqa_csv();
  GpqaOptions options;
  options.data = dir.path() / "gpqa.csv";
  options.repeats = 3;
  const Task task = make_gpqa(options).value();
  expect_prompts(task, golden()["gpqa"]);
  std::string keys;
  for (const Question& q : task.questions) keys += q.key.get<std::string>();
  EXPECT_EQ(keys, golden()["gpqa"]["keys"]);
  EXPECT_EQ(task.questions[8].cluster, "gpqa-1");
  EXPECT_EQ(task.questions[8].id, "gpqa-1/1");
  EXPECT_TRUE(task.secret);
  const Question& q = task.questions[0];
  EXPECT_TRUE(task.score(q, says("A, no</think>Answer: " + q.key.get<std::string>())).ok);
  EXPECT_FALSE(task.score(q, says("I would say " + q.key.get<std::string>())).ok);
}

TEST(Gpqa, TheLetterIsTheFirstAfterTheWord) {
  for (const Json& row : golden()["letters"]) EXPECT_EQ(gpqa_letter(row[0].get<std::string>()), row[1]) << row[0];
}

TEST(Gpqa, ErrorsNameTheRowAndNeverTheText) {
  test_support::TempDir dir;
  const auto path = dir.path() / "gpqa.csv";
  GpqaOptions options;
  options.data = path;
  std::ofstream(path) << "Question,Correct Answer\nsecret,x\n";
  EXPECT_THAT(make_gpqa(options).error().text(), AllOf(HasSubstr("Incorrect Answer 1"), Not(HasSubstr("secret"))));
  std::ofstream(path) << "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\nsecret,a,b,,d\n";
  EXPECT_THAT(make_gpqa(options).error().text(), AllOf(HasSubstr("row 2"), Not(HasSubstr("secret"))));
  std::ofstream(path) << "Question,Correct Answer\n\"secret,x\n";
  EXPECT_THAT(make_gpqa(options).error().text(), AllOf(HasSubstr("row 2"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace ingot::eval
