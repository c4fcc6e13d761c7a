// Grammars that an answer must follow: JSON, a JSON schema, a regular expression, tool calls in the model's own format; and the matcher
// that says, token by token, what may come next. Built on XGrammar, which only grammar.cc sees.
//
// Fail closed: what a schema asks and the grammar cannot hold is an error that names the place ("response_format.json_schema.schema.
// properties.a: ..."), never a wider grammar. Of a tool's schema alone, keywords that are not understood are passed over with a warning.
//
// What every grammar has: white space in JSON is none, one space, or a newline and an indent; properties come in the order of the schema;
// the end of the answer (stop tokens) may come only where the grammar may end; no special token but the tags of tool calls in their places;
// no id without a token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace ingot::text {

// A compiled grammar: immutable, any thread.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual int64_t vocab_size() const = 0;  // ids that the masks speak of: the width of the logits
  virtual size_t memory_bytes() const = 0;
};

// Where one answer stands in its grammar. One thread at a time; matchers of one grammar may be used on different threads.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;

  // Bit i % 32 of mask[i / 32]: token i may come next. (vocab_size + 31) / 32 words, valid until the next call. After a stop token, or a
  // token that was not accepted: none.
  std::span<const uint32_t> mask();
  // False when the grammar forbids it: the matcher is then broken for good, and every mask empty.
  bool accept(int32_t token_id);
  // The text so far is whole: a stop token may come.
  bool may_end() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GrammarCompilerOptions {
  int64_t vocab_size = 0;                 // width of the logits; at least the tokenizer's
  std::vector<int32_t> stop_token_ids;    // end of an answer
  size_t cache_bytes = size_t{64} << 20;  // compiled grammars kept for the next request with the same
  int num_threads = 2;                    // of one compilation
};

// What tool_choice and `strict` of the tools ask.
struct ToolCallRules {
  enum class Choice : uint8_t {
    strict_auto,  // text, or calls; the arguments of every call follow the tool's schema (a tool without strict: any arguments)
    required,     // one call or more, and nothing else
    named,        // calls of `name` alone, at least one
  };
  Choice choice = Choice::required;
  std::string name = {};
  bool parallel = true;  // false: one call at most
};

class GrammarCompiler {
 public:
  // Errors: no token for a byte; vocab_size smaller than the tokenizer's.
  static Result<std::shared_ptr<GrammarCompiler>> create(std::shared_ptr<const Tokenizer> tokenizer, GrammarCompilerOptions options);
  virtual ~GrammarCompiler() = default;

  // All thread safe. They take milliseconds for a demo vocabulary, mostly up to two seconds for 154,880 ids, half a minute and more for a
  // hostile schema, one after the other: not for a thread that others wait on. The same question again is answered from the cache. `where`
  // names the field in errors.
  // One JSON object.
  virtual Result<std::shared_ptr<const Grammar>> json_object() = 0;
  // A value that is valid for the schema; properties that it does not name are forbidden unless additionalProperties allows them.
  virtual Result<std::shared_ptr<const Grammar>> json_schema(const Json& schema, std::string_view where) = 0;
  // The whole answer matches the pattern.
  virtual Result<std::shared_ptr<const Grammar>> regex(std::string_view pattern, std::string_view where) = 0;
  // `tools`: an OpenAI tools array that has been checked for form (type, function.name). The text parses back by OutputParser with the same
  // tools into arguments that are valid for the schemas. Errors: `name` is not among the tools; none is; a schema that cannot be held.
  virtual Result<std::shared_ptr<const Grammar>> tool_calls(const Json& tools, const ToolCallRules& rules,
                                                            std::string_view where = "tools") = 0;
};

}  // namespace ingot::text
