#include "eval/tau2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/file_map.h"
#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 28;
constexpr const char* kGreeting = "Hi! How can I help you today?";
constexpr std::array<std::string_view, 3> kUserEnds = {"###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"};
constexpr std::string_view kAgentEnd = "###STOP###";
constexpr int kScriptedTurns = 8;

Result<std::string> read_text(const std::filesystem::path& path) { return read_file(path, kMaxFile); }
Result<Json> read_json(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::string text, read_text(path));
  return parse_json(text, path.string());
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// As Python's textwrap.indent: lines of white space alone stay as they are.
std::string indented(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string line = text.substr(at, end - at);
    result += (trimmed(line).empty() ? "" : "\t") + line;
    at = end;
  }
  return result;
}

std::string member(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : std::string();
}

std::string scenario_of(const Json& task) {
  const Json& scenario = task["user_scenario"];
  const Json& given = scenario["instructions"];
  std::string instructions =
      fmt::format("Domain: {}\nReason for call:\n{}", member(given, "domain"), indented(member(given, "reason_for_call")));
  for (const auto& [name, title] : {std::pair("known_info", "Known info"), std::pair("unknown_info", "Unknown info")})
    if (given.contains(name) && given[name].is_string()) instructions += fmt::format("\n{}:\n{}", title, indented(member(given, name)));
  instructions += "\nTask instructions:\n" + indented(member(given, "task_instructions"));
  const std::string persona = member(scenario, "persona");
  return (persona.empty() ? "" : "Persona:\n" + indented(persona) + "\n") + "Instructions:\n" + indented(instructions);
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// What the customer sees: words alone, each side's as the other's.
Json for_user(const std::string& prompt, const Json& messages) {
  Json seen = Json::array({message("system", prompt)});
  for (const Json& m : messages) {
    const std::string content = member(m, "content");
    if (m["role"] == "tool" || content.empty()) continue;
    seen.push_back(message(m["role"] == "user" ? "assistant" : "user", content));
  }
  return seen;
}

Json call_message(const std::vector<ToolCall>& calls, size_t number) {
  Json made = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string arguments = calls[i].arguments.is_string() ? calls[i].arguments.get<std::string>() : calls[i].arguments.dump();
    made.push_back({{"id", fmt::format("call_{}_{}", number, i)},
                    {"type", "function"},
                    {"function", {{"name", calls[i].name}, {"arguments", arguments}}}});
  }
  return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", made}};
}

std::string without_commas(const std::string& text) {
  std::string plain = text::jinja::to_lower(text);
  plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
  return plain;
}

// The state after the task's own actions.
std::string gold_hash(const Tau2Data& data, const Json& task) {
  RetailShop shop = *data.shop;
  for (const Json& action : task["evaluation_criteria"]["actions"]) shop.call(member(action, "name"), action["arguments"]);
  return shop.hash();
}

}  // namespace

Result<Tau2Data> read_tau2_retail(const std::filesystem::path& data, const std::string& split) {
  const auto folder = data / "domains" / "retail";
  Tau2Data read;
  INGOT_ASSIGN(read.policy, read_text(folder / "policy.md"));
  INGOT_ASSIGN(read.guidelines, read_text(data / "user_simulator" / "simulation_guidelines.md"));
  INGOT_ASSIGN(read.tools, read_json(folder / "tools_openai.json"));
  INGOT_ASSIGN(Json db, read_json(folder / "db.json"));
  INGOT_ASSIGN(read.shop, RetailShop::create(std::move(db)));
  INGOT_ASSIGN(const Json splits, read_json(folder / "split_tasks.json"));
  if (!splits.is_object() || !splits.contains(split) || !splits[split].is_array())
    return fail_hint("use base or test", "--split {}: split_tasks.json has none of this name", split);
  std::set<std::string> wanted;
  for (const Json& id : splits[split])
    if (id.is_string()) wanted.insert(id.get<std::string>());
  INGOT_ASSIGN(const Json tasks, read_json(folder / "tasks.json"));
  for (const Json& task : tasks) {
    if (!wanted.contains(member(task, "id"))) continue;
    const bool whole = task.contains("user_scenario") && task["user_scenario"].contains("instructions") &&
                       task.contains("evaluation_criteria") && task["evaluation_criteria"].contains("actions");
    if (!whole)
      return fail("{}: task {}: no `user_scenario` or `evaluation_criteria`", (folder / "tasks.json").string(), member(task, "id"));
    read.tasks.push_back(task);
  }
  if (read.tasks.size() != wanted.size())
    return fail("split {} names {} tasks, tasks.json has {}", split, wanted.size(), read.tasks.size());
  return read;
}

std::string tau2_agent_prompt(const Tau2Data& data) {
  // The published agent's instruction: part of the protocol.
  return "<instructions>\nYou are a customer service agent that helps the user according to the <policy> provided below.\nIn each turn you "
         "can "
         "either:\n- Send a message to the user.\n- Make a tool call.\nYou cannot do both at the same time.\n\nTry to be helpful and "
         "always "
         "follow the policy. Always make sure you generate valid JSON only.\n</instructions>\n<policy>\n" +
         data.policy + "\n</policy>";
}

std::string tau2_user_prompt(const Tau2Data& data, const Json& task) {
  return data.guidelines + "\n\n<scenario>\n" + scenario_of(task) + "\n</scenario>";
}

bool tau2_communicated(const Json& info, const Json& messages) {
  return std::all_of(info.begin(), info.end(), [&](const Json& text) {
    const std::string wanted = text::jinja::to_lower(text.get<std::string>());
    return std::any_of(messages.begin(), messages.end(), [&](const Json& m) {
      return m["role"] == "assistant" && without_commas(member(m, "content")).find(wanted) != std::string::npos;
    });
  });
}

Result<Tau2Outcome> converse(const Tau2Data& data, const Json& task, const Tau2Limits& limits, const Tau2Chat& agent,
                             const Tau2Chat& user) {
  RetailShop shop = *data.shop;
  Tau2Outcome outcome;
  Json& messages = outcome.messages;
  messages = Json::array({message("assistant", kGreeting)});
  const std::string agent_prompt = tau2_agent_prompt(data), user_prompt = tau2_user_prompt(data, task);
  bool users_turn = true;
  int errors = 0;
  for (int steps = 0; outcome.ended.empty() && steps < limits.max_steps; ++steps) {
    if (users_turn) {
      INGOT_ASSIGN(const Answer said, user(for_user(user_prompt, messages)));
      const std::string content = trimmed(std::string(after_thoughts(said.content)));
      if (content.empty()) outcome.ended = "user_error";
      messages.push_back(message("user", content));
      const bool ends =
          std::any_of(kUserEnds.begin(), kUserEnds.end(), [&](std::string_view end) { return content.find(end) != std::string::npos; });
      if (ends) outcome.ended = "user_stop";
      users_turn = false;
      continue;
    }
    Json seen = Json::array({message("system", agent_prompt)});
    for (const Json& m : messages) seen.push_back(m);
    INGOT_ASSIGN(const Answer said, agent(seen));
    outcome.prompt_tokens += said.prompt_tokens;
    outcome.cached_tokens += said.cached_tokens;
    outcome.completion_tokens += said.completion_tokens;
    outcome.cut += said.finish_reason == "length";
    const std::string content = trimmed(std::string(after_thoughts(said.content)));
    if (content.empty() == said.calls.empty()) {  // neither, or both
      outcome.ended = "agent_error";
      messages.push_back(message("assistant", content));
    } else if (said.calls.empty()) {
      messages.push_back(message("assistant", content));
      if (content.find(kAgentEnd) != std::string::npos) outcome.ended = "agent_stop";
      users_turn = true;
    } else {
      messages.push_back(call_message(said.calls, messages.size()));
      const Json made = messages.back()["tool_calls"];
      for (size_t i = 0; i < said.calls.size(); ++i) {
        const std::string result = shop.call(said.calls[i].name, said.calls[i].arguments);
        errors += result.starts_with("Error: ");
        messages.push_back({{"role", "tool"}, {"tool_call_id", made[i]["id"]}, {"content", result}});
      }
      ++steps;  // the tools' answers
      if (errors >= limits.max_errors) outcome.ended = "max_errors";
    }
  }
  if (outcome.ended.empty()) outcome.ended = "max_steps";
  outcome.db = shop.hash() == gold_hash(data, task);
  const Json& criteria = task["evaluation_criteria"];
  if (criteria.contains("communicate_info") && criteria["communicate_info"].is_array())
    outcome.communicated = tau2_communicated(criteria["communicate_info"], messages);
  return outcome;
}

Tau2Chat scripted_user(const Json& task) {
  const Json& given = task["user_scenario"]["instructions"];
  const std::string opening = trimmed(member(given, "reason_for_call") + " " + member(given, "known_info"));
  return [opening, turns = 0](const Json&) mutable -> Result<Answer> {
    Answer answer;
    answer.finish_reason = "stop";
    answer.content = turns == 0 ? opening : turns < kScriptedTurns ? "Yes, please go ahead." : std::string(kUserEnds[0]);
    ++turns;
    return answer;
  };
}

double pass_hat_k(const std::vector<std::pair<int, int>>& successes_of_trials, int k) {
  double sum = 0;
  for (const auto& [successes, trials] : successes_of_trials) {
    double share = 1;  // C(s, k) / C(n, k) = prod (s - i) / (n - i)
    for (int i = 0; i < k; ++i) share *= std::max(0, successes - i) / static_cast<double>(trials - i);
    sum += share;
  }
  return successes_of_trials.empty() ? 0 : sum / static_cast<double>(successes_of_trials.size());
}

}  // namespace ingot::eval
