// tau2-bench's conversations: an agent under test talks with a simulated user and calls the domain's tools; the reward is what the
// databases and the agent's words are at the end. Half duplex, as sierra-research/tau2-bench: greeting, then user and agent in turns, with
// tool calls of either between. A task names the parts of its reward; the LLM judge's (NL_ASSERTION) is not scored: where a task counts the
// database, the reward is DB x COMMUNICATE, the original tau-bench rule.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "eval/task.h"
#include "eval/tau2_data.h"

namespace ingot::eval {

// Asks a model for the message after these. Errors end the conversation.
using Tau2Chat = std::function<Result<Answer>(const Json& messages)>;

struct Tau2Limits {
  int max_steps = 200;  // messages of agent, user and tools
  int max_errors = 10;  // tool calls that failed, of both sides
};

struct Tau2Outcome {
  std::string ended;                                // user_stop, agent_stop, max_steps, max_errors, agent_error, user_error
  std::vector<std::pair<std::string, bool>> parts;  // of the reward: db, communicate, env_assertion, action
  Json messages;  // both sides', without system prompts; what `requestor` says is the user's is not the agent's
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // the agent's
  int64_t cut = 0;                                                      // of the agent's answers, by max_tokens

  bool ok() const;
};

// Errors: a model that could not be asked, a task that the world cannot begin or judge.
Result<Tau2Outcome> converse(const Tau2Data& data, const Json& task, const Tau2Limits& limits, const Tau2Chat& agent, const Tau2Chat& user);

// A user that needs no model: says why they call and who they are, agrees to everything, takes the task's own steps on the phone one by one
// and says what it shows, and ends after eight turns more. Reproducible; no published figure uses it.
Tau2Chat scripted_user(const Json& task);

// Whether each text of `info` is part of what an assistant message says, without case and commas.
bool tau2_communicated(const Json& info, const Json& messages);
// Whether each of the task's actions is among the calls, with equal arguments where it says which count.
bool tau2_acted(const Json& actions, const std::vector<ToolCall>& calls);

// The mean over tasks of C(successes, k) / C(trials, k): all of k trials right. 1 <= k <= the trials of each task. 0 of no task.
double pass_hat_k(const std::vector<std::pair<int, int>>& successes_of_trials, int k);

}  // namespace ingot::eval
