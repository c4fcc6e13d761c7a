// Tokens to Ast, following Jinja2's grammar and precedences. Everything the engine doesn't support is refused here, by name and line.
// Called by chat_template.cc only.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace ingot::text::jinja {

// Nested statements and expressions of a source, together: keeps the recursion of parser and interpreter within a thread's stack.
inline constexpr int kMaxSourceNesting = 120;

// Throws TemplateFault; `error_line` then holds the line.
Ast parse_template(std::string_view source, int& error_line);

}  // namespace ingot::text::jinja
