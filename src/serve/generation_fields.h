// Fields that /v1/chat/completions and /v1/completions share, read into GenerationOptions. Used by the parsers of openai_request.h alone.
#pragma once

#include "serve/openai_request.h"

namespace ingot::serve {

// All of them but max_tokens and logprobs, which the two endpoints mean differently.
void read_generation(JsonFields& fields, const RequestDefaults& defaults, GenerationOptions& options);

}  // namespace ingot::serve
