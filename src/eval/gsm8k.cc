#include "eval/gsm8k.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file_map.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 28;
constexpr size_t kShots = 5;

struct Problem {
  std::string question, answer;
};

struct RuleFacts {
  std::string_view name, version, about, first_mark;
  int64_t max_tokens;
  std::vector<std::string> stops;
};

// The facts: ../shared/data/README.md section 1, and InferenceX' utils/evals/gsm8k.yaml at 2e4fffc1.
RuleFacts facts_of(Gsm8kRule rule) {
  switch (rule) {
    case Gsm8kRule::lm_eval:
      return {
          "lm-eval",
          "lm-eval-3.0",
          "raw completion, 5 shots of train drawn for each question (seed 1234); strict: the first `#### N`, flexible: the last number; "
          "exact match without commas, dollar signs and a last dot",
          "strict",
          256,
          {"Question:", "</s>", "<|im_end|>"}};
    case Gsm8kRule::sglang:
      return {"sglang",
              "sglang-few-shot",
              "raw completion, the first 5 of test as shots and the first 200 of test as questions (the shots are among them); the last "
              "digits, without sign and decimals",
              "",
              512,
              {"Question", "Assistant:", "<|separator|>"}};
    case Gsm8kRule::vllm:
      return {"vllm",
              "vllm-tests-evals",
              "raw completion, the first 5 of train as shots; the last digits, without sign and decimals",
              "",
              256,
              {"Question", "Assistant:", "<|separator|>"}};
    case Gsm8kRule::inferencex:
      return {"inferencex",
              "inferencex-lm-eval-3.0",
              "raw completion, 5 shots of train drawn for each question (seed 1234), each asking for `#### [number]` on the last line; "
              "strict: the last `#### N`, flexible: the last number",
              "strict",
              256,
              {"</s>", "<|im_end|>",
               "<\xEF\xBD\x9C"
               "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
               "<\xEF\xBD\x9CUser\xEF\xBD\x9C>",
               "<\xEF\xBD\x9C"
               "Assistant\xEF\xBD\x9C>",
               "\xE2\x80\xAE"}};
    case Gsm8kRule::chat: break;
  }
  return {"chat",
          "ingot-chat-1",
          "one user message without shots through the chat template, asking for `#### [number]` on the last line; thoughts are not read; "
          "flexible: the last number, strict: the last `#### N`",
          "flexible",
          16384,
          {}};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_figure(char c) { return is_digit(c) || c == '.' || c == ','; }

size_t run_length(std::string_view text, size_t from, bool (*accept)(char)) {
  size_t end = from;
  while (end < text.size() && accept(text[end])) ++end;
  return end - from;
}

Result<std::vector<Problem>> read_problems(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::vector<Json> lines, read_objects(path));
  std::vector<Problem> problems;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}:{}", path.string(), i + 1);
    INGOT_ASSIGN(std::string question, string_member(lines[i], "question", where));
    INGOT_ASSIGN(std::string answer, string_member(lines[i], "answer", where));
    if (gsm8k_strict(answer, false).empty()) return fail("{}: `answer` has no line `#### N`", where);
    problems.push_back({std::move(question), std::move(answer)});
  }
  return problems;
}

// Line numbers of train, 5 for each question of test.
Result<std::vector<std::vector<size_t>>> read_shot_indices(const std::filesystem::path& path, size_t num_train) {
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxFile));
  INGOT_ASSIGN(const Json json, parse_json(text, path.string()));
  if (!json.is_object() || !json.contains("indices") || !json["indices"].is_array()) return fail("{}: no list `indices`", path.string());
  std::vector<std::vector<size_t>> all;
  for (const Json& row : json["indices"]) {
    std::vector<size_t> shots;
    for (const Json& index : row) {
      if (!index.is_number_unsigned() || index.get<size_t>() >= num_train)
        return fail("{}: row {}: {} is no line of train.jsonl, which has {}", path.string(), all.size(), index.dump(), num_train);
      shots.push_back(index.get<size_t>());
    }
    all.push_back(std::move(shots));
  }
  return all;
}

std::string ask(Gsm8kRule rule, const std::string& question) {
  const char* request =
      rule == Gsm8kRule::inferencex ? "\nEnd your response with the answer on the last line, formatted as: #### [number]" : "";
  return fmt::format("Question: {}{}\nAnswer:", question, request);
}

std::string few_shot_prompt(Gsm8kRule rule, const std::vector<Problem>& from, const std::vector<size_t>& shots, const Problem& problem) {
  std::string prompt;
  for (const size_t shot : shots) prompt += ask(rule, from[shot].question) + " " + from[shot].answer + "\n\n";
  return prompt + ask(rule, problem.question);
}

Score score_digits(const std::string& gold, std::string_view text) {
  Score score;
  score.extracted = gsm8k_last_digits(text);
  score.no_answer = score.extracted.empty();
  score.ok = !score.no_answer && score.extracted == gold;
  return score;
}

Score score_lm_eval(const std::string& gold, std::string_view text, Gsm8kRule rule) {
  const std::string strict = gsm8k_strict(text, rule != Gsm8kRule::lm_eval), flexible = gsm8k_flexible(text);
  const auto right = [&](const std::string& found) { return !found.empty() && gsm8k_normalized(found) == gold; };
  const bool chat = rule == Gsm8kRule::chat;
  Score score;
  score.extracted = chat ? flexible : strict;
  score.no_answer = score.extracted.empty();
  score.ok = right(score.extracted);
  score.marks.emplace_back(chat ? "strict" : "flexible", right(chat ? strict : flexible));
  return score;
}

}  // namespace

std::string gsm8k_strict(std::string_view text, bool last) {
  constexpr std::string_view kMark = "#### ";
  std::string found;
  for (size_t at = text.find(kMark); at != std::string_view::npos;) {
    const size_t begin = at + kMark.size(), sign = begin < text.size() && text[begin] == '-' ? 1 : 0;
    const size_t figures = run_length(text, begin + sign, is_figure);
    if (figures > 0) {
      found = text.substr(begin, sign + figures);
      if (!last) return found;
    }
    // A match that failed may be followed by one that begins inside it ("##### 5").
    at = text.find(kMark, figures > 0 ? begin + sign + figures : at + 1);
  }
  return found;
}

std::string gsm8k_flexible(std::string_view text) {
  std::string found;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = text[at] == '-' ? 1 : 0;
    size_t length = run_length(text, at + sign, [](char c) { return is_figure(c) || c == '$'; });
    if (length < 2) length = run_length(text, at + sign, is_digit);
    if (length == 0) {
      ++at;
      continue;
    }
    found = text.substr(at, sign + length);
    at += sign + length;
  }
  return found;
}

std::string gsm8k_last_digits(std::string_view text) {
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
  size_t end = plain.size();
  while (end > 0 && !is_digit(plain[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && is_digit(plain[begin - 1])) --begin;
  std::string digits = plain.substr(begin, end - begin);
  // Both harnesses read it as a Python literal: zeros are zero, but 05 is no number.
  const bool zeros = digits.find_first_not_of('0') == std::string::npos;
  if (digits.size() > 1 && digits[0] == '0') return zeros ? "0" : "";
  return digits;
}

std::string gsm8k_normalized(std::string_view text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != ',' && c != '$'; });
  if (const size_t mark = plain.rfind("#### "); mark != std::string::npos) plain.erase(0, mark + 5);
  // Python's `\.$`: the end of the text, or before a line end that is its last byte.
  if (plain.ends_with('.') || plain.ends_with(".\n")) plain.erase(plain.rfind('.'), 1);
  std::transform(plain.begin(), plain.end(), plain.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return plain;
}

Result<Gsm8kRule> parse_gsm8k_rule(std::string_view name) {
  for (const auto rule : {Gsm8kRule::lm_eval, Gsm8kRule::sglang, Gsm8kRule::vllm, Gsm8kRule::inferencex, Gsm8kRule::chat})
    if (facts_of(rule).name == name) return rule;
  return fail_hint("use lm-eval, sglang, vllm, inferencex or chat", "--rule {} is unknown", name);
}

Result<Task> make_gsm8k(const Gsm8kOptions& options) {
  const Gsm8kRule rule = options.rule;
  const RuleFacts facts = facts_of(rule);
  if (options.enable_thinking && rule != Gsm8kRule::chat)
    return fail_hint("use --rule chat", "--enable-thinking: rule {} is raw completion, which has no chat template", facts.name);
  INGOT_ASSIGN(const std::vector<Problem> test, read_problems(options.data / "test.jsonl"));
  std::vector<Problem> train;
  std::vector<std::vector<size_t>> drawn;
  if (rule != Gsm8kRule::sglang && rule != Gsm8kRule::chat) {
    INGOT_ASSIGN(train, read_problems(options.data / "train.jsonl"));
    if (rule != Gsm8kRule::vllm) {
      INGOT_ASSIGN(drawn, read_shot_indices(options.data / "lm_eval_fewshot_indices.json", train.size()));
      if (drawn.size() < test.size()) return fail("lm_eval_fewshot_indices.json has {} rows for {} questions", drawn.size(), test.size());
    }
  }
  const std::vector<Problem>& shots_from = rule == Gsm8kRule::sglang ? test : train;
  const std::vector<size_t> first_shots = {0, 1, 2, 3, 4};
  if (rule != Gsm8kRule::chat && shots_from.size() < kShots)
    return fail("{}: fewer than {} problems for shots", options.data.string(), kShots);

  Task task;
  task.name = "gsm8k", task.rule = facts.version, task.about = facts.about, task.first_mark = facts.first_mark;
  const size_t count = rule == Gsm8kRule::sglang ? std::min<size_t>(200, test.size()) : test.size();
  const bool digits = rule == Gsm8kRule::sglang || rule == Gsm8kRule::vllm;
  for (size_t i = 0; i < count; ++i) {
    Question q;
    q.id = fmt::format("gsm8k-{}", i);
    const Problem& problem = test[i];
    q.key = digits ? gsm8k_last_digits(problem.answer) : gsm8k_normalized(problem.answer);
    if (rule == Gsm8kRule::chat) {
      q.path = "/v1/chat/completions";
      const std::string text = problem.question + "\nEnd your response with the answer on the last line, formatted as: #### [number]";
      q.body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
      if (options.enable_thinking) q.body["chat_template_kwargs"] = {{"enable_thinking", *options.enable_thinking}};
    } else {
      q.path = "/v1/completions";
      q.body["prompt"] = few_shot_prompt(rule, shots_from, drawn.empty() ? first_shots : drawn[i], problem);
      // Servers of OpenAI's API take four stops; ours and the usual ones take more.
      q.body["stop"] = facts.stops;
    }
    q.body["temperature"] = 0;
    q.body["max_tokens"] = options.max_tokens > 0 ? options.max_tokens : facts.max_tokens;
    if (rule == Gsm8kRule::vllm) q.body["seed"] = 42;
    task.questions.push_back(std::move(q));
  }
  task.score = [rule, digits](const Question& q, const Answer& answer) {
    const std::string& gold = q.key.get_ref<const std::string&>();
    const std::string_view text = rule == Gsm8kRule::chat ? after_thoughts(answer.content) : std::string_view(answer.content);
    return digits ? score_digits(gold, text) : score_lm_eval(gold, text, rule);
  };
  return task;
}

}  // namespace ingot::eval
