// Token ids to text as they come. Never emits half a UTF-8 character: incomplete bytes wait for the next token.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace ingot::text {

class Detokenizer {
 public:
  // skip_special: tokens with "special": true give no text.
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);

  // The text that became complete with this token. Invalid bytes in the middle become U+FFFD.
  std::string push(int32_t id);
  // The end: bytes still waiting become one U+FFFD.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace ingot::text
