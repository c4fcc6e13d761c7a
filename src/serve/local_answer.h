// One answer in this process, without HTTP: what `ingot generate` and `ingot chat` share. The caller's thread waits and shows text.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "serve/openai_api.h"

namespace ingot::serve {

struct LocalRequest {
  std::vector<int32_t> prompt;
  sched::SamplingParams sampling;  // max_tokens 0: up to the context length
  std::vector<std::string> stop_strings;
  std::optional<text::OutputParserOptions> parser;  // empty: all text is content
};

struct LocalFigures {
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;
  double prefill_s = 0;  // from submit to the first token
  double decode_s = 0;   // from the first token to the last
  sched::FinishReason finish = sched::FinishReason::none;
  SpeculationCounts speculation;
  double forced_acceptance = 0;  // the server's; 0: none

  // "prompt 29 tokens, prefill 1200.0 tok/s, decode 310.0 tok/s over 85 tokens", and a line on speculation when there was any.
  std::string text() const;
};

// Calls `show` with what came, on this thread. `interrupted` is asked many times a second; once true, the request is cancelled.
// Errors: a prompt over the context length, an engine that failed.
Result<LocalFigures> answer_locally(const ServedModel& model, Dispatcher& engine, LocalRequest request,
                                    const std::function<void(const text::OutputDelta&)>& show,
                                    const std::function<bool()>& interrupted = {});

}  // namespace ingot::serve
