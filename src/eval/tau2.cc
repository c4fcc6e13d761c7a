#include "eval/tau2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

constexpr const char* kGreeting = "Hi! How can I help you today?";
constexpr std::array<std::string_view, 3> kUserEnds = {"###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"};
constexpr std::string_view kAgentEnd = "###STOP###";
constexpr int kScriptedTurns = 8;

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }
bool is_of_users_tools(const Json& m) {
  return (m["role"] == "user" && m.contains("tool_calls")) || (m["role"] == "tool" && m.contains("requestor"));
}

// The agent sees neither the user's calls nor what they gave.
Json for_agent(const std::string& prompt, const Json& messages) {
  Json seen = Json::array({message("system", prompt)});
  for (const Json& m : messages)
    if (!is_of_users_tools(m)) seen.push_back(m);
  return seen;
}

// The user sees words and their own calls, each side's as the other's.
Json for_user(const std::string& prompt, const Json& messages) {
  Json seen = Json::array({message("system", prompt)});
  for (const Json& m : messages) {
    const bool is_users_call = is_of_users_tools(m), has_words = m["role"] != "tool" && !text_of(m, "content").empty();
    if (!is_users_call && !has_words) continue;
    Json& one = seen.emplace_back(m);
    one.erase("requestor");
    if (m["role"] != "tool") one["role"] = m["role"] == "user" ? "assistant" : "user";
  }
  return seen;
}

Json call_message(const char* role, const std::vector<ToolCall>& calls, size_t number) {
  Json made = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string arguments = calls[i].arguments.is_string() ? calls[i].arguments.get<std::string>() : calls[i].arguments.dump();
    made.push_back({{"id", fmt::format("call_{}_{}", number, i)},
                    {"type", "function"},
                    {"function", {{"name", calls[i].name}, {"arguments", arguments}}}});
  }
  return {{"role", role}, {"content", nullptr}, {"tool_calls", made}};
}

std::string without_commas(const std::string& text) {
  std::string plain = text::jinja::to_lower(text);
  plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
  return plain;
}

Json list_of(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_array() ? object[name] : Json::array();
}

// A world as the task begins.
Result<std::unique_ptr<Tau2World>> begin(const Tau2Data& data, const Json& task) {
  auto world = data.world->copy();
  if (task.contains("initial_state") && task["initial_state"].is_object())
    for (const Json& action : list_of(task["initial_state"], "initialization_actions")) INGOT_TRY(world->set_up(action));
  return world;
}

// Whether the world is as the task's own actions leave it.
Result<bool> is_gold(const Tau2Data& data, const Json& task, const Tau2World& world) {
  INGOT_ASSIGN(const auto gold, begin(data, task));
  for (const Json& action : task["evaluation_criteria"]["actions"])
    gold->call(text_of(action, "requestor") == "user" ? Tau2Side::kUser : Tau2Side::kAgent, text_of(action, "name"), action["arguments"]);
  return gold->hash(Tau2Side::kAgent) == world.hash(Tau2Side::kAgent) && gold->hash(Tau2Side::kUser) == world.hash(Tau2Side::kUser);
}

// The parts of the reward, of the conversation's end.
Result<> judge(const Tau2Data& data, const Json& task, Tau2World& world, const std::vector<ToolCall>& calls, Tau2Outcome& outcome) {
  const Json& criteria = task["evaluation_criteria"];
  if (tau2_counts(task, "DB")) {
    INGOT_ASSIGN(const bool is_so, is_gold(data, task, world));
    outcome.parts.emplace_back("db", is_so);
  }
  if (tau2_counts(task, "DB") || tau2_counts(task, "COMMUNICATE"))
    outcome.parts.emplace_back("communicate", tau2_communicated(list_of(criteria, "communicate_info"), outcome.messages));
  if (tau2_counts(task, "ENV_ASSERTION")) {
    bool all_hold = true;
    for (const Json& assertion : list_of(criteria, "env_assertions")) {
      INGOT_ASSIGN(const bool is_so, world.holds(assertion));
      all_hold = all_hold && is_so;
    }
    outcome.parts.emplace_back("env_assertion", all_hold);
  }
  if (tau2_counts(task, "ACTION")) outcome.parts.emplace_back("action", tau2_acted(criteria["actions"], calls));
  return {};
}

}  // namespace

bool Tau2Outcome::ok() const {
  return (ended == "user_stop" || ended == "agent_stop") && std::all_of(parts.begin(), parts.end(), [](const auto& p) { return p.second; });
}

bool tau2_communicated(const Json& info, const Json& messages) {
  return std::all_of(info.begin(), info.end(), [&](const Json& text) {
    const std::string wanted = text::jinja::to_lower(text.get<std::string>());
    return std::any_of(messages.begin(), messages.end(), [&](const Json& m) {
      return m["role"] == "assistant" && without_commas(text_of(m, "content")).find(wanted) != std::string::npos;
    });
  });
}

bool tau2_acted(const Json& actions, const std::vector<ToolCall>& calls) {
  const auto is_made = [](const Json& action, const ToolCall& call) {
    if (call.name != text_of(action, "name") || !call.arguments.is_object()) return false;
    // All that the call has, where the action does not say which.
    const bool says_which = action.contains("compare_args") && action["compare_args"].is_array();
    ToolCall made{call.name, Json::object()}, wanted = made;
    for (const auto& [name, value] : call.arguments.items())
      if (!says_which || std::count(action["compare_args"].begin(), action["compare_args"].end(), name) > 0) made.arguments[name] = value;
    for (const auto& [name, value] : action["arguments"].items())
      if (says_which ? std::count(action["compare_args"].begin(), action["compare_args"].end(), name) > 0 : made.arguments.contains(name))
        wanted.arguments[name] = value;
    return made == wanted;
  };
  return std::all_of(actions.begin(), actions.end(), [&](const Json& action) {
    return std::any_of(calls.begin(), calls.end(), [&](const ToolCall& call) { return is_made(action, call); });
  });
}

Result<Tau2Outcome> converse(const Tau2Data& data, const Json& task, const Tau2Limits& limits, const Tau2Chat& agent,
                             const Tau2Chat& user) {
  INGOT_ASSIGN(const auto world, begin(data, task));
  Tau2Outcome outcome;
  Json& messages = outcome.messages;
  messages = Json::array({message("assistant", kGreeting)});
  const std::string agent_prompt = tau2_agent_prompt(data), user_prompt = tau2_user_prompt(data, task);
  std::vector<ToolCall> calls;  // of both
  Tau2Side side = Tau2Side::kUser;
  int errors = 0;
  for (int steps = 0; outcome.ended.empty() && steps < limits.max_steps; ++steps) {
    const bool is_user = side == Tau2Side::kUser;
    const char* role = is_user ? "user" : "assistant";
    INGOT_ASSIGN(const Answer said, is_user ? user(for_user(user_prompt, messages)) : agent(for_agent(agent_prompt, messages)));
    if (!is_user) {
      outcome.prompt_tokens += said.prompt_tokens;
      outcome.cached_tokens += said.cached_tokens;
      outcome.completion_tokens += said.completion_tokens;
      outcome.cut += said.finish_reason == "length";
    }
    const std::string content = tau2_trimmed(std::string(after_thoughts(said.content)));
    if (content.empty() == said.calls.empty()) {  // neither, or both
      outcome.ended = is_user ? "user_error" : "agent_error";
      messages.push_back(message(role, content));
    } else if (said.calls.empty()) {
      messages.push_back(message(role, content));
      const auto says = [&](std::string_view end) { return content.find(end) != std::string::npos; };
      if (is_user && std::any_of(kUserEnds.begin(), kUserEnds.end(), says)) outcome.ended = "user_stop";
      if (!is_user && says(kAgentEnd)) outcome.ended = "agent_stop";
      side = is_user ? Tau2Side::kAgent : Tau2Side::kUser;
    } else {
      messages.push_back(call_message(role, said.calls, messages.size()));
      const Json made = messages.back()["tool_calls"];
      for (size_t i = 0; i < said.calls.size(); ++i) {
        const std::string result = world->call(side, said.calls[i].name, said.calls[i].arguments);
        errors += result.starts_with("Error: ");
        Json& told = messages.emplace_back(Json{{"role", "tool"}, {"tool_call_id", made[i]["id"]}, {"content", result}});
        if (is_user) told["requestor"] = "user";
        calls.push_back(said.calls[i]);
      }
      ++steps;  // the tools' answers
      if (errors >= limits.max_errors) outcome.ended = "max_errors";
    }
  }
  if (outcome.ended.empty()) outcome.ended = "max_steps";
  INGOT_TRY(judge(data, task, *world, calls, outcome));
  return outcome;
}

Tau2Chat scripted_user(const Json& task) {
  const Json& given = task["user_scenario"]["instructions"];
  const std::string opening = tau2_trimmed(text_of(given, "reason_for_call") + " " + text_of(given, "known_info"));
  std::vector<ToolCall> actions;
  for (const Json& action : task["evaluation_criteria"]["actions"])
    if (text_of(action, "requestor") == "user") actions.push_back({text_of(action, "name"), action["arguments"]});
  const int last_turn = kScriptedTurns + static_cast<int>(actions.size());
  return [opening, actions, last_turn, turns = 0, acted = size_t{0}](const Json& seen) mutable -> Result<Answer> {
    Answer answer;
    answer.finish_reason = "stop";
    const bool has_acted = seen.back()["role"] == "tool";
    if (turns > 0 && !has_acted && acted < actions.size()) {
      answer.calls = {actions[acted++]};
      return answer;
    }
    answer.content = turns == 0           ? opening
                     : turns >= last_turn ? std::string(kUserEnds[0])
                     : has_acted          ? "I have done that. It shows: " + text_of(seen.back(), "content")
                                          : "Yes, please go ahead.";
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
