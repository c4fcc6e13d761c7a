// Cost of a grammar, in processor time: compiling it, and one token of an answer (mask, its application to the logits, the step behind).
//   build/release/grammar_bench TOKENIZER_JSON VOCAB_SIZE
// Answers are drawn at random among the allowed tokens, so the walk sees states that a model rarely visits.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string>
#include <vector>

#include "base/rng.h"
#include "serve/grammar_constraint.h"

namespace {

using namespace ingot;

double cpu_ms(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::string object_of_strings(int num_properties) {
  Json schema = {{"type", "object"}};
  for (int i = 0; i < num_properties; ++i) schema["properties"][fmt::format("p{}", i)] = {{"type", "string"}};
  return schema.dump();
}

void measure(text::GrammarCompiler& compiler, const serve::AnswerTokens& tokens, int64_t vocab_size, const char* name,
             const std::string& schema) {
  const double started = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
  const auto grammar = compiler.json_schema(Json::parse(schema), name);
  const double compiled = cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - started;
  if (!grammar) return fmt::print("{}: {}\n", name, grammar.error().text());
  Rng rng(5);
  std::vector<double> steps;
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  for (int answer = 0; answer < 20; ++answer) {
    const auto constraint =
        serve::make_constraint(tokens, {.grammar = *grammar, .starts_in_reasoning = false, .thinking_budget = {}}).value();
    for (int step = 0; step < 60; ++step) {
      std::fill(logits.begin(), logits.end(), 0.0f);
      const double before = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
      constraint->restrict(logits);
      double spent = cpu_ms(CLOCK_THREAD_CPUTIME_ID) - before;
      std::vector<int32_t> may;
      for (size_t i = 0; i < logits.size(); ++i) {
        if (!std::isinf(logits[i])) may.push_back(static_cast<int32_t>(i));
      }
      const int32_t token = may[rng.below(may.size())];
      const double middle = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
      constraint->on_token(token);
      spent += cpu_ms(CLOCK_THREAD_CPUTIME_ID) - middle;
      steps.push_back(spent * 1e3);
      if (std::find(tokens.stop_token_ids.begin(), tokens.stop_token_ids.end(), token) != tokens.stop_token_ids.end()) break;
    }
  }
  std::sort(steps.begin(), steps.end());
  double sum = 0;
  for (const double step : steps) sum += step;
  fmt::print("{:32} compile {:8.1f} ms {:7} kB   a token: mean {:7.1f} us, median {:7.1f}, p99 {:7.1f} ({} tokens)\n", name, compiled,
             (*grammar)->memory_bytes() / 1024, sum / static_cast<double>(steps.size()), steps[steps.size() / 2],
             steps[steps.size() * 99 / 100], steps.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: grammar_bench TOKENIZER_JSON VOCAB_SIZE\n");
    return 2;
  }
  const auto tokenizer = text::Tokenizer::load(argv[1]);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", tokenizer.error().text());
    return 1;
  }
  const int64_t vocab_size = std::stoll(argv[2]);
  std::vector<int32_t> stops;
  for (const char* name : {"<|endoftext|>", "<|user|>", "<|observation|>"}) {
    if (const auto id = (*tokenizer)->token_to_id(name)) stops.push_back(*id);
  }
  const double started = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
  const auto compiler = text::GrammarCompiler::create(*tokenizer, {.vocab_size = vocab_size, .stop_token_ids = stops});
  if (!compiler) {
    fmt::print(stderr, "{}\n", compiler.error().text());
    return 1;
  }
  fmt::print("{} ids; the vocabulary: {:.1f} ms\n", vocab_size, cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - started);
  const auto tokens = serve::AnswerTokens::of(**tokenizer, stops);
  const auto run = [&](const char* name, const std::string& schema) { measure(**compiler, tokens, vocab_size, name, schema); };
  run("any object", R"({"type":"object"})");
  run("a person", R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
      "tags":{"type":"array","items":{"type":"string"},"maxItems":5},"colour":{"enum":["red","green","blue"]},
      "address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string","pattern":"^\\d{5}$"}},"required":["street","zip"]}},
      "required":["name","age","tags"],"additionalProperties":false})");
  run("an e-mail address", R"({"type":"string","format":"email"})");
  run("a string of 1 to 100", R"({"type":"string","minLength":1,"maxLength":100})");
  run("20 optional strings", object_of_strings(20));
  run("100 optional strings", object_of_strings(100));
  return 0;
}
