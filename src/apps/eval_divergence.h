// `ingot eval divergence REF CAND --data FILE`: how far CAND's predictions are from REF's on the same tokens. Called by main.cc alone.
//
// A .jsonl file is a document a line: {"messages": [...]} with tools, enable_thinking and reasoning_effort as the chat template takes
// them, {"prompt": text} or {"text": text}; what followed the prompt, `completion` or `bf16_output`, is put after it. Any other file is
// plain text and is cut into documents.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quant/divergence.h"
#include "serve/openai_api.h"

namespace ingot::apps {

struct EvalDivergenceOptions {
  std::filesystem::path reference;
  std::filesystem::path candidate;
  std::filesystem::path data;
  int64_t max_tokens = 2048;        // of a document; a longer line is cut there, a longer text goes on in the next document
  int64_t limit = 0;                // documents; 0: all
  std::string activations = "f32";  // f32, fp8 or mxfp4: what the inputs of quantised linears are rounded to, in both models
  int threads = 0;                  // 0: one per processor
  std::filesystem::path json;       // where the report goes as JSON; empty: nowhere
};

// The exit status; the report goes to standard output, errors to standard error.
int run_eval_divergence(const EvalDivergenceOptions& options);

// Documents of at least two tokens each. Errors name the file, the line and the field.
Result<std::vector<quant::Document>> load_documents(const serve::ServedModel& model, const std::filesystem::path& path, int64_t max_tokens,
                                                    int64_t limit);

Json divergence_json(const EvalDivergenceOptions& options, const quant::DivergenceReport& report);
std::string divergence_text(const quant::DivergenceReport& report);

}  // namespace ingot::apps
