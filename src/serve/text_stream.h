// Token events to text: puts a detokenizer and the stop strings between a request and its reader, on the engine thread, so that a stop
// string ends the sequence at the very token that completed it. Used by the OpenAI desk and by `ingot generate` and `chat`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sched/request.h"
#include "text/tokenizer.h"

namespace ingot::serve {

// What one step added to an answer. `text` may be empty while a character or a possible stop string is incomplete.
struct TextPiece {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<sched::TokenLogprob> logprobs;         // as many as token_ids when asked for
  std::vector<sched::TokenLogprob> prompt_logprobs;  // as TokenEvent's: in the first piece with a token, or the last
  sched::FinishReason finish = sched::FinishReason::none;
  std::string error;
  std::string stop_string;    // with finish stop_string: which one
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int replica = 0;            // who made it
  int32_t num_drafted = 0;    // in the step, and accepted of them
  int32_t num_accepted = 0;
};

// Sets the request's watcher and sink. Text of special tokens and of stop tokens is not shown. `reader` is called on the engine thread;
// its last piece has a finish reason. request.sampling must be complete: its stop_token_ids are read here.
void attach_text(sched::Request& request, std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<std::string> stop_strings,
                 std::function<void(TextPiece)> reader);

}  // namespace ingot::serve
