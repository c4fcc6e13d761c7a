#include "eval/bfcl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "eval/bfcl_rule.h"

namespace ingot::eval {
namespace {

Json schema_of(const Json& described) {
  if (!described.is_object()) return described;
  Json schema = described;
  if (schema.contains("type") && schema["type"].is_string()) {
    const auto& type = schema["type"].get_ref<const std::string&>();
    if (type == "dict")
      schema["type"] = "object";
    else if (type == "float")
      schema["type"] = "number";
    else if (type == "tuple")
      schema["type"] = "array";
    else if (type == "any")
      schema["type"] = "string";
  }
  if (schema.contains("properties") && schema["properties"].is_object())
    for (auto& [name, property] : schema["properties"].items()) property = schema_of(property);
  if (schema.contains("items")) schema["items"] = schema_of(schema["items"]);
  return schema;
}

bool has_answers(const std::string& set) { return set.find("relevance") == std::string::npos; }

Result<std::unordered_map<std::string, Json>> read_answers(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::vector<Json> lines, read_objects(path));
  std::unordered_map<std::string, Json> answers;
  for (const Json& line : lines) {
    INGOT_ASSIGN(std::string id, string_member(line, "id", path.string()));
    const Json truth = line.value("ground_truth", Json());
    const bool whole = truth.is_array() && !truth.empty() && std::all_of(truth.begin(), truth.end(), [](const Json& call) {
                         return call.is_object() && call.size() == 1 && call.begin()->is_object();
                       });
    if (!whole) return fail("{}: {}: `ground_truth` is no list of calls", path.string(), id);
    answers.insert_or_assign(std::move(id), truth);
  }
  return answers;
}

Result<> add_set(Task& task, const BfclOptions& options, const std::string& set) {
  const auto path = options.data / fmt::format("BFCL_v4_{}.json", set);
  INGOT_ASSIGN(const std::vector<Json> lines, read_objects(path));
  std::unordered_map<std::string, Json> answers;
  if (has_answers(set)) {
    INGOT_ASSIGN(answers, read_answers(options.data / "possible_answer" / path.filename()));
  }
  for (const Json& line : lines) {
    Question q;
    INGOT_ASSIGN(q.id, string_member(line, "id", path.string()));
    const std::string where = fmt::format("{}: {}", path.string(), q.id);
    const Json turns = line.value("question", Json()), functions = line.value("function", Json());
    if (!turns.is_array() || turns.size() != 1 || !turns[0].is_array()) return fail("{}: `question` is not one list of messages", where);
    if (!functions.is_array() || (functions.empty() && has_answers(set))) return fail("{}: no `function`", where);
    q.path = "/v1/chat/completions";
    q.body["messages"] = turns[0];
    // Four questions of live_irrelevance describe none; an empty list of tools is refused by servers.
    for (const Json& function : functions) q.body["tools"].push_back({{"type", "function"}, {"function", bfcl_tool(function)}});
    if (options.enable_thinking) q.body["chat_template_kwargs"] = {{"enable_thinking", *options.enable_thinking}};
    q.body["temperature"] = 0;
    q.body["max_tokens"] = options.max_tokens;
    q.key = {{"set", set}};
    if (has_answers(set)) {
      const auto answer = answers.find(q.id);
      if (answer == answers.end()) return fail("{}: no answer in possible_answer/{}", where, path.filename().string());
      q.key["functions"] = functions;
      q.key["ground_truth"] = answer->second;
    }
    q.groups = {{"set", set}};
    task.questions.push_back(std::move(q));
  }
  return {};
}

Score score_calls(const Question& q, const Answer& answer) {
  const auto& set = q.key["set"].get_ref<const std::string&>();
  Score score;
  score.no_answer = answer.calls.empty();
  if (has_answers(set)) {
    score.why = bfcl_fault(q.key["functions"], answer.calls, q.key["ground_truth"], set.find("parallel") != std::string::npos);
  } else if (set.find("irrelevance") != std::string::npos) {
    score.no_answer = false;
    if (!answer.calls.empty()) score.why = fmt::format("{} was called", answer.calls.front().name);
  } else if (answer.calls.empty()) {
    score.why = "no call";
  }
  score.ok = score.why.empty();
  for (const ToolCall& call : answer.calls) score.extracted += (score.extracted.empty() ? "" : ", ") + call.name;
  return score;
}

}  // namespace

const std::vector<std::string>& bfcl_sets() {
  static const std::vector<std::string> sets = {"simple_python",     "multiple",        "parallel",
                                                "parallel_multiple", "irrelevance",     "live_simple",
                                                "live_multiple",     "live_parallel",   "live_parallel_multiple",
                                                "live_relevance",    "live_irrelevance"};
  return sets;
}

Json bfcl_tool(const Json& function) {
  Json tool = {{"name", bfcl_called_name(function.value("name", ""))}};
  if (function.contains("description")) tool["description"] = function["description"];
  tool["parameters"] = schema_of(function.value("parameters", Json::object()));
  return tool;
}

Result<Task> make_bfcl(const BfclOptions& options) {
  Task task;
  task.name = "bfcl", task.rule = "bfcl-v4-ast";
  task.about = fmt::format(
      "{}: functions as tools (types of JSON Schema, dots in names made underscores), the published AST rule on the calls; accuracy over "
      "all questions, not the leaderboard's mean of sets",
      fmt::join(options.sets, ", "));
  task.not_scored = "the multi-turn sets, which need simulated APIs";
  for (const std::string& set : options.sets) {
    if (std::find(bfcl_sets().begin(), bfcl_sets().end(), set) == bfcl_sets().end())
      return fail_hint(fmt::format("use {} or all", fmt::join(bfcl_sets(), ", ")), "--set {} is unknown", set);
    if (std::count(options.sets.begin(), options.sets.end(), set) > 1) return fail("--set {} is given twice", set);
    INGOT_TRY(add_set(task, options, set));
  }
  if (task.questions.empty()) return fail_hint(fmt::format("use {}", fmt::join(bfcl_sets(), ", ")), "--set: no set");
  task.score = score_calls;
  return task;
}

}  // namespace ingot::eval
