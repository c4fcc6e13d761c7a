// Planned prompts as text of exact token counts. The words are random ones of the tokenizer's vocabulary that stay one token each when they
// stand in a row, so that a text of n words has n tokens and texts with equal beginnings have equal tokens there. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "plan/workload.h"
#include "text/tokenizer.h"

namespace ingot::load {

class PromptMaker {
 public:
  // Errors: a vocabulary with fewer than kMinWords such words.
  static constexpr size_t kMinWords = 64;
  static Result<PromptMaker> create(const text::Tokenizer& tokenizer);

  size_t num_words() const { return words_.size(); }

  // `overhead`: tokens that the server puts around a prompt (a chat template, a BOS token): taken from the last piece, which keeps at least
  // one token. `answers`: what earlier requests of the session said, in order of their pieces.
  std::string text(const plan::PlannedRequest& request, int64_t overhead, const std::vector<std::string>& answers) const;
  Json messages(const plan::PlannedRequest& request, int64_t overhead, const std::vector<std::string>& answers) const;

 private:
  explicit PromptMaker(std::vector<std::string> words) : words_(std::move(words)) {}
  void append(std::string& text, const plan::PromptPiece& piece, int64_t num_tokens) const;

  std::vector<std::string> words_;  // each with the space before it
};

}  // namespace ingot::load
