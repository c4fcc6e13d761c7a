// Cuts a template into tokens as Jinja2 does with trim_blocks and lstrip_blocks. Called by the parser only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_value.h"

namespace ingot::text::jinja {

enum class TokenKind : uint8_t { kText, kPrintBegin, kPrintEnd, kBlockBegin, kBlockEnd, kName, kString, kInteger, kFloat, kOperator, kEnd };

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // template text, name, decoded string, operator
  Int integer = 0;
  double real = 0;
};

// Throws TemplateFault{"TemplateSyntaxError"}; the line of the error is left in `error_line`.
std::vector<Token> tokenize(std::string_view source, int& error_line);

}  // namespace ingot::text::jinja
