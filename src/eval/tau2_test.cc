// A conversation that is rewarded without its work done, or not rewarded with it.
#include "eval/tau2.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "eval/tau2_run.h"

namespace ingot::eval {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Answer says(const std::string& content) {
  Answer answer;
  answer.content = content, answer.finish_reason = "stop";
  return answer;
}
Answer makes(const std::string& tool, Json arguments) {
  Answer answer;
  answer.calls = {{tool, std::move(arguments)}}, answer.finish_reason = "tool_calls";
  return answer;
}
Tau2Chat script(std::vector<Answer> answers, std::vector<Json>* seen = nullptr) {
  return [answers = std::move(answers), at = size_t{0}, seen](const Json& messages) mutable -> Result<Answer> {
    if (seen != nullptr) seen->push_back(messages);
    if (at == answers.size()) return fail("nothing more to say");
    return answers[at++];
  };
}

bool part(const Tau2Outcome& outcome, std::string_view name) {
  const auto found = std::find_if(outcome.parts.begin(), outcome.parts.end(), [&](const auto& p) { return p.first == name; });
  return found != outcome.parts.end() && found->second;
}

class Tau2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto data = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2";
    if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not there";
    data_ = read_tau2(data, "retail", "base").value();
    // The worlds' own tests go through all tasks; a conversation costs two hashes of the whole database.
    for (size_t i = 0; i < data_.tasks.size(); i += 9) some_.push_back(data_.tasks[i]);
  }
  // What a perfect agent says: the task's own actions, then its words.
  std::vector<Answer> gold(const Json& task, const std::string& words) {
    std::vector<Answer> answers;
    for (const Json& action : task["evaluation_criteria"]["actions"]) answers.push_back(makes(action["name"], action["arguments"]));
    answers.push_back(says(words));
    return answers;
  }
  std::string all_info(const Json& task) {
    std::string words = "Done.";
    if (task["evaluation_criteria"]["communicate_info"].is_array())
      for (const Json& info : task["evaluation_criteria"]["communicate_info"]) words += " " + info.get<std::string>();
    return words;
  }
  Tau2Data data_;
  std::vector<Json> some_;
};

TEST_F(Tau2, GoldActionsAndWordsAreRewarded) {
  for (const Json& task : some_) {
    const auto outcome = converse(data_, task, {.max_steps = 200, .max_errors = 100}, script(gold(task, all_info(task))),
                                  script({says("Hello"), says("###STOP###")}))
                             .value();
    EXPECT_TRUE(outcome.ok()) << task["id"] << " " << outcome.ended;
  }
}

TEST_F(Tau2, WordsAndStateBothCount) {
  int with_info = 0, with_change = 0;
  for (const Json& task : some_) {
    const bool tells = !task["evaluation_criteria"]["communicate_info"].empty();
    const auto silent = converse(data_, task, {.max_steps = 200, .max_errors = 100}, script(gold(task, "Done.")),
                                 script({says("Hello"), says("###STOP###")}))
                            .value();
    EXPECT_TRUE(part(silent, "db"));
    EXPECT_EQ(silent.ok(), !tells) << task["id"];
    with_info += tells;
    const auto idle = converse(data_, task, {}, script({says(all_info(task))}), script({says("Hello"), says("###STOP###")})).value();
    EXPECT_TRUE(part(idle, "communicate"));
    with_change += !idle.ok();
  }
  EXPECT_GT(with_info, 1);
  EXPECT_GT(with_change, 8);
}

TEST_F(Tau2, EndsAreWhatTheyAre) {
  const Json& task = data_.tasks[0];
  const auto ended = [&](std::vector<Answer> agent, std::vector<Answer> user, Tau2Limits limits = {}) {
    return converse(data_, task, limits, script(std::move(agent)), script(std::move(user))).value().ended;
  };
  EXPECT_EQ(ended({}, {says("bye ###TRANSFER###")}), "user_stop");
  EXPECT_EQ(ended({says("###STOP###")}, {says("hi")}), "agent_stop");
  EXPECT_EQ(ended({says("")}, {says("hi")}), "agent_error") << "neither words nor calls";
  Answer both = makes("get_user_details", {{"user_id", "x"}});
  both.content = "Let me look.";
  EXPECT_EQ(ended({both}, {says("hi")}), "agent_error");
  EXPECT_EQ(ended({}, {says("<think>x</think>")}), "user_error");
  const Answer wrong = makes("get_user_details", {{"user_id", "x"}});
  EXPECT_EQ(ended(std::vector<Answer>(10, wrong), {says("hi")}), "max_errors");
  EXPECT_EQ(ended({says("a"), says("b")}, {says("1"), says("2")}, {.max_steps = 4, .max_errors = 10}), "max_steps");
  EXPECT_FALSE(converse(data_, task, {}, script({}), script({says("hi")})).has_value()) << "a model that cannot be asked";
}

TEST_F(Tau2, EachSideSeesItsOwnPart) {
  std::vector<Json> agent_saw, user_saw;
  const Json& task = data_.tasks[0];
  const auto outcome =
      converse(data_, task, {}, script({makes("find_user_id_by_email", {{"email", "x"}}), says("Who are you?"), says("Bye")}, &agent_saw),
               script({says("Hello"), says("Yusuf"), says("###STOP###")}, &user_saw))
          .value();
  EXPECT_EQ(outcome.ended, "user_stop");
  EXPECT_THAT(agent_saw[0][0]["content"].get<std::string>(),
              AllOf(::testing::StartsWith("<instructions>\nYou are"), HasSubstr("<policy>\n# Retail")));
  EXPECT_EQ(agent_saw[0][1]["content"], "Hi! How can I help you today?");
  EXPECT_EQ(agent_saw[1].back()["role"], "tool");
  EXPECT_EQ(agent_saw[1].back()["content"], "Error: User not found");
  EXPECT_EQ(agent_saw[1].back()["tool_call_id"], agent_saw[1][3]["tool_calls"][0]["id"]);
  const auto prompt = user_saw[0][0]["content"].get<std::string>();
  EXPECT_THAT(prompt, HasSubstr("\n\n<scenario>\nInstructions:\n\tDomain: retail\n\tReason for call:\n\t\tYou received your order"));
  EXPECT_EQ(user_saw[0][1], Json({{"role", "user"}, {"content", "Hi! How can I help you today?"}})) << "roles are swapped";
  EXPECT_EQ(user_saw[1].size(), 4u) << "no tool calls: prompt, greeting, Hello, question";
}

TEST(Tau2Airline, GoldActionsAreRewardedAndTheSplitsAreParts) {
  const auto folder = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const Tau2Data data = read_tau2(folder, "airline", "test").value();
  EXPECT_EQ(data.tasks.size(), 20u);
  EXPECT_EQ(read_tau2(folder, "airline", "everything").error().hint, "use base, train or test");
  int rewarded_idle = 0;
  for (size_t i = 0; i < data.tasks.size(); i += 3) {
    const Json& task = data.tasks[i];
    std::vector<Answer> answers;
    for (const Json& action : task["evaluation_criteria"]["actions"]) answers.push_back(makes(action["name"], action["arguments"]));
    std::string words = "Done.";
    for (const Json& info : task["evaluation_criteria"]["communicate_info"]) words += " " + info.get<std::string>();
    answers.push_back(says(words));
    const auto user = [] { return script({says("Hello"), says("###STOP###")}); };
    EXPECT_TRUE(converse(data, task, {}, script(answers), user()).value().ok()) << task["id"];
    rewarded_idle += converse(data, task, {}, script({says("Done.")}), user()).value().ok();
  }
  EXPECT_EQ(rewarded_idle, 3) << "of 7, those that have to be refused";
}

class Tau2Telecom : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2";
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
    data_ = read_tau2(folder, "telecom", "base").value();
  }
  std::vector<Answer> agents_part(const Json& task) {
    std::vector<Answer> answers;
    for (const Json& action : task["evaluation_criteria"]["actions"])
      if (action["requestor"] == "assistant") answers.push_back(makes(action["name"], action["arguments"]));
    for (int i = 0; i < 40; ++i) answers.push_back(says("Go on, please."));
    return answers;
  }
  const Json& task(std::string_view words) {
    return *std::find_if(data_.tasks.begin(), data_.tasks.end(),
                         [&](const Json& t) { return t["id"].get<std::string>().find(words) != std::string::npos; });
  }
  Tau2Data data_;
};

TEST_F(Tau2Telecom, TheScriptedUserAndAnAgentThatDoesItsPartAreRewarded) {
  ASSERT_EQ(data_.tasks.size(), 114u);
  int with_agents_part = 0;
  for (const Json& task : data_.tasks) {
    const auto outcome = converse(data_, task, {}, script(agents_part(task)), scripted_user(task)).value();
    EXPECT_TRUE(outcome.ok()) << task["id"] << " " << outcome.ended;
    if (agents_part(task).size() == 40) continue;
    ++with_agents_part;
    const auto idle = converse(data_, task, {}, script(std::vector<Answer>(40, says("Go on."))), scripted_user(task)).value();
    EXPECT_EQ(idle.ended, "user_stop");
    EXPECT_FALSE(idle.ok()) << task["id"];
  }
  EXPECT_GT(with_agents_part, 70);
}

TEST_F(Tau2Telecom, EachSideHasItsOwnCallsAndSeesNoOther) {
  std::vector<Json> agent_saw, user_saw;
  const Json& one = task("[mobile_data_issue]airplane_mode_on");
  const auto outcome =
      converse(
          data_, one, {},
          script({makes("toggle_airplane_mode", Json::object()), says("Is the phone in airplane mode?"), says("Bye")}, &agent_saw),
          script({says("My data is dead"), makes("check_network_status", Json::object()), says("It is"), says("###STOP###")}, &user_saw))
          .value();
  EXPECT_EQ(outcome.ended, "user_stop");
  EXPECT_EQ(agent_saw[1].back()["content"], "Error: Tool 'toggle_airplane_mode' not found.") << "the phone is the user's";
  const Json& last = agent_saw.back();
  EXPECT_EQ(last.back()["content"], "It is");
  EXPECT_EQ(last.size(), 7u) << "prompt, greeting, words, its call, result, question, answer; nothing of the user's call";
  ASSERT_EQ(user_saw[2].size(), 6u) << "prompt, greeting, words, question, call, result; not the agent's call";
  EXPECT_EQ(user_saw[2][4]["role"], "assistant");
  EXPECT_EQ(user_saw[2][4]["tool_calls"][0]["function"]["name"], "check_network_status");
  EXPECT_EQ(user_saw[2][5]["role"], "tool");
  EXPECT_EQ(user_saw[2][5]["tool_call_id"], user_saw[2][4]["tool_calls"][0]["id"]);
  EXPECT_FALSE(user_saw[2][5].contains("requestor"));
  EXPECT_THAT(user_saw[2][5]["content"].get<std::string>(), ::testing::StartsWith("Airplane Mode: ON\nSIM Card Status: active\n"));
  EXPECT_THAT(user_saw[0][0]["content"].get<std::string>(), HasSubstr("You have some tools"));
  EXPECT_THAT(agent_saw[0][0]["content"].get<std::string>(), AllOf(HasSubstr("<main_policy>"), HasSubstr("<tech_support_policy>")));
}

TEST_F(Tau2Telecom, APhoneThatCannotBeMendedHasToBeHandedOver) {
  const Json& one = task("lock_sim_card_pin");
  const auto user = [] { return script({says("No signal"), says("###TRANSFER###")}); };
  const auto handed_over =
      converse(data_, one, {}, script({makes("transfer_to_human_agents", {{"summary", "locked"}}), says("Wait")}), user()).value();
  EXPECT_TRUE(handed_over.ok());
  const auto kept = converse(data_, one, {}, script({says("Wait")}), user()).value();
  EXPECT_TRUE(part(kept, "env_assertion"));
  EXPECT_FALSE(part(kept, "action"));
  EXPECT_FALSE(kept.ok());
}

TEST(Tau2Rules, AnActionIsMadeWhenTheArgumentsThatCountAreEqual) {
  const auto acted = [](const char* action, const char* arguments) {
    return tau2_acted(Json::parse(std::string("[") + action + "]"), {{"f", Json::parse(arguments)}});
  };
  const char* whole = R"({"name": "f", "arguments": {"a": 2, "b": {"x": 1, "y": 2}}, "compare_args": null})";
  EXPECT_TRUE(acted(whole, R"({"b": {"y": 2, "x": 1}, "a": 2.0})"));
  EXPECT_TRUE(acted(whole, R"({"a": 2})")) << "an argument that was left out";
  EXPECT_FALSE(acted(whole, R"({"a": 2, "c": 3})"));
  EXPECT_FALSE(acted(whole, R"({"a": 3})"));
  EXPECT_TRUE(acted(R"({"name": "f", "arguments": {"a": 2, "b": 1}, "compare_args": ["b"]})", R"({"a": 9, "b": 1})"));
  EXPECT_FALSE(acted(R"({"name": "f", "arguments": {"a": 2, "b": 1}, "compare_args": ["b"]})", R"({"a": 2})"));
  EXPECT_TRUE(acted(R"({"name": "f", "arguments": {"a": 2}, "compare_args": []})", R"({"a": 9})"));
  EXPECT_FALSE(acted(R"({"name": "g", "arguments": {}, "compare_args": []})", "{}"));
  EXPECT_TRUE(tau2_acted(Json::array(), {}));
}

TEST(Tau2Rules, ADomainThatIsNotThereIsNamed) {
  const auto read = read_tau2("/nowhere", "banking", "base");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "--domain banking: expected retail, airline, telecom");
}

TEST(Tau2Rules, CommunicationIgnoresCaseAndCommas) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "1093.34"}, {"role": "assistant", "content": null},
      {"role": "assistant", "content": "That is $1,093.34, IN TOTAL"}])");
  EXPECT_TRUE(tau2_communicated(Json::parse(R"(["1093.34", "In total"])"), messages));
  EXPECT_FALSE(tau2_communicated(Json::parse(R"(["1093.35"])"), messages));
  EXPECT_TRUE(tau2_communicated(Json::array(), messages));
}

TEST(Tau2Rules, PassHatKIsTheChanceThatAllOfKAreRight) {
  EXPECT_DOUBLE_EQ(pass_hat_k({{4, 4}, {2, 4}}, 1), 0.75);
  EXPECT_DOUBLE_EQ(pass_hat_k({{4, 4}, {2, 4}}, 2), (1 + 1 / 6.0) / 2);
  EXPECT_DOUBLE_EQ(pass_hat_k({{4, 4}, {2, 4}}, 4), 0.5);
  EXPECT_DOUBLE_EQ(pass_hat_k({}, 1), 0);
}

}  // namespace
}  // namespace ingot::eval
