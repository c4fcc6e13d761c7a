// `ingot generate MODEL --prompt TEXT`: one answer. Standard output gets the answer's text alone; standard error gets the thoughts (dimmed,
// only when it is a terminal) and a last line of figures. Called by main.cc alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/model_service.h"

namespace ingot::apps {

// What `generate` and `chat` let the user set; empty: the model's default.
struct SamplingFlags {
  std::optional<int64_t> max_tokens;  // empty: up to the context length
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> seed;
  std::vector<std::string> stop;
  std::optional<bool> enable_thinking;
  std::optional<std::string> reasoning_effort;

  // As fields of an OpenAI request: one validation for flags and fields.
  Json fields() const;
};

struct GenerateOptions {
  serve::ServiceOptions service;
  SamplingFlags sampling;
  std::string prompt;
  bool raw = false;  // continue the text itself, without the chat template
  std::string log_level = "warn";
};

// The exit status. Errors go to standard error.
int run_generate(const GenerateOptions& options);

}  // namespace ingot::apps
