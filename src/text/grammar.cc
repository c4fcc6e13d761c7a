#include "text/grammar.h"

#include <ingot_xgrammar/log.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "text/grammar_regex.h"
#include "text/grammar_rules.h"
#include "text/grammar_schema.h"
#include "text/grammar_tools.h"

namespace ingot::text {
namespace {

// A compiled grammar, and what its answers must not contain although its text could be spelled with it.
class CompiledGrammar final : public Grammar {
 public:
  CompiledGrammar(xgrammar::CompiledGrammar compiled, std::vector<int32_t> forbidden, int64_t vocab_size)
      : compiled_(std::move(compiled)), forbidden_(std::move(forbidden)), vocab_size_(vocab_size), bytes_(compiled_.MemorySizeBytes()) {}
  int64_t vocab_size() const override { return vocab_size_; }
  size_t memory_bytes() const override { return bytes_; }

  const xgrammar::CompiledGrammar& compiled() const { return compiled_; }
  const std::vector<int32_t>& forbidden() const { return forbidden_; }  // sorted

 private:
  xgrammar::CompiledGrammar compiled_;
  std::vector<int32_t> forbidden_;
  int64_t vocab_size_;
  size_t bytes_;
};

}  // namespace

// --- matcher

struct GrammarMatcher::Impl {
  explicit Impl(std::shared_ptr<const Grammar> g)
      : owner(std::move(g)),
        grammar(dynamic_cast<const CompiledGrammar&>(*owner)),
        matcher(grammar.compiled()),
        words(static_cast<size_t>((grammar.vocab_size() + 31) / 32)) {}

  std::shared_ptr<const Grammar> owner;
  const CompiledGrammar& grammar;
  xgrammar::GrammarMatcher matcher;
  std::vector<uint32_t> words;
  bool over = false;  // ended or broken
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) : impl_(std::make_unique<Impl>(std::move(grammar))) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;

std::span<const uint32_t> GrammarMatcher::mask() {
  Impl& m = *impl_;
  if (m.over) {
    std::fill(m.words.begin(), m.words.end(), 0);
    return m.words;
  }
  int64_t shape = static_cast<int64_t>(m.words.size());
  DLTensor tensor{};
  tensor.data = m.words.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = &shape;
  // It returns whether anything is forbidden; the words are filled either way.
  m.matcher.FillNextTokenBitmask(&tensor);
  for (const int32_t id : m.grammar.forbidden()) m.words[static_cast<size_t>(id) / 32] &= ~(1U << (static_cast<uint32_t>(id) % 32));
  const auto rest = static_cast<uint32_t>(m.grammar.vocab_size() % 32);
  if (rest != 0) m.words.back() &= (1U << rest) - 1;
  return m.words;
}

bool GrammarMatcher::accept(int32_t token_id) {
  Impl& m = *impl_;
  if (m.over) return false;
  const std::vector<int32_t>& forbidden = m.grammar.forbidden();
  const bool may = token_id >= 0 && token_id < m.grammar.vocab_size() &&
                   !std::binary_search(forbidden.begin(), forbidden.end(), token_id) && m.matcher.AcceptToken(token_id);
  m.over = !may || m.matcher.IsTerminated();
  return may;
}

bool GrammarMatcher::may_end() const { return !impl_->over && impl_->matcher.IsCompleted(); }

// --- compiler

namespace {

class Compiler final : public GrammarCompiler {
 public:
  Compiler(xgrammar::TokenizerInfo tokenizer, std::vector<int32_t> tags, std::vector<int32_t> other_tags, GrammarCompilerOptions options)
      : compiler_(tokenizer, options.num_threads, true, static_cast<int64_t>(options.cache_bytes / 2)),
        tags_(std::move(tags)),
        other_tags_(std::move(other_tags)),
        options_(std::move(options)) {}

  Result<std::shared_ptr<const Grammar>> json_object() override {
    return cached("json_object", "json_object", tags_,
                  [](GrammarRules& rules) -> Result<std::string> { return rules.any_object(Spelling::json); });
  }

  Result<std::shared_ptr<const Grammar>> json_schema(const Json& schema, std::string_view where) override {
    const std::string place(where);
    return cached("json_schema " + text_of(schema), place, tags_, [&](GrammarRules& rules) -> Result<std::string> {
      return SchemaRules(schema, rules, {.strict = true, .spelling = Spelling::json}).value(schema, place);
    });
  }

  Result<std::shared_ptr<const Grammar>> regex(std::string_view pattern, std::string_view where) override {
    const std::string place(where);
    return cached("regex " + std::string(pattern), place, tags_, [&](GrammarRules& rules) -> Result<std::string> {
      auto body = regex_rules(pattern, rules);
      if (!body) return fail("{}: {}", place, body.error().text());
      return *body;
    });
  }

  Result<std::shared_ptr<const Grammar>> tool_calls(const Json& tools, const ToolCallRules& choice, std::string_view where) override {
    const std::string place(where);
    const std::string key = fmt::format("tools {} {} {} {}", static_cast<int>(choice.choice), choice.parallel, choice.name, text_of(tools));
    return cached(key, place, other_tags_, [&](GrammarRules& rules) -> Result<std::string> {
      std::vector<std::string> ignored;
      INGOT_ASSIGN(std::string rule, tool_call_rules(tools, choice, place, rules, ignored));
      if (!ignored.empty()) log_warn("schemas of tools: passed over what the grammar does not hold: {}", fmt::join(ignored, ", "));
      return rule;
    });
  }

 private:
  using Build = std::function<Result<std::string>(GrammarRules&)>;

  static std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

  Result<std::shared_ptr<const Grammar>> cached(const std::string& question, const std::string& where,
                                                const std::vector<int32_t>& forbidden, const Build& build) {
    if (question.size() > kMaxQuestionBytes)
      return fail("{}: {} bytes are more than a grammar may have ({})", where, question.size(), kMaxQuestionBytes);
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = entries_.find(question); at != entries_.end()) {
        recent_.splice(recent_.begin(), recent_, at->second);
        return at->second->second;
      }
    }
    INGOT_ASSIGN(std::shared_ptr<const Grammar> grammar, compile(where, forbidden, build));
    const std::lock_guard lock(mutex_);
    if (const auto at = entries_.find(question); at != entries_.end()) return at->second->second;
    recent_.emplace_front(question, grammar);
    entries_[question] = recent_.begin();
    bytes_ += cost(recent_.front());
    while (bytes_ > options_.cache_bytes / 2 && recent_.size() > 1) {
      bytes_ -= cost(recent_.back());
      entries_.erase(recent_.back().first);
      recent_.pop_back();
    }
    return grammar;
  }

  Result<std::shared_ptr<const Grammar>> compile(const std::string& where, const std::vector<int32_t>& forbidden, const Build& build) {
    GrammarRules rules;
    INGOT_ASSIGN(const std::string root, build(rules));
    if (rules.too_large()) return fail("{}: too large for a grammar", where);
    std::vector<std::string> warnings;
    std::vector<std::string>* before = ingot_xgrammar::listen(&warnings);
    std::optional<xgrammar::CompiledGrammar> compiled;
    std::string error;
    try {
      // One at a time: each compilation takes all the threads it may have.
      const std::lock_guard lock(compiling_);
      compiled = compiler_.CompileGrammar(xgrammar::Grammar::FromEBNF(rules.text(root)));
    } catch (const std::exception& e) {
      error = e.what();
    }
    ingot_xgrammar::listen(before);
    if (compiled && !warnings.empty()) error = warnings[0];
    if (!error.empty()) return fail("{}: no grammar comes of it: {}", where, error);
    return std::make_shared<const CompiledGrammar>(std::move(*compiled), forbidden, options_.vocab_size);
  }

  static constexpr size_t kMaxQuestionBytes = size_t{256} << 10;

  using Entry = std::pair<std::string, std::shared_ptr<const Grammar>>;
  static size_t cost(const Entry& entry) { return 2 * entry.first.size() + entry.second->memory_bytes(); }

  xgrammar::GrammarCompiler compiler_;
  std::vector<int32_t> tags_;        // ids of the model's tags that are not "special": none belongs into JSON
  std::vector<int32_t> other_tags_;  // those that belong into no call either
  GrammarCompilerOptions options_;
  std::mutex compiling_;
  std::mutex mutex_;
  std::list<Entry> recent_;  // most recent first
  std::unordered_map<std::string, std::list<Entry>::iterator> entries_;
  size_t bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<GrammarCompiler>> GrammarCompiler::create(std::shared_ptr<const Tokenizer> tokenizer,
                                                                 GrammarCompilerOptions options) {
  const int64_t num_tokens = tokenizer->vocab_size();
  if (options.vocab_size < num_tokens) return fail("grammar: logits of {} ids for a tokenizer of {}", options.vocab_size, num_tokens);
  // Ids without text, and special ones, are empty here: XGrammar lets none of them pass.
  std::vector<std::string> vocabulary(static_cast<size_t>(options.vocab_size));
  bool has_byte[256] = {};
  for (int64_t id = 0; id < num_tokens; ++id) {
    const auto token = static_cast<int32_t>(id);
    if (tokenizer->is_special(token)) continue;
    const std::string_view bytes = tokenizer->token_bytes(token);
    vocabulary[static_cast<size_t>(id)] = bytes;
    if (bytes.size() == 1) has_byte[static_cast<unsigned char>(bytes[0])] = true;
  }
  // With a token for every byte that UTF-8 has, every text can be spelled, whatever else is forbidden: no grammar runs into a wall.
  for (int byte = 0; byte <= 0xf4; ++byte) {
    if (!has_byte[byte] && byte != 0xc0 && byte != 0xc1) return fail("grammar: the tokenizer has no token for byte {:#04x}", byte);
  }
  // Added tokens that are not "special" (spec 8.2): they stand for parts of an answer, and only those of calls are such inside a grammar.
  std::vector<int32_t> tags, other_tags;
  for (int64_t id = 0; id < num_tokens; ++id) {
    const std::string_view bytes = vocabulary[static_cast<size_t>(id)];
    static constexpr std::string_view kOfCalls[] = {"<tool_call>", "</tool_call>", "<arg_key>",
                                                    "</arg_key>",  "<arg_value>",  "</arg_value>"};
    static constexpr std::string_view kOthers[] = {"<think>", "</think>", "<tool_response>", "</tool_response>", "/nothink"};
    const bool of_calls = std::find(std::begin(kOfCalls), std::end(kOfCalls), bytes) != std::end(kOfCalls);
    const bool other = std::find(std::begin(kOthers), std::end(kOthers), bytes) != std::end(kOthers) ||
                       (bytes.size() > 4 && bytes.starts_with("<|") && bytes.ends_with("|>"));
    if (of_calls || other) tags.push_back(static_cast<int32_t>(id));
    if (other) other_tags.push_back(static_cast<int32_t>(id));
  }
  xgrammar::TokenizerInfo info(vocabulary, xgrammar::VocabType::RAW, static_cast<int>(options.vocab_size), options.stop_token_ids);
  return std::make_shared<Compiler>(std::move(info), std::move(tags), std::move(other_tags), std::move(options));
}

}  // namespace ingot::text
