#include "load/prompt_maker.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/rng.h"

namespace ingot::load {

namespace {
// A space and two letters or more: every pre-tokenizer of the field keeps such words apart, whatever stands before and behind them.
bool is_plain_word(std::string_view bytes) {
  return bytes.size() >= 3 && bytes[0] == ' ' && std::all_of(bytes.begin() + 1, bytes.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}
}  // namespace

Result<PromptMaker> PromptMaker::create(const text::Tokenizer& tokenizer) {
  std::vector<std::string> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!is_plain_word(bytes)) continue;
    // A token that no merges lead to would come back as two.
    const auto ids = tokenizer.encode(bytes);
    if (ids && ids->size() == 1 && (*ids)[0] == id) words.emplace_back(bytes);
  }
  if (words.size() < kMinWords)
    return fail("the tokenizer has {} words of lower-case letters with a space before them, fewer than {}", words.size(), kMinWords);
  return PromptMaker(std::move(words));
}

void PromptMaker::append(std::string& text, const plan::PromptPiece& piece, int64_t num_tokens) const {
  for (int64_t i = 0; i < num_tokens; ++i)
    text += words_[static_cast<size_t>(random_bits(piece.content, static_cast<uint64_t>(i)) % words_.size())];
}

std::string PromptMaker::text(const plan::PlannedRequest& request, int64_t overhead, const std::vector<std::string>& answers) const {
  if (request.recorded.is_string()) return request.recorded.get<std::string>();
  std::string text;
  size_t answer = 0;
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const plan::PromptPiece& piece = request.prompt[i];
    if (piece.role == plan::PromptPiece::Role::answer) {
      INGOT_CHECK(answer < answers.size());
      text += answers[answer++];
      continue;
    }
    const bool is_last = i + 1 == request.prompt.size();
    append(text, piece, is_last ? std::max<int64_t>(1, piece.num_tokens - overhead) : piece.num_tokens);
  }
  return text;
}

Json PromptMaker::messages(const plan::PlannedRequest& request, int64_t overhead, const std::vector<std::string>& answers) const {
  if (request.recorded.is_array()) return request.recorded;
  if (request.recorded.is_string()) return Json::array({{{"role", "user"}, {"content", request.recorded}}});
  using Role = plan::PromptPiece::Role;
  Json messages = Json::array();
  std::string content;
  Role role = Role::user;
  const auto flush = [&] {
    if (!content.empty()) messages.push_back({{"role", role == Role::system ? "system" : "user"}, {"content", content}});
    content.clear();
  };
  size_t answer = 0;
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const plan::PromptPiece& piece = request.prompt[i];
    if (piece.role == Role::answer) {
      INGOT_CHECK(answer < answers.size());
      flush();
      messages.push_back({{"role", "assistant"}, {"content", answers[answer++]}});
      continue;
    }
    if (piece.role != role) flush();
    role = piece.role;
    const bool is_last = i + 1 == request.prompt.size();
    append(content, piece, is_last ? std::max<int64_t>(1, piece.num_tokens - overhead) : piece.num_tokens);
  }
  flush();
  return messages;
}

}  // namespace ingot::load
