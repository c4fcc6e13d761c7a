#include "eval/tau2_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/file_map.h"
#include "eval/airline.h"
#include "eval/retail.h"
#include "eval/task.h"
#include "eval/telecom.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 28;
using World = std::unique_ptr<const Tau2World>;

Result<std::string> read_text(const std::filesystem::path& path) { return read_file(path, kMaxFile); }
Result<Json> read_json(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::string text, read_text(path));
  return parse_json(text, path.string());
}

// A file of the published data, or else what stands for it where that is too large to be passed on.
Result<Json> read_json_or(const std::filesystem::path& path, const char* other) {
  return read_json(std::filesystem::exists(path) ? path : path.parent_path() / other);
}

template <class W>
World world_of(W world) {
  return std::make_unique<const W>(std::move(world));
}

Result<World> read_retail(const std::filesystem::path& folder) {
  INGOT_ASSIGN(Json db, read_json(folder / "db.json"));
  return RetailShop::create(std::move(db)).map(world_of<RetailShop>);
}

Result<World> read_airline(const std::filesystem::path& folder) {
  INGOT_ASSIGN(Json db, read_json_or(folder / "db.json", "db_rebuilt.json"));
  return AirlineDesk::create(std::move(db)).map(world_of<AirlineDesk>);
}

Result<World> read_telecom(const std::filesystem::path& folder) {
  INGOT_ASSIGN(const std::string db, read_text(folder / "db.toml"));
  INGOT_ASSIGN(const std::string user_db, read_text(folder / "user_db.toml"));
  return TelecomWorld::create(db, user_db).map(world_of<TelecomWorld>);
}

Result<std::string> read_policy(const std::filesystem::path& folder) { return read_text(folder / "policy.md"); }
Result<std::string> read_telecom_policy(const std::filesystem::path& folder) {
  INGOT_ASSIGN(const std::string main, read_text(folder / "main_policy.md"));
  INGOT_ASSIGN(const std::string support, read_text(folder / "tech_support_manual.md"));
  return "<main_policy>\n" + main + "\n</main_policy>\n<tech_support_policy>\n" + support + "\n</tech_support_policy>";
}

struct Domain {
  std::string_view name;
  Result<World> (*world)(const std::filesystem::path& folder);
  Result<std::string> (*policy)(const std::filesystem::path& folder);
  bool has_user_tools;
  const char *rule, *reward;
};
constexpr const char* kDbAndWords = "the database is that after the gold actions, and every communicate_info was said";
constexpr const char* kAsserted =
    "what the task asserts of line and phone holds at the end; where nothing can be mended, the agent has handed over, too";
constexpr Domain kDomains[] = {{"retail", read_retail, read_policy, false, "retail-db-communicate-1", kDbAndWords},
                               {"airline", read_airline, read_policy, false, "airline-db-communicate-1", kDbAndWords},
                               {"telecom", read_telecom, read_telecom_policy, true, "telecom-assertion-action-1", kAsserted}};

// What `converse` takes for granted. Errors name the task.
Result<> check_task(const Json& task, const std::string& file) {
  const std::string id = text_of(task, "id");
  const auto has = [&](const char* part, const char* member) {
    return task.contains(part) && task[part].is_object() && task[part].contains(member);
  };
  if (!has("user_scenario", "instructions") || !has("evaluation_criteria", "actions") || !has("evaluation_criteria", "reward_basis"))
    return fail("{}: task {}: no `user_scenario` or `evaluation_criteria`", file, id);
  for (const char* member : {"initialization_data", "message_history"})
    if (has("initial_state", member) && !task["initial_state"][member].is_null())
      return fail("{}: task {}: begins with `{}`, which is not supported", file, id, member);
  const bool is_scored = tau2_counts(task, "DB") || tau2_counts(task, "ENV_ASSERTION") || tau2_counts(task, "ACTION");
  if (!is_scored) return fail("{}: task {}: nothing of its `reward_basis` is scored here", file, id);
  return {};
}

// As Python's textwrap.indent: lines of white space alone stay as they are.
std::string indented(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string line = text.substr(at, end - at);
    result += (tau2_trimmed(line).empty() ? "" : "\t") + line;
    at = end;
  }
  return result;
}

std::string scenario_of(const Json& task) {
  const Json& scenario = task["user_scenario"];
  const Json& given = scenario["instructions"];
  std::string instructions =
      fmt::format("Domain: {}\nReason for call:\n{}", text_of(given, "domain"), indented(text_of(given, "reason_for_call")));
  for (const auto& [name, title] : {std::pair("known_info", "Known info"), std::pair("unknown_info", "Unknown info")})
    if (given.contains(name) && given[name].is_string()) instructions += fmt::format("\n{}:\n{}", title, indented(text_of(given, name)));
  instructions += "\nTask instructions:\n" + indented(text_of(given, "task_instructions"));
  const std::string persona = text_of(scenario, "persona");
  return (persona.empty() ? "" : "Persona:\n" + indented(persona) + "\n") + "Instructions:\n" + indented(instructions);
}

}  // namespace

std::string tau2_trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool tau2_counts(const Json& task, const char* part) {
  const Json& basis = task["evaluation_criteria"]["reward_basis"];
  return std::find(basis.begin(), basis.end(), part) != basis.end();
}

std::string tau2_domains() {
  std::string names;
  for (const Domain& domain : kDomains) names += (names.empty() ? "" : ", ") + std::string(domain.name);
  return names;
}

Result<Tau2Data> read_tau2(const std::filesystem::path& data, const std::string& domain, const std::string& split) {
  const auto* known = std::find_if(std::begin(kDomains), std::end(kDomains), [&](const Domain& one) { return one.name == domain; });
  if (known == std::end(kDomains)) return fail("--domain {}: expected {}", domain, tau2_domains());
  const auto folder = data / "domains" / domain;
  Tau2Data read;
  read.domain = domain;
  read.rule = known->rule;
  read.reward = known->reward;
  INGOT_ASSIGN(read.policy, known->policy(folder));
  INGOT_ASSIGN(read.guidelines, read_text(data / "user_simulator" /
                                          (known->has_user_tools ? "simulation_guidelines_tools.md" : "simulation_guidelines.md")));
  INGOT_ASSIGN(read.tools, read_json(folder / "tools_openai.json"));
  if (known->has_user_tools) {
    INGOT_ASSIGN(read.user_tools, read_json(folder / "user_tools_openai.json"));
  }
  INGOT_ASSIGN(read.world, known->world(folder));
  INGOT_ASSIGN(const Json splits, read_json(folder / "split_tasks.json"));
  if (!splits.is_object() || !splits.contains(split) || !splits[split].is_array())
    return fail_hint("use base, train or test", "--split {}: split_tasks.json has none of this name", split);
  std::set<std::string> wanted;
  for (const Json& id : splits[split])
    if (id.is_string()) wanted.insert(id.get<std::string>());
  INGOT_ASSIGN(const Json tasks, read_json_or(folder / "tasks.json", "tasks_base_regenerated.json"));
  for (const Json& task : tasks) {
    if (!wanted.contains(text_of(task, "id"))) continue;
    INGOT_TRY(check_task(task, (folder / "tasks.json").string()));
    read.tasks.push_back(task);
  }
  if (read.tasks.size() != wanted.size())
    return fail("--split {} names {} tasks, of which {} are there", split, wanted.size(), read.tasks.size());
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

}  // namespace ingot::eval
