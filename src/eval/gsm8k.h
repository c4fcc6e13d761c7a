// GSM8K (openai/grade-school-math): 1,319 word problems whose answers are integers, under the rules that published figures use. Each rule
// is a prompt, a set of shots, stops and a way to read the answer; figures of different rules are not comparable.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "eval/task.h"

namespace ingot::eval {

enum class Gsm8kRule {
  lm_eval,     // lm-evaluation-harness `gsm8k` 3.0: raw completion, 5 shots drawn anew for each question, strict and flexible
  sglang,      // sglang's few_shot_gsm8k: shots and questions both from the test file (the 5 shots are among the 200 questions)
  vllm,        // vLLM's tests/evals/gsm8k: shots are the first 5 of train
  inferencex,  // InferenceX' yaml: lm-eval with a request for "#### [number]", the last one counts
  chat,        // one user message without shots, through the chat template; thoughts are not read
};

struct Gsm8kOptions {
  std::filesystem::path data;  // folder: test.jsonl; train.jsonl and lm_eval_fewshot_indices.json for the rules with shots from train
  Gsm8kRule rule = Gsm8kRule::lm_eval;
  int64_t max_tokens = 0;               // 0: the rule's (lm-eval 256, sglang 512, vllm 256, inferencex 256, chat 16384)
  std::optional<bool> enable_thinking;  // chat alone: chat_template_kwargs
};

Result<Gsm8kRule> parse_gsm8k_rule(std::string_view name);
// All questions of the rule: 1,319, or sglang's 200. Errors name the file and line.
Result<Task> make_gsm8k(const Gsm8kOptions& options);

// The rules' reading of an answer; "" where there is none.
std::string gsm8k_strict(std::string_view text, bool last);  // after "#### ": the first match, or the last
std::string gsm8k_flexible(std::string_view text);           // the last thing that looks like a number, "..." included
std::string gsm8k_last_digits(std::string_view text);        // the last digits once commas are gone; neither sign nor decimals
// lm-eval's exact_match: what of both sides is compared.
std::string gsm8k_normalized(std::string_view text);

}  // namespace ingot::eval
