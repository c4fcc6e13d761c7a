// Request bodies of Anthropic's Messages API, turned into chat requests. A field is obeyed, or refused with the name that its client gave
// it. Pure functions over JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "serve/field_names.h"
#include "serve/openai_request.h"

namespace ingot::serve {

struct MessagesRequest {
  ChatRequest chat;
  FieldNames names;             // of what the chat request calls otherwise, for errors that are found later
  bool omits_thinking = false;  // thinking.display "omitted": blocks of thinking come without their text
};

// Which endpoint the body was sent to: /v1/messages/count_tokens takes the fields that decide the prompt, and answers nothing.
enum class MessagesUse : uint8_t { answer, count_tokens };

ApiResult<MessagesRequest> parse_messages_request(const Json& body, const RequestDefaults& defaults, MessagesUse use);

}  // namespace ingot::serve
