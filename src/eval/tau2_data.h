// What a tau2 run needs of the data: a domain's world, tools, tasks, and the prompts of both sides. tau2.h lets them talk.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "eval/tau2_world.h"

namespace ingot::eval {

struct Tau2Data {
  std::string domain;      // "retail"
  std::string rule;        // changes whenever the reward would
  std::string reward;      // what has to be so, for the result
  std::string policy;      // the agent's
  std::string guidelines;  // the user simulator's
  Json tools;              // the agent's, in OpenAI's form
  Json user_tools;         // the user's; null: none
  std::vector<Json> tasks;
  std::unique_ptr<const Tau2World> world;  // as every conversation finds it
};

// "retail, airline, telecom".
std::string tau2_domains();
// `data`: the folder with domains/ and user_simulator/; `split`: a name in split_tasks.json. Errors name the flag, or the file and field.
Result<Tau2Data> read_tau2(const std::filesystem::path& data, const std::string& domain, const std::string& split);

std::string tau2_agent_prompt(const Tau2Data& data);
std::string tau2_user_prompt(const Tau2Data& data, const Json& task);

// Whether the task's reward counts this part: "DB", "COMMUNICATE", "ENV_ASSERTION", "ACTION", "NL_ASSERTION".
bool tau2_counts(const Json& task, const char* part);
// White space off both ends.
std::string tau2_trimmed(const std::string& text);

}  // namespace ingot::eval
