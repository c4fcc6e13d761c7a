// What servers answer beside streams, read. Pure.
#pragma once

#include <string>

#include "base/json.h"

namespace ingot::load {

// What an error answer says, in its own words: OpenAI's {"error": {"message": ...}}, others' {"error": ...}, {"message": ...} or
// {"detail": ...}; else its first 200 bytes. `answer`: `body` parsed, or null.
std::string error_message(const Json& answer, const std::string& body);
// The first name of /v1/models; empty when it lists none.
std::string first_model(const Json& models);

}  // namespace ingot::load
