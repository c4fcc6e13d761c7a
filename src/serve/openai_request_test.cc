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
      {R"({"n": 2})", "n"},
      {R"({"n": 0})", "n"},
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
      {R"({"parallel_tool_calls": false})", "parallel_tool_calls"},
      {R"({"response_format": {"type": "json_object"}})", "response_format"},
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

TEST(OpenAiRequest, PromptMayBeTextIdsOrAListOfOne) {
  for (const char* prompt : {R"({"prompt": "hi"})", R"({"prompt": ["hi"]})"}) {
    const auto parsed = parse_completion_request(Json::parse(prompt), defaults());
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(std::get<std::string>(parsed->prompt), "hi");
    EXPECT_EQ(parsed->options.sampling.max_tokens, 16);
  }
  for (const char* prompt : {R"({"prompt": [1, 2]})", R"({"prompt": [[1, 2]]})"}) {
    const auto parsed = parse_completion_request(Json::parse(prompt), defaults());
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(std::get<1>(parsed->prompt), (std::vector<int32_t>{1, 2}));
  }
  for (const char* bad :
       {R"({"prompt": ""})", R"({"prompt": [100]})", R"({"prompt": ["a", "b"]})", R"({"prompt": []})", R"({"prompt": 3})", "{}"}) {
    const auto parsed = parse_completion_request(Json::parse(bad), defaults());
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().param, "prompt") << bad;
  }
  EXPECT_EQ(parse_completion_request(with(kText, R"({"echo": true})"), defaults()).error().param, "echo");
  EXPECT_EQ(parse_completion_request(with(kText, R"({"best_of": 2})"), defaults()).error().param, "best_of");
}

}  // namespace
}  // namespace ingot::serve
