// Any JSON schema, tool schema or regular expression is a grammar or an error, soon and without much memory; a few tokens drawn under its
// mask are accepted, and where an answer of a strict schema ends it is JSON.
// Input: what the text is (0 schema, 1 tool parameters, 2 pattern), choice of draws, text.
#include "text/grammar.h"

#include <algorithm>
#include <vector>

#include "base/json.h"
#include "fuzz.h"

namespace ingot::text {
namespace {

constexpr int32_t kStop = 256;

// One token a byte, and the end: the grammar is what is tried, not the vocabulary.
class Bytes final : public Tokenizer {
 public:
  Bytes() {
    for (int i = 0; i < 256; ++i) bytes_[i] = static_cast<char>(i);
  }
  Result<std::vector<int32_t>> encode(std::string_view text, size_t) const override {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  std::string_view token_bytes(int32_t id) const override {
    return id < 256 ? std::string_view(bytes_ + id, 1) : std::string_view("<end>");
  }
  std::string decode(std::span<const int32_t>, bool) const override { return {}; }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t id) const override { return id == kStop; }
  int64_t vocab_size() const override { return kStop + 1; }

 private:
  char bytes_[256];
};

GrammarCompiler& compiler() {
  static const auto kCompiler =
      GrammarCompiler::create(std::make_shared<const Bytes>(),
                              {.vocab_size = kStop + 1, .stop_token_ids = {kStop}, .cache_bytes = 1 << 20, .num_threads = 1})
          .value();
  return *kCompiler;
}

void run(fuzz::Input input) {
  const uint8_t kind = input.byte() % 3;
  Rng rng(input.byte());
  Result<std::shared_ptr<const Grammar>> grammar = fail("none");
  if (kind == 2) {
    grammar = compiler().regex(input.rest(), "regex");
  } else {
    const auto schema = parse_json(input.rest(), "schema");
    if (!schema) return;
    if (kind == 0) {
      grammar = compiler().json_schema(*schema, "schema");
    } else {
      Json tools = Json::array({Json{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", *schema}}}}});
      grammar = compiler().tool_calls(tools, {});
    }
  }
  if (!grammar) {
    INGOT_CHECK(!grammar.error().message.empty());
    return;
  }
  GrammarMatcher matcher(*grammar);
  std::string text;
  for (int step = 0; step < 60; ++step) {
    const std::span<const uint32_t> mask = matcher.mask();
    std::vector<int32_t> may;
    for (int32_t id = 0; id <= kStop; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) may.push_back(id);
    }
    // A pattern or a schema that nothing satisfies in the end may run into a wall; what is allowed must be accepted all the same.
    if (may.empty()) return;
    const int32_t token = may.back() == kStop && rng.below(2) == 0 ? kStop : may[rng.below(may.size())];
    INGOT_CHECK(matcher.accept(token), "the mask allows {} and it is refused behind {}", token, text);
    if (token == kStop) {
      INGOT_CHECK(kind != 0 || parse_json(text, "answer").has_value(), "no JSON: {}", text);
      return;
    }
    text += static_cast<char>(token);
  }
}

}  // namespace
}  // namespace ingot::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::text::run({data, size});
  return 0;
}
