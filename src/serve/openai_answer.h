// Answers of /v1/chat/completions and /v1/completions; the whole one and the stream say the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/answer.h"
#include "serve/openai_request.h"

namespace ingot::serve {

struct AnsweredPrompt {
  std::string text;  // as it is echoed
  std::vector<int32_t> tokens;
};

struct OpenAiAnswerOptions {
  enum class Kind : uint8_t { chat, completion };
  // What the request's options say; echo and prompts are the caller's.
  OpenAiAnswerOptions(Kind answer_kind, const GenerationOptions& options);

  Kind kind;
  bool include_usage = false;     // of a stream: an event of its own at the end
  bool continuous_usage = false;  // and with every event, so far
  bool logprobs = false;
  int num_top_logprobs = 0;
  bool tokens_as_ids = false;           // logprobs show "token_id:7"
  bool token_ids = false;               // the tokens of prompts and choices are named
  bool echo = false;                    // of completions: the prompt, and its logprobs, come before the text
  std::vector<AnsweredPrompt> prompts;  // of the answer, in order, when echo or token_ids want them
};

class OpenAiAnswer final : public Answer {
 public:
  OpenAiAnswer(AnswerOptions common, OpenAiAnswerOptions options, std::shared_ptr<ResponseWriter> writer);

 private:
  struct Choice {
    // A whole answer gathers here.
    std::string reasoning;
    std::string content;
    Json tool_calls = Json::array();
    size_t num_calls_begun = 0;
    std::vector<std::string> call_ids;
    const char* finish_reason = nullptr;
    // Of chat: entries that wait for the chunk of their text. Of completions: the same in OpenAI's four lists.
    Json logprobs;
    std::vector<int32_t> token_ids;  // when named: of a whole answer all, of a stream those that wait for a chunk
    bool first_chunk_sent = false;
    bool begun = false;       // its first piece with a token, or with the end, has come
    int64_t text_offset = 0;  // of completions: code points before the next token
  };
  void on_begin() override;
  void on_delta(int choice, const TextPiece& piece, const text::OutputDelta& delta) override;
  void on_choice_end(int choice, sched::FinishReason reason) override;
  void on_done() override;
  void on_error(const ApiError& error) override;

  bool is_chat() const { return options_.kind == OpenAiAnswerOptions::Kind::chat; }
  void emit_text(int choice, const std::string& text);
  void emit(int choice, const text::OutputDelta& delta);
  void echo_prompt(int choice, const TextPiece& piece);
  void add_logprobs(Choice& choice, const TextPiece& piece);
  void add_to_lists(Choice& choice, int32_t id, const sched::TokenLogprob* logprob);
  const AnsweredPrompt& prompt_of(int choice) const;
  std::string shown(int32_t id) const;  // one token's text, U+FFFD for parts of characters
  Json logprobs_entry(int32_t id, float logprob) const;
  void send_chunk(int index, Json choice);
  Json usage_json() const;
  Json header(const char* object) const;

  OpenAiAnswerOptions options_;
  std::vector<Choice> choices_;
  std::string chunk_head_;  // of every chunk, up to its choice
};

}  // namespace ingot::serve
