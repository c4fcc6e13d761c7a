#include "serve/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

namespace ingot::serve {

namespace {
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopTokenIds = 256;
constexpr double kMaxTemperature = 100;
constexpr size_t kMaxBiases = 1024;
constexpr double kMaxBias = 100;
constexpr double kMaxPenalty = 2;
// Beyond these a logit may leave the range of numbers.
constexpr double kMinRepetitionPenalty = 0.01;
constexpr double kMaxRepetitionPenalty = 100;
constexpr size_t kMaxAlternatives = 1024;  // of guided_choice
constexpr size_t kMaxSchemaName = 64;

uint64_t draw_seed() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The id in its one spelling: no sign, no leading zeros; so no two keys mean one token.
std::optional<int32_t> token_id_of(const std::string& key, int64_t end) {
  int32_t id = -1;
  const auto [last, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || id < 0 || id >= end || std::to_string(id) != key) return std::nullopt;
  return id;
}

void read_logit_bias(JsonFields& fields, int64_t vocab_size, std::vector<std::pair<int32_t, float>>& biases) {
  constexpr const char* kField = "logit_bias";
  const Json* given = fields.get(kField);
  if (given == nullptr) return;
  if (!given->is_object() || given->size() > kMaxBiases)
    return fields.refuse(kField, fmt::format("expected an object of up to {} token ids, each with a number", kMaxBiases));
  for (const auto& [key, value] : given->items()) {
    const auto id = token_id_of(key, vocab_size);
    if (!id) {
      return fields.refuse(kField,
                           fmt::format("\"{}\" is not the id of a token: expected \"0\" to \"{}\"", shown_name(key), vocab_size - 1));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxBias))
      return fields.refuse(kField, fmt::format("of token {}: expected a number from {} to {}", key, -kMaxBias, kMaxBias));
    biases.emplace_back(*id, value.get<float>());
  }
}

// `speculative`: how many tokens may be drafted for this request. It changes the pace of an answer, never the answer, so a server that
// drafts less, or not at all, has obeyed it.
void read_speculative(JsonFields& fields, int32_t& max_draft_tokens) {
  constexpr const char* kField = "speculative";
  const Json* given = fields.get(kField);
  if (given == nullptr) return;
  if (!given->is_object()) return fields.refuse(kField, "expected an object");
  JsonFields inner(*given, "speculative.");
  const bool enabled = inner.boolean("enabled").value_or(true);
  const auto num_steps = inner.integer("num_steps", 0, sched::kMaxDraftTokens);
  if (const auto error = inner.error()) return fields.refuse(kField, error->message);
  max_draft_tokens = enabled ? static_cast<int32_t>(num_steps.value_or(sched::kMaxDraftTokens)) : 0;
}

void read_sampling(JsonFields& fields, const RequestDefaults& defaults, GenerationOptions& options) {
  auto& sampling = options.sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, kMaxTemperature).value_or(defaults.temperature));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(defaults.top_p));
  if (!(sampling.top_p > 0)) fields.refuse("top_p", "must be greater than 0");
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, INT32_MAX).value_or(defaults.top_k));
  if (sampling.top_k < 0) sampling.top_k = 0;  // -1 means off in vLLM's and SGLang's clients
  sampling.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(0));
  const auto seed = fields.integer("seed", INT64_MIN);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : draw_seed();
  sampling.has_client_seed = seed.has_value();
  const auto penalty = [&](const char* name) { return static_cast<float>(fields.number(name, -kMaxPenalty, kMaxPenalty).value_or(0)); };
  sampling.presence_penalty = penalty("presence_penalty");
  sampling.frequency_penalty = penalty("frequency_penalty");
  sampling.repetition_penalty =
      static_cast<float>(fields.number("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty).value_or(1));
  read_logit_bias(fields, defaults.vocab_size, sampling.logit_bias);
  read_speculative(fields, options.max_draft_tokens);
  fields.only("use_beam_search", false, "beam search is not supported");
  fields.only("length_penalty", 1, "it belongs to beam search, which is not supported");
  fields.only("early_stopping", false, "it belongs to beam search, which is not supported");
}

void read_stops(JsonFields& fields, const RequestDefaults& defaults, GenerationOptions& options) {
  auto& sampling = options.sampling;
  options.stop_strings = fields.strings("stop", kMaxStopStrings);
  sampling.stop_token_ids = fields.token_ids("stop_token_ids", defaults.vocab_size, kMaxStopTokenIds);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (!sampling.ignore_eos) {
    sampling.stop_token_ids.insert(sampling.stop_token_ids.end(), defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
  }
  options.min_tokens = static_cast<int32_t>(fields.integer("min_tokens", 0, INT32_MAX).value_or(0));
  fields.only("include_stop_str_in_output", false, "a stop string is not part of the text");
  // SGLang's gateway adds these two to every request.
  fields.only("no_stop_trim", false, "a stop string is not part of the text");
  fields.only("return_hidden_states", false, "hidden states are not shown");
  fields.only("bad_words", Json::array(), "not supported; use logit_bias with token ids");
  fields.only("skip_special_tokens", true, "special tokens are never shown");
  fields.boolean("spaces_between_special_tokens");  // none is shown, so there is nothing between them
}

void read_stream_options(JsonFields& fields, GenerationOptions& options) {
  options.stream = fields.boolean("stream").value_or(false);
  const Json* given = fields.get("stream_options");
  if (given == nullptr) return;
  if (!given->is_object()) return fields.refuse("stream_options", "expected an object");
  if (!options.stream) return fields.refuse("stream_options", "is allowed only with stream: true");
  JsonFields inner(*given, "stream_options.");
  options.include_usage = inner.boolean("include_usage").value_or(false);
  options.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  inner.only("include_obfuscation", false, "padding of events is not supported");
  if (const auto error = inner.error()) fields.refuse("stream_options", error->message);
}

std::string escape_regex(std::string_view text) {
  constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{}/-)";
  std::string out;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

class FormReader {
 public:
  FormReader(JsonFields& fields, AnswerForm& form) : fields_(fields), form_(form) {}

  void read() {
    response_format();
    if (const auto pattern = fields_.string("regex")) set(AnswerForm::Kind::regex, "regex", {}, *pattern);
    if (const auto pattern = fields_.string("guided_regex")) set(AnswerForm::Kind::regex, "guided_regex", {}, *pattern);
    schema("guided_json");
    schema("json_schema");
    if (const Json* given = fields_.get("guided_choice")) alternatives("guided_choice", *given);
    structured_outputs();
    for (const char* name : {"ebnf", "guided_grammar", "structural_tag"})
      fields_.only(name, Json(), "this kind of grammar is not supported; use response_format or regex");
    fields_.only("guided_decoding_backend", "auto", "the engine of grammars can't be chosen");
    fields_.only("guided_whitespace_pattern", Json(), "white space can't be chosen: it is bounded");
  }

 private:
  void set(AnswerForm::Kind kind, const std::string& field, Json schema, std::string pattern) {
    if (form_.kind != AnswerForm::Kind::free)
      return fields_.refuse(field, fmt::format("{} has set the form of the answer already; give one of them", form_.field));
    if (kind == AnswerForm::Kind::regex && pattern.empty()) return fields_.refuse(field, "is empty: no answer would match");
    form_ = {kind, std::move(schema), std::move(pattern), field};
  }

  void response_format() {
    constexpr const char* kField = "response_format";
    const Json* given = fields_.get(kField);
    if (given == nullptr) return;
    const Json type = given->is_object() ? given->value("type", Json()) : Json();
    JsonFields inner(given->is_object() ? *given : empty_, "response_format.");
    inner.get("type");
    if (type == "json_object") {
      set(AnswerForm::Kind::json_object, kField, {}, {});
    } else if (type == "json_schema") {
      const Json* format = inner.get("json_schema");
      if (format == nullptr || !format->is_object()) return fields_.refuse("response_format.json_schema", "expected an object");
      JsonFields parts(*format, "response_format.json_schema.");
      const auto name = parts.string("name");
      if (name && (name->empty() || name->size() > kMaxSchemaName))
        parts.refuse("name", fmt::format("expected 1 to {} characters", kMaxSchemaName));
      parts.string("description");
      parts.boolean("strict");  // the answer follows the schema, whether it was said to be strict or not
      const Json* schema = parts.get("schema");
      if (schema == nullptr || !schema->is_object()) parts.refuse("schema", "expected a JSON schema object");
      if (fields_.take_error(parts)) return;
      set(AnswerForm::Kind::json_schema, "response_format.json_schema.schema", *schema, {});
    } else if (type != "text") {
      return fields_.refuse(kField,
                            R"(expected {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {...}})");
    }
    fields_.take_error(inner);
  }

  // A schema as an object, or as the text of one.
  void schema(const std::string& field) {
    const Json* given = fields_.get(field);
    if (given == nullptr) return;
    set_schema(field, *given);
  }

  void set_schema(const std::string& field, const Json& given) {
    if (given.is_object()) return set(AnswerForm::Kind::json_schema, field, given, {});
    if (given.is_string()) {
      auto parsed = parse_json(given.get_ref<const std::string&>(), field);
      if (parsed && parsed->is_object()) return set(AnswerForm::Kind::json_schema, field, std::move(*parsed), {});
    }
    fields_.refuse(field, "expected a JSON schema: an object, or the text of one");
  }

  void alternatives(const std::string& field, const Json& given) {
    const auto good = [](const Json& item) { return item.is_string() && !item.get_ref<const std::string&>().empty(); };
    if (!given.is_array() || given.empty() || given.size() > kMaxAlternatives || !std::all_of(given.begin(), given.end(), good))
      return fields_.refuse(field, fmt::format("expected a list of 1 to {} strings, none empty", kMaxAlternatives));
    std::string pattern = "(";
    for (const Json& item : given) pattern += (pattern.size() > 1 ? "|" : "") + escape_regex(item.get_ref<const std::string&>());
    set(AnswerForm::Kind::regex, field, {}, pattern + ")");
  }

  // vLLM's newer form of the guided_ fields.
  void structured_outputs() {
    constexpr const char* kField = "structured_outputs";
    const Json* given = fields_.get(kField);
    if (given == nullptr) return;
    if (!given->is_object()) return fields_.refuse(kField, "expected an object");
    JsonFields inner(*given, "structured_outputs.");
    const std::string prefix = std::string(kField) + ".";
    if (const Json* schema = inner.get("json")) set_schema(prefix + "json", *schema);
    if (const auto pattern = inner.string("regex")) set(AnswerForm::Kind::regex, prefix + "regex", {}, *pattern);
    if (const Json* choice = inner.get("choice")) alternatives(prefix + "choice", *choice);
    if (inner.boolean("json_object").value_or(false)) set(AnswerForm::Kind::json_object, prefix + "json_object", {}, {});
    fields_.take_error(inner);
  }

  JsonFields& fields_;
  AnswerForm& form_;
  const Json empty_ = Json::object();
};

// What does not touch the answer, or has one neutral value.
void read_labels(JsonFields& fields) {
  // These label the answer for whoever reads logs.
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "request_id", "rid"}) fields.string(name);
  if (const Json* metadata = fields.get("metadata"); metadata != nullptr && !metadata->is_object()) {
    fields.refuse("metadata", "expected an object");
  }
  fields.only("store", false, "answers are not stored; use /v1/responses");
  fields.only("prompt_cache_retention", "in_memory", "how long prefixes are cached is the server's choice");
  fields.only("cache_salt", Json(), "the prefix cache is shared by all requests");
  if (const auto tier = fields.string("service_tier"); tier && *tier != "auto" && *tier != "default")
    fields.refuse("service_tier", "there is one tier: \"auto\" or \"default\"; use priority");
  fields.only("prompt_logprobs", Json(), "not supported; use /v1/completions with echo and logprobs");
  fields.only("truncate_prompt_tokens", Json(), "a prompt is never cut; send a shorter one");
  fields.only("allowed_token_ids", Json(), "not supported; use regex or logit_bias");
  fields.only("logits_processors", Json(), "not supported");
  fields.boolean("add_special_tokens");  // the tokenizer has none to add
  fields.only("prediction", Json(), "predicted output is not supported; drafts are the model's own");
}
}  // namespace

void read_generation(JsonFields& fields, const RequestDefaults& defaults, GenerationOptions& options) {
  options.model = fields.string("model").value_or("");
  read_sampling(fields, defaults, options);
  read_stops(fields, defaults, options);
  read_stream_options(fields, options);
  options.priority = static_cast<int32_t>(fields.integer("priority", -1'000'000, 1'000'000).value_or(0));
  options.num_choices = static_cast<int>(fields.integer("n", 1, kMaxChoices).value_or(1));
  options.token_ids = fields.boolean("return_token_ids").value_or(false);
  options.tokens_as_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  FormReader(fields, options.form).read();
  read_labels(fields);
}

}  // namespace ingot::serve
