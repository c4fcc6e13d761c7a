// A dialect's own names for the fields of the chat request that it is turned into, so that an error names what its client wrote.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json_fields.h"

namespace ingot::serve {

class FieldNames {
 public:
  // What is `chat` ("messages[3]") in the chat request is `own` ("input[1].content") in the dialect's; with all that is below it.
  void add(std::string chat, std::string own) { names_.emplace_back(std::move(chat), std::move(own)); }
  // The error with its field, and the field's name at the beginning of its message, as the dialect has it.
  ApiError rename(ApiError error) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

// The text of a part, which is {"type": one of `types`, "text": ...}. Errors name its field below `at`, its path.
ApiResult<std::string> read_text_part(const Json& part, const std::string& at, const std::vector<std::string_view>& types);
// The text of all parts of the list at `path`, with `separator` between them. Errors: as above, below the part's own path.
ApiResult<std::string> join_text_parts(const Json& parts, const std::string& path, const std::vector<std::string_view>& types,
                                       std::string_view separator);

}  // namespace ingot::serve
