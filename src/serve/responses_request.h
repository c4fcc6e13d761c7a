// Request bodies of OpenAI's Responses API, turned into chat requests. A field is obeyed, or refused with its own name. Pure functions over
// JSON.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "serve/field_names.h"
#include "serve/openai_request.h"

namespace ingot::serve {

struct ResponsesRequest {
  // What the body says, before the conversation is known.
  Json body;   // a member for each field that a response repeats, with its default
  Json input;  // list of items, messages in their whole form
  std::string previous_response_id;
  bool store = true;

  ChatRequest chat;  // set by finish_responses_request()
  FieldNames names;
};

// Reads all but the conversation. `stores`: the server has a place for responses.
ApiResult<ResponsesRequest> parse_responses_request(const Json& body, bool stores);

// Makes request.chat of `history` (items of the responses before, oldest first), the instructions and the input.
std::optional<ApiError> finish_responses_request(ResponsesRequest& request, const Json& history, const RequestDefaults& defaults);

}  // namespace ingot::serve
