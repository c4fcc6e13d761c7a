// Byte-level BPE from a Hugging Face tokenizer.json. Immutable after load; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ingot::text {

class Tokenizer {
 public:
  // Errors name the file and the unsupported or broken part (model type, pre-tokenizer, normalizer, a merge that is not in the vocabulary).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& tokenizer_json);
  virtual ~Tokenizer() = default;

  // Ids of `text`; added tokens in it (special ones too) become their ids, as Hugging Face does with add_special_tokens=False.
  // Errors: invalid UTF-8 with the byte offset; more than max_tokens ids.
  virtual Result<std::vector<int32_t>> encode(std::string_view text, size_t max_tokens = SIZE_MAX) const = 0;

  // The bytes a token stands for: may be part of a UTF-8 character. Empty for ids that have no token.
  virtual std::string_view token_bytes(int32_t id) const = 0;
  // Whole text; bytes that are not UTF-8 become U+FFFD as Python's errors="replace" does.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;

  virtual std::optional<int32_t> token_to_id(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;  // "special": true in added_tokens
  virtual int64_t vocab_size() const = 0;         // largest id + 1
};

}  // namespace ingot::text
