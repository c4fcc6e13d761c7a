// Fields of a conversation: messages, tools and their choice, thinking. What decides the prompt is the same for an answer and for
// /tokenize. Used by the parsers of openai_request.h alone.
#pragma once

#include "serve/openai_request.h"

namespace ingot::serve {

void read_conversation(JsonFields& fields, const RequestDefaults& defaults, ChatRequest& request);

}  // namespace ingot::serve
