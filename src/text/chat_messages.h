// The OpenAI message list made ready for a chat template. Called by the server's dialects before ChatTemplate::render; never renders.
// Templates are written for clean messages: null content would print "None", and arguments must be an object to be listed.
#pragma once

#include "base/json.h"
#include "base/result.h"

namespace ingot::text {

// Checks and normalises `messages` (an array of objects). Afterwards of each message:
// - role is system (developer becomes system), user, assistant or tool;
// - content is a string: null and absent (assistant with tool_calls) give "", a list of text parts is joined; an assistant's refusal, as a
//   part or instead of content, is text like any other;
// - reasoning_content is there when the message had `reasoning_content` or `reasoning`;
// - tool_calls, when not empty, hold objects as arguments with the keys in their order. Arguments that are no JSON object are kept
//   as text: {"arguments": TEXT}, so that a template which lists the pairs shows the model its own words instead of failing.
// Other members stay as they are. Every error begins with the field's path ("messages[2].role: ..."), so that a server can name it.
Result<Json> normalize_messages(const Json& messages);

}  // namespace ingot::text
