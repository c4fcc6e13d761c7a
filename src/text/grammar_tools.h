// Calls of tools in the model's own format (spec 8.3) as rules of a grammar: <tool_call>name, then for each argument
// <arg_key>key</arg_key><arg_value>text</arg_value>, then </tool_call>; nothing between the tags. Used by grammar.cc alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/grammar.h"
#include "text/grammar_rules.h"

namespace ingot::text {

// The rule that an answer with these tools follows. `ignored` gets the places of keywords that were passed over.
Result<std::string> tool_call_rules(const Json& tools, const ToolCallRules& choice, const std::string& where, GrammarRules& rules,
                                    std::vector<std::string>& ignored);

}  // namespace ingot::text
