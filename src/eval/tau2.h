// tau2-bench's retail conversations: an agent under test talks with a simulated customer and calls the shop's tools; the reward is what the
// database and the agent's words are at the end. Half duplex, as sierra-research/tau2-bench: greeting, then user and agent in turns, with
// tool calls between. LLM-judge checks (NL_ASSERTION) are not scored: the reward is DB x COMMUNICATE, the original tau-bench rule.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/retail.h"
#include "eval/task.h"

namespace ingot::eval {

struct Tau2Data {
  std::string policy;      // the agent's
  std::string guidelines;  // the user simulator's
  Json tools;              // OpenAI's form
  std::vector<Json> tasks;
  std::optional<RetailShop> shop;  // as every conversation finds it
};
// `data`: the folder with domains/retail and user_simulator; `split`: "base" or "test". Errors name the file and field.
Result<Tau2Data> read_tau2_retail(const std::filesystem::path& data, const std::string& split);

std::string tau2_agent_prompt(const Tau2Data& data);
std::string tau2_user_prompt(const Tau2Data& data, const Json& task);

// Asks a model for the message after these. Errors end the conversation.
using Tau2Chat = std::function<Result<Answer>(const Json& messages)>;

struct Tau2Limits {
  int max_steps = 200;  // messages of agent, user and tools
  int max_errors = 10;  // tool calls that failed
};

struct Tau2Outcome {
  std::string ended;         // user_stop, agent_stop, max_steps, max_errors, agent_error, user_error
  bool db = false;           // the state is that after the task's actions
  bool communicated = true;  // everything that was to be told was told
  Json messages;             // as the agent saw them, without the system prompt
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // the agent's
  int64_t cut = 0;                                                      // of the agent's answers, by max_tokens

  bool ok() const { return (ended == "user_stop" || ended == "agent_stop") && db && communicated; }
};

// Errors: a model that could not be asked.
Result<Tau2Outcome> converse(const Tau2Data& data, const Json& task, const Tau2Limits& limits, const Tau2Chat& agent, const Tau2Chat& user);

// A customer that needs no model: says why they call and who they are, agrees to everything, and ends after eight turns. Reproducible; no
// published figure uses it.
Tau2Chat scripted_user(const Json& task);

// Whether each text of `info` is part of what an assistant message says, without case and commas.
bool tau2_communicated(const Json& info, const Json& messages);

// The mean over tasks of C(successes, k) / C(trials, k): all of k trials right. 1 <= k <= the trials of each task. 0 of no task.
double pass_hat_k(const std::vector<std::pair<int, int>>& successes_of_trials, int k);

}  // namespace ingot::eval
