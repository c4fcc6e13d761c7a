// Model output that is cut where the input says gives what the whole text gives; arguments are JSON objects, names come once and first.
// Input: options (bit 0 starts in reasoning, 1 no reasoning, 2 no tools declared, 3 no tool calls), choice of cuts, text.
#include "text/output_parser.h"

#include <vector>

#include "base/json.h"
#include "fuzz.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Whole {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Whole&) const = default;
};

const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
      "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"o":{"type":"object"},
      "a":{"type":"array"},"z":{"type":["string","null"]},"e":{"enum":["a",1,null]},"r":{"$ref":"#/$defs/T"},
      "u":{"anyOf":[{"type":"integer"},{"type":"string"}]}},"$defs":{"T":{"type":"string"}}}}},
    {"type":"function","function":{"name":"now"}}])");
  return list;
}

void fold(const OutputDelta& delta, Whole& whole) {
  whole.reasoning += delta.reasoning;
  whole.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    if (index == whole.calls.size()) {
      INGOT_CHECK(!call.name.empty(), "call {} begins without a name", index);
      whole.calls.push_back({call.name, call.arguments});
    } else {
      INGOT_CHECK(index + 1 == whole.calls.size() && call.name.empty(), "call {} of {} is named twice or goes on too late", index,
                  whole.calls.size());
      whole.calls.back().arguments += call.arguments;
    }
  }
}

template <class Take>
Whole parse(std::string_view text, const OutputParserOptions& options, Take&& take) {
  OutputParser parser(options);
  Whole whole;
  while (!text.empty()) fold(parser.push(take(text)), whole);
  fold(parser.finish(), whole);
  INGOT_CHECK(parser.num_tool_calls() == static_cast<int>(whole.calls.size()));
  return whole;
}

void run(fuzz::Input input) {
  const uint8_t flags = input.byte();
  fuzz::Cuts cuts(input.byte());
  const OutputParserOptions options{.starts_in_reasoning = (flags & 1) != 0,
                                    .parse_reasoning = (flags & 2) == 0,
                                    .parse_tool_calls = (flags & 8) == 0,
                                    .tools = (flags & 4) == 0 ? tools() : Json::array()};
  const std::string_view text = input.rest();
  const Whole whole = parse(text, options, [](std::string_view& rest) { return std::exchange(rest, {}); });
  const Whole pieces = parse(text, options, [&](std::string_view& rest) { return cuts.take(rest); });
  const Whole bytes = parse(text, options, [](std::string_view& rest) {
    const std::string_view first = rest.substr(0, 1);
    rest.remove_prefix(1);
    return first;
  });
  INGOT_CHECK(pieces == whole, "cut text differs: {} and {} bytes of content, {} and {} calls", pieces.content.size(), whole.content.size(),
              pieces.calls.size(), whole.calls.size());
  INGOT_CHECK(bytes == whole, "text byte by byte differs");
  for (const Call& call : whole.calls) {
    const auto arguments = parse_json(call.arguments, "arguments");
    INGOT_CHECK(arguments.has_value() && arguments->is_object(), "arguments are no JSON object: {}", call.arguments);
    INGOT_CHECK(find_invalid_utf8(call.name) == kValidUtf8, "a name is not UTF-8");
  }
  if (options.parse_reasoning || options.parse_tool_calls) return;
  INGOT_CHECK(whole.content == text && whole.reasoning.empty(), "plain text was changed");
}

}  // namespace
}  // namespace ingot::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::text::run({data, size});
  return 0;
}
