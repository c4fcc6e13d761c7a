// What request bodies are parsed against in tests of the dialects: few tokens, and a template that knows all of thinking.
#pragma once

#include "serve/openai_request.h"

namespace ingot::test_support {

inline serve::RequestDefaults request_defaults() {
  serve::RequestDefaults d;
  d.eos_token_ids = {9};
  d.vocab_size = 100;
  d.context_length = 4096;
  d.chat_template_source = "enable_thinking reasoning_effort clear_thinking";
  return d;
}

}  // namespace ingot::test_support
