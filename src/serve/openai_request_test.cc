// A bad field must come back as a 400 with its name, and a good one must arrive in the typed request.
#include "serve/openai_request.h"

#include <gtest/gtest.h>

#include <set>

namespace ingot::serve {
namespace {

RequestDefaults defaults() {
  return {.temperature = 0.7f,
          .top_p = 0.9f,
          .top_k = 5,
          .eos_token_ids = {90, 91},
          .vocab_size = 100,
          .context_length = 64,
          .chat_template_source = "enable_thinking reasoning_effort clear_thinking"};
}

Json with(Json base, const char* change) {
  base.update(Json::parse(change));
  return base;
}

const Json kChat = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
const Json kText = Json::parse(R"({"prompt": "hi"})");

TEST(OpenAiRequest, BadFieldOfChatIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": -1})", "temperature"},
      {R"({"temperature": true})", "temperature"},
      {R"({"temperature": 101})", "temperature"},
      {R"({"top_p": 0})", "top_p"},
      {R"({"top_p": 1.5})", "top_p"},
      {R"({"top_k": -5})", "top_k"},
      {R"({"min_p": 2})", "min_p"},
      {R"({"seed": "x"})", "seed"},
      {R"({"seed": 18446744073709551615})", "seed"},
      {R"({"stop": [1]})", "stop"},
      {R"({"stop": [""]})", "stop"},
      {R"({"stop_token_ids": [100]})", "stop_token_ids"},
      {R"({"stop_token_ids": [-1]})", "stop_token_ids"},
      {R"({"ignore_eos": 1})", "ignore_eos"},
      {R"({"max_tokens": 0})", "max_tokens"},
      {R"({"max_tokens": 1.5})", "max_tokens"},
      {R"({"max_tokens": 3, "max_completion_tokens": 4})", "max_tokens"},
      {R"({"n": 129})", "n"},
      {R"({"n": 0})", "n"},
      {R"({"n": 1.5})", "n"},
      {R"({"min_tokens": -1})", "min_tokens"},
      {R"({"min_tokens": 5, "max_tokens": 4})", "min_tokens"},
      {R"({"min_tokens": 5, "response_format": {"type": "json_object"}})", "min_tokens"},
      {R"({"bad_words": ["x"]})", "bad_words"},
      {R"({"skip_special_tokens": false})", "skip_special_tokens"},
      {R"({"include_stop_str_in_output": true})", "include_stop_str_in_output"},
      {R"({"prompt_logprobs": 1})", "prompt_logprobs"},
      {R"({"truncate_prompt_tokens": 5})", "truncate_prompt_tokens"},
      {R"({"cache_salt": "x"})", "cache_salt"},
      {R"({"service_tier": "priority"})", "service_tier"},
      {R"({"verbosity": "low"})", "verbosity"},
      {R"({"web_search_options": {}})", "web_search_options"},
      {R"({"prediction": {"type": "content", "content": "x"}})", "prediction"},
      {R"({"audio": {"voice": "x"}})", "audio"},
      {R"({"modalities": ["audio"]})", "modalities"},
      {R"({"continue_final_message": true})", "continue_final_message"},
      {R"({"add_generation_prompt": false})", "add_generation_prompt"},
      {R"({"use_beam_search": true})", "use_beam_search"},
      {R"({"echo": true})", "echo"},
      {R"({"presence_penalty": 2.1})", "presence_penalty"},
      {R"({"presence_penalty": "1"})", "presence_penalty"},
      {R"({"frequency_penalty": -2.1})", "frequency_penalty"},
      {R"({"repetition_penalty": 0})", "repetition_penalty"},
      {R"({"repetition_penalty": -1})", "repetition_penalty"},
      {R"({"repetition_penalty": 1e9})", "repetition_penalty"},
      {R"({"logit_bias": {"100": -100}})", "logit_bias"},
      {R"({"logit_bias": {"-1": 1}})", "logit_bias"},
      {R"({"logit_bias": {"07": 1}})", "logit_bias"},
      {R"({"logit_bias": {"7.0": 1}})", "logit_bias"},
      {R"({"logit_bias": {"": 1}})", "logit_bias"},
      {R"({"logit_bias": {"99999999999999999999": 1}})", "logit_bias"},
      {R"({"logit_bias": {"7": 100.5}})", "logit_bias"},
      {R"({"logit_bias": {"7": "1"}})", "logit_bias"},
      {R"({"logit_bias": [7]})", "logit_bias"},
      {R"({"speculative": true})", "speculative"},
      {R"({"speculative": {"enabled": 1}})", "speculative"},
      {R"({"speculative": {"num_steps": 9}})", "speculative"},
      {R"({"speculative": {"num_steps": -1}})", "speculative"},
      {R"({"speculative": {"topk": 2}})", "speculative"},
      {R"({"logprobs": "yes"})", "logprobs"},
      {R"({"top_logprobs": 3})", "top_logprobs"},
      {R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs"},
      {R"({"stream": "x"})", "stream"},
      {R"({"stream_options": {"include_usage": true}})", "stream_options"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"tools": {}})", "tools"},
      {R"({"tools": [{"type": "function"}]})", "tools[0].function"},
      {R"({"tools": [{"type": "x"}]})", "tools[0].type"},
      {R"({"tools": [{"type": "function", "function": {"name": "a b"}}]})", "tools[0].function.name"},
      {R"({"tool_choice": "required"})", "tool_choice"},
      {R"({"tool_choice": "auto"})", "tool_choice"},
      {R"({"tool_choice": "sometimes"})", "tool_choice"},
      {R"({"tool_choice": {"type": "function", "function": {"name": "x"}}})", "tool_choice"},
      {R"({"parallel_tool_calls": 1})", "parallel_tool_calls"},
      {R"({"response_format": "json"})", "response_format"},
      {R"({"response_format": {"type": "yaml"}})", "response_format"},
      {R"({"response_format": {"type": "json_object", "schema": {}}})", "response_format.schema"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format.json_schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}})", "response_format.json_schema.schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}})", "response_format.json_schema.name"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}})", "response_format.json_schema.strict"},
      {R"({"regex": ""})", "regex"},
      {R"({"regex": "a", "response_format": {"type": "json_object"}})", "regex"},
      {R"({"guided_json": "{"})", "guided_json"},
      {R"({"guided_choice": []})", "guided_choice"},
      {R"({"guided_grammar": "root ::= x"})", "guided_grammar"},
      {R"({"ebnf": "root ::= x"})", "ebnf"},
      {R"({"structured_outputs": {"grammar": "x"}})", "structured_outputs.grammar"},
      {R"({"enable_thinking": "no"})", "enable_thinking"},
      {R"({"enable_thinking": true, "reasoning_effort": "none"})", "reasoning_effort"},
      {R"({"thinking": {"type": "perhaps"}})", "thinking.type"},
      {R"({"thinking": {"type": "disabled"}, "enable_thinking": true})", "thinking"},
      {R"({"thinking_budget": -1})", "thinking_budget"},
      {R"({"thinking_budget": 5, "thinking_token_budget": 6})", "thinking_token_budget"},
      {R"({"separate_reasoning": false, "include_reasoning": false})", "include_reasoning"},
      {R"({"reasoning_effort": "enormous"})", "reasoning_effort"},
      {R"({"chat_template_kwargs": {"enable_thinking": "no"}})", "chat_template_kwargs.enable_thinking"},
      {R"({"chat_template_kwargs": {"unheard_of": 1}})", "chat_template_kwargs.unheard_of"},
      {R"({"chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "none"})", "reasoning_effort"},
      {R"({"store": true})", "store"},
      {R"({"metadata": 3})", "metadata"},
      {R"({"a_field_nobody_knows": 1})", "a_field_nobody_knows"}};
  for (const auto& [change, param] : cases) {
    const auto parsed = parse_chat_request(with(kChat, change), defaults());
    ASSERT_FALSE(parsed.has_value()) << change;
    EXPECT_EQ(parsed.error().param, param) << change;
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_FALSE(parsed.error().message.empty());
  }
}

TEST(OpenAiRequest, NullMeansAbsentAndDefaultsAreTheModels) {
  const auto parsed = parse_chat_request(
      with(kChat, R"({"temperature": null, "n": null, "stop": null, "tools": null, "logprobs": null, "stream_options": null})"),
      defaults());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const auto& sampling = parsed->options.sampling;
  EXPECT_EQ(sampling.temperature, 0.7f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.max_tokens, 0);
  EXPECT_EQ(sampling.top_logprobs, -1);
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{90, 91}));
}

TEST(OpenAiRequest, FieldsArriveInTheTypedRequest) {
  const auto parsed = parse_chat_request(
      with(kChat, R"({"temperature": 0, "top_k": -1, "seed": 42, "stop": "x", "stop_token_ids": [7], "ignore_eos": true, "stream": true,
                      "stream_options": {"include_usage": true}, "logprobs": true, "max_completion_tokens": 9, "reasoning_effort": "medium"})"),
      defaults());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const auto& sampling = parsed->options.sampling;
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.seed, 42u);
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{7}));
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.top_logprobs, 0);
  EXPECT_TRUE(parsed->options.include_usage);
  EXPECT_EQ(parsed->options.stop_strings, (std::vector<std::string>{"x"}));
  EXPECT_EQ(parsed->template_kwargs, Json({{"reasoning_effort", "high"}}));
}

TEST(OpenAiRequest, PenaltiesBiasesAndDraftsArriveInTheTypedRequest) {
  const auto parsed =
      parse_completion_request(with(kText, R"({"presence_penalty": -2, "frequency_penalty": 0.5, "repetition_penalty": 1.25, "seed": -1,
                      "logit_bias": {"7": -100, "0": 0.5, "99": 100}, "speculative": {"num_steps": 3}})"),
                               defaults());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const auto& sampling = parsed->options.sampling;
  EXPECT_EQ(sampling.presence_penalty, -2.0f);
  EXPECT_EQ(sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(std::set(sampling.logit_bias.begin(), sampling.logit_bias.end()),
            (std::set<std::pair<int32_t, float>>{{0, 0.5f}, {7, -100.0f}, {99, 100.0f}}));
  EXPECT_TRUE(sampling.has_client_seed);
  EXPECT_EQ(parsed->options.max_draft_tokens, 3);

  const auto plain =
      parse_completion_request(with(kText, R"({"logit_bias": {}, "presence_penalty": null, "speculative": {}})"), defaults());
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  EXPECT_TRUE(plain->options.sampling.logit_bias.empty());
  EXPECT_EQ(plain->options.sampling.repetition_penalty, 1.0f);
  EXPECT_FALSE(plain->options.sampling.has_client_seed);
  EXPECT_EQ(plain->options.max_draft_tokens, sched::kMaxDraftTokens);
  for (const char* off : {R"({"speculative": {"enabled": false}})", R"({"speculative": {"enabled": false, "num_steps": 5}})",
                          R"({"speculative": {"num_steps": 0}})"}) {
    EXPECT_EQ(parse_completion_request(with(kText, off), defaults())->options.max_draft_tokens, 0) << off;
  }
}

TEST(OpenAiRequest, AnUnknownFieldWithinSpeculativeIsNamed) {
  const auto parsed = parse_chat_request(with(kChat, R"({"speculative": {"topk": 2}})"), defaults());
  EXPECT_NE(parsed.error().message.find("speculative.topk"), std::string::npos) << parsed.error().message;
}

TEST(OpenAiRequest, ABiasOfAThousandTokensIsTakenAndOfMoreRefused) {
  RequestDefaults large = defaults();
  large.vocab_size = 5000;
  Json bias = Json::object();
  for (int id = 0; id < 1024; ++id) bias[std::to_string(id)] = 1;
  EXPECT_EQ(parse_completion_request({{"prompt", "hi"}, {"logit_bias", bias}}, large)->options.sampling.logit_bias.size(), 1024u);
  bias["1024"] = 1;
  EXPECT_EQ(parse_completion_request({{"prompt", "hi"}, {"logit_bias", bias}}, large).error().param, "logit_bias");
}

const char* const kTwoTools = R"({"tools": [
  {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}, {"type": "function", "function": {"name": "b"}}]})";

TEST(OpenAiRequest, ToolChoiceSaysWhatMayBeCalled) {
  using Kind = ToolChoice::Kind;
  struct Case {
    const char* change;
    Kind kind;
    size_t callable;
    bool constrained;
  };
  const Case cases[] = {{"{}", Kind::automatic, 2, false},
                        {R"({"tool_choice": "auto"})", Kind::automatic, 2, false},
                        {R"({"tool_choice": "none"})", Kind::none, 0, false},
                        {R"({"tool_choice": "required"})", Kind::required, 2, true},
                        {R"({"tool_choice": {"type": "function", "function": {"name": "b"}}})", Kind::named, 1, true},
                        {R"({"parallel_tool_calls": false})", Kind::automatic, 2, true},
                        {R"({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
         {"type": "function", "function": {"name": "b"}}]}}})",
                         Kind::automatic, 1, true},
                        {R"({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
         {"type": "function", "function": {"name": "b"}}, {"type": "function", "function": {"name": "b"}}]}}})",
                         Kind::required, 1, true}};
  for (const Case& c : cases) {
    const auto parsed = parse_chat_request(with(with(kChat, kTwoTools), c.change), defaults());
    ASSERT_TRUE(parsed.has_value()) << c.change << parsed.error().message;
    EXPECT_EQ(parsed->tool_choice.kind, c.kind) << c.change;
    EXPECT_EQ(parsed->tool_choice.callable.size(), c.callable) << c.change;
    EXPECT_EQ(parsed->tool_choice.constrained, c.constrained) << c.change;
    EXPECT_EQ(parsed->tools.size(), c.kind == Kind::none ? 0u : 2u) << c.change;
  }
  for (const char* bad : {R"({"tool_choice": {"type": "function", "function": {"name": "c"}}})", R"({"tool_choice": {"type": "function"}})",
                          R"({"tool_choice": {"type": "allowed_tools"}})",
                          R"({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]}}})"}) {
    const auto parsed = parse_chat_request(with(with(kChat, kTwoTools), bad), defaults());
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().param, "tool_choice") << bad;
  }
}

TEST(OpenAiRequest, OneStrictToolMakesCallsConstrained) {
  const auto parsed = parse_chat_request(
      with(kChat, R"({"tools": [{"type": "function", "function": {"name": "a", "strict": true, "parameters": {"type": "object"}}}]})"),
      defaults());
  ASSERT_TRUE(parsed.has_value());
  EXPECT_TRUE(parsed->tool_choice.constrained);
  EXPECT_EQ(parsed->tool_choice.kind, ToolChoice::Kind::automatic);
}

TEST(OpenAiRequest, TheFormOfAnAnswerHasOneFieldUnderManyNames) {
  using Kind = AnswerForm::Kind;
  struct Case {
    const char* change;
    Kind kind;
    const char* field;
    const char* pattern;
  };
  const Case cases[] = {
      {R"({"response_format": {"type": "text"}})", Kind::free, "", ""},
      {R"({"response_format": {"type": "json_object"}})", Kind::json_object, "response_format", ""},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "object"}}}})",
       Kind::json_schema, "response_format.json_schema.schema", ""},
      {R"({"regex": "a+"})", Kind::regex, "regex", "a+"},
      {R"({"guided_regex": "a+"})", Kind::regex, "guided_regex", "a+"},
      {R"({"guided_json": {"type": "object"}})", Kind::json_schema, "guided_json", ""},
      {R"({"json_schema": "{\"type\": \"object\"}"})", Kind::json_schema, "json_schema", ""},
      {R"({"guided_choice": ["a.b", "c|d"]})", Kind::regex, "guided_choice", R"((a\.b|c\|d))"},
      {R"({"structured_outputs": {"json": {"type": "object"}}})", Kind::json_schema, "structured_outputs.json", ""},
      {R"({"structured_outputs": {"choice": ["yes", "no"]}})", Kind::regex, "structured_outputs.choice", "(yes|no)"}};
  for (const Case& c : cases) {
    for (const bool chat : {true, false}) {
      AnswerForm form;
      if (chat) {
        form = parse_chat_request(with(kChat, c.change), defaults()).value().options.form;
      } else {
        form = parse_completion_request(with(kText, c.change), defaults()).value().options.form;
      }
      EXPECT_EQ(form.kind, c.kind) << c.change;
      EXPECT_EQ(form.field, c.field) << c.change;
      EXPECT_EQ(form.pattern, c.pattern) << c.change;
      if (c.kind == Kind::json_schema) {
        EXPECT_EQ(form.schema, Json::parse(R"({"type": "object"})")) << c.change;
      }
    }
  }
}

// B27
TEST(OpenAiRequest, ThinkingCouldNotBeSwitchedOffByTheNamesThatClientsUse) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"enable_thinking": false})", R"({"enable_thinking": false})"},
      {R"({"thinking": {"type": "disabled"}})", R"({"enable_thinking": false})"},
      {R"({"thinking": {"type": "enabled", "clear_thinking": false}})", R"({"enable_thinking": true, "clear_thinking": false})"},
      {R"({"reasoning_effort": "none"})", R"({"enable_thinking": false})"},
      {R"({"reasoning_effort": "minimal"})", R"({"enable_thinking": false})"},
      {R"({"reasoning_effort": "low"})", R"({"reasoning_effort": "high"})"},
      {R"({"reasoning_effort": "medium"})", R"({"reasoning_effort": "high"})"},
      {R"({"reasoning_effort": "high"})", R"({"reasoning_effort": "high"})"},
      {R"({"reasoning_effort": "xhigh"})", R"({"reasoning_effort": "max"})"},
      {R"({"reasoning_effort": "max"})", R"({"reasoning_effort": "max"})"},
      {R"({"chat_template_kwargs": {"enable_thinking": false, "clear_thinking": null}})", R"({"enable_thinking": false})"},
      {R"({"chat_template_kwargs": {"reasoning_effort": "none"}, "enable_thinking": false})", R"({"enable_thinking": false})"}};
  for (const auto& [change, kwargs] : cases) {
    const auto parsed = parse_chat_request(with(kChat, change), defaults());
    ASSERT_TRUE(parsed.has_value()) << change << parsed.error().message;
    EXPECT_EQ(nlohmann::json(parsed->template_kwargs), nlohmann::json::parse(kwargs)) << change;
  }
}

TEST(OpenAiRequest, TheServersOwnTemplateKwargsGiveWayToTheRequests) {
  RequestDefaults off = defaults();
  off.template_kwargs = parse_template_kwargs(Json::parse(R"({"enable_thinking": false})"), off).value();
  const auto kwargs = [&](const char* change) { return parse_chat_request(with(kChat, change), off).value().template_kwargs; };
  EXPECT_EQ(kwargs("{}"), Json::parse(R"({"enable_thinking": false})"));
  EXPECT_EQ(kwargs(R"({"enable_thinking": true})"), Json::parse(R"({"enable_thinking": true})"));
  EXPECT_EQ(kwargs(R"({"reasoning_effort": "high"})"), Json::parse(R"({"reasoning_effort": "high"})"));
  EXPECT_EQ(parse_template_kwargs(Json::parse(R"({"reasoning_effort": "none"})"), off).value(),
            Json::parse(R"({"enable_thinking": false})"));
  for (const char* bad : {R"({"unheard_of": 1})", R"({"enable_thinking": 1})", R"({"thinking_budget": 5})", "[]"})
    EXPECT_FALSE(parse_template_kwargs(Json::parse(bad), off).has_value()) << bad;
}

TEST(OpenAiRequest, AThinkingBudgetHasManyNames) {
  for (const char* change :
       {R"({"thinking_budget": 7})", R"({"thinking_token_budget": 7})", R"({"thinking": {"type": "enabled", "budget_tokens": 7}})",
        R"({"chat_template_kwargs": {"thinking_budget": 7}})"}) {
    const auto parsed = parse_chat_request(with(kChat, change), defaults());
    ASSERT_TRUE(parsed.has_value()) << change << parsed.error().message;
    EXPECT_EQ(parsed->options.thinking_budget, 7) << change;
    EXPECT_FALSE(parsed->template_kwargs.contains("thinking_budget"));
  }
}

TEST(OpenAiRequest, NeutralValuesOfFieldsThatDoNothingAreTaken) {
  const auto parsed = parse_chat_request(
      with(kChat, R"({"n": 1, "seed": null, "service_tier": "auto", "verbosity": "medium", "modalities": ["text"], "store": false,
                      "skip_special_tokens": true, "spaces_between_special_tokens": false, "include_stop_str_in_output": false,
                      "add_generation_prompt": true, "continue_final_message": false, "bad_words": [], "length_penalty": 1.0,
                      "cache_salt": null, "audio": null, "prediction": null, "user": "u", "prompt_cache_key": "k", "echo": false,
                      "separate_reasoning": true, "include_reasoning": true, "stream_reasoning": true, "documents": [],
                      "parallel_tool_calls": true, "functions": [], "function_call": "none", "min_tokens": 0, "use_beam_search": false})"),
      defaults());
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
}

TEST(OpenAiRequest, EchoAndScoringSetWhatIsAskedOfThePrompt) {
  const auto plain = parse_completion_request(with(kText, R"({"echo": true})"), defaults()).value();
  EXPECT_TRUE(plain.echo);
  EXPECT_EQ(plain.options.sampling.prompt_logprobs, -1);
  const auto scored = parse_completion_request(with(kText, R"({"echo": true, "logprobs": 3, "max_tokens": 0})"), defaults()).value();
  EXPECT_TRUE(scored.options.score_only);
  EXPECT_EQ(scored.options.sampling.max_tokens, 0);
  EXPECT_EQ(scored.options.sampling.prompt_logprobs, 3);
  EXPECT_EQ(parse_completion_request(with(kText, R"({"max_tokens": 0})"), defaults()).error().param, "max_tokens");
  EXPECT_EQ(parse_completion_request(with(kText, R"({"suffix": "x"})"), defaults()).error().param, "suffix");
}

TEST(OpenAiRequest, SeveralPromptsMayBeTextsOrIds) {
  using Prompt = CompletionRequest::Prompt;
  const auto prompts = [](const char* body) { return parse_completion_request(Json::parse(body), defaults()).value().prompts; };
  EXPECT_EQ(prompts(R"({"prompt": ["a", "b"]})"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts(R"({"prompt": [[1, 2], [3]]})"), (std::vector<Prompt>{std::vector<int32_t>{1, 2}, std::vector<int32_t>{3}}));
  for (const char* bad : {R"({"prompt": ["a", ""]})", R"({"prompt": [[1], []]})", R"({"prompt": [[1], [100]]})", R"({"prompt": [1, "a"]})",
                          R"({"prompt": [1, [1]]})", R"({"prompt": [true]})", R"({"prompt": ["a", null]})", R"({"prompt": ["a", [1]]})"}) {
    EXPECT_EQ(parse_completion_request(Json::parse(bad), defaults()).error().param, "prompt") << bad;
  }
  Json many{{"prompt", Json::array()}, {"n", 2}};
  for (int i = 0; i < 64; ++i) many["prompt"].push_back("x");
  EXPECT_TRUE(parse_completion_request(many, defaults()).has_value());
  many["prompt"].push_back("x");
  EXPECT_EQ(parse_completion_request(many, defaults()).error().param, "prompt");
}

TEST(OpenAiRequest, PromptMayBeTextIdsOrAListOfOne) {
  for (const char* prompt : {R"({"prompt": "hi"})", R"({"prompt": ["hi"]})"}) {
    const auto parsed = parse_completion_request(Json::parse(prompt), defaults());
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->prompts.size(), 1u);
    EXPECT_EQ(std::get<std::string>(parsed->prompts[0]), "hi");
    EXPECT_EQ(parsed->options.sampling.max_tokens, 16);
  }
  for (const char* prompt : {R"({"prompt": [1, 2]})", R"({"prompt": [[1, 2]]})"}) {
    const auto parsed = parse_completion_request(Json::parse(prompt), defaults());
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->prompts.size(), 1u);
    EXPECT_EQ(std::get<1>(parsed->prompts[0]), (std::vector<int32_t>{1, 2}));
  }
  for (const char* bad : {R"({"prompt": ""})", R"({"prompt": [100]})", R"({"prompt": []})", R"({"prompt": 3})", "{}"}) {
    const auto parsed = parse_completion_request(Json::parse(bad), defaults());
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().param, "prompt") << bad;
  }
  EXPECT_EQ(parse_completion_request(with(kText, R"({"best_of": 2})"), defaults()).error().param, "best_of");
  EXPECT_EQ(parse_completion_request(with(kText, R"({"best_of": 2, "n": 2})"), defaults()).value().options.num_choices, 2);
}

}  // namespace
}  // namespace ingot::serve
