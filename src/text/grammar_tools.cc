#include "text/grammar_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/grammar_schema.h"
#include "text/grammar_schema_parts.h"
#include "text/tool_arguments.h"

namespace ingot::text {
namespace {

// What comes behind <tool_call> up to the end of the call.
Result<std::string> call_rules(const Json& tools, const Json& function, bool any_arguments, const std::string& where, GrammarRules& rules,
                               std::vector<std::string>& ignored) {
  const auto& name = function["name"].get_ref<const std::string&>();
  if (name.empty() || name.find_first_of(" \t\r\n<\\") != std::string::npos)
    return fail("{}.name: must not be empty or have white space, < or \\ in it, for the model's format has no place for them", where);
  std::string arguments = "\"\"";
  if (any_arguments) {
    const std::string any = argument_pair(rules.string_except({}, Spelling::tag), rules.string(Spelling::tag));
    arguments = fmt::format("({})*", rules.add("argument", any));
  } else if (function.contains("parameters") && !function["parameters"].is_null()) {
    // A tool's schema is written for models and clients of all kinds: what is not understood in it is passed over.
    SchemaRules schema(function["parameters"], rules, {.strict = false, .spelling = Spelling::json_tag});
    INGOT_ASSIGN(arguments,
                 schema.arguments(where + ".parameters", [&](const std::string& key) { return argument_type(tools, name, key); }));
    ignored.insert(ignored.end(), schema.ignored().begin(), schema.ignored().end());
  }
  return fmt::format("{} {} \"</tool_call>\"", GrammarRules::literal(name), arguments);
}

}  // namespace

Result<std::string> tool_call_rules(const Json& tools, const ToolCallRules& choice, const std::string& where, GrammarRules& rules,
                                    std::vector<std::string>& ignored) {
  using Choice = ToolCallRules::Choice;
  std::vector<std::string> calls;
  for (size_t i = 0; tools.is_array() && i < tools.size(); ++i) {
    const Json& tool = tools[i];
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    if (choice.choice == Choice::named && function["name"] != choice.name) continue;
    const bool strict = function.contains("strict") && function["strict"] == Json(true);
    const std::string place = fmt::format("{}[{}]{}", where, i, tool.contains("function") ? ".function" : "");
    INGOT_ASSIGN(std::string call, call_rules(tools, function, choice.choice == Choice::strict_auto && !strict, place, rules, ignored));
    calls.push_back(std::move(call));
  }
  if (calls.empty()) {
    if (choice.choice == Choice::named) return fail("{}: there is no tool named \"{}\"", where, choice.name);
    return fail("{}: there is no tool to call", where);
  }
  const std::string call = rules.add("call", fmt::format("({})", fmt::join(calls, " | ")));
  if (choice.choice == Choice::strict_auto) {
    return rules.add("answer", fmt::format(R"(TagDispatch(("<tool_call>", {}), loop_after_dispatch={}))", call, choice.parallel));
  }
  return rules.add("answer",
                   fmt::format(R"("<tool_call>" {}{})", call, choice.parallel ? fmt::format(R"( ("<tool_call>" {})*)", call) : ""));
}

}  // namespace ingot::text
