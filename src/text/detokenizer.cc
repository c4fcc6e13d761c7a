#include "text/detokenizer.h"

#include "base/check.h"
#include "text/utf8_text.h"

namespace ingot::text {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {
  INGOT_CHECK(tokenizer_ != nullptr);
}

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  pending_.append(tokenizer_->token_bytes(id));
  pending_.erase(0, append_replacing(pending_, false, text));
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  append_replacing(pending_, true, text);
  pending_.clear();
  return text;
}

}  // namespace ingot::text
