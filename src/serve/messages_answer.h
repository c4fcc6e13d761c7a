// Answers of /v1/messages in Anthropic's form: blocks of thinking, text and tool use, whole or as a stream of named events, which say the
// same. Each block of a stream is begun, filled and ended before the next one, with an index of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/answer.h"

namespace ingot::serve {

struct MessagesAnswerOptions {
  bool omits_thinking = false;  // blocks of thinking come without their text
  int64_t max_tokens = 0;       // the client's
};

class MessagesAnswer final : public Answer {
 public:
  MessagesAnswer(AnswerOptions common, MessagesAnswerOptions options, std::shared_ptr<ResponseWriter> writer);

 private:
  enum class Kind : uint8_t { none, thinking, text, tool_use };

  void on_begin() override;
  void on_delta(int choice, const TextPiece& piece, const text::OutputDelta& delta) override;
  void on_choice_end(int choice, sched::FinishReason reason) override;
  void on_done() override;
  void on_error(const ApiError& error) override;
  HttpResponse refusal(const ApiError& error) const override;

  void start_message();
  void open(Kind kind, Json block);
  void close();
  void add_text(std::string_view text);
  void add_calls(const std::vector<text::ToolCallDelta>& calls);
  void send(const char* name, Json event);
  void send_delta(const char* type, const char* field, std::string_view text);
  Json usage_json() const;
  Json message(Json content) const;

  MessagesAnswerOptions options_;
  std::string signature_;        // of this turn's thinking: its name for replay
  bool started_ = false;         // message_start is out
  Json blocks_ = Json::array();  // of a whole answer; of a stream without their texts
  Kind open_ = Kind::none;
  std::string held_;       // white space that is a text's beginning, or nothing at all
  std::string arguments_;  // of the open tool use
  std::vector<std::string> call_ids_;
  const char* stop_reason_ = nullptr;
  std::string stop_sequence_;
};

// {"type": "error", "error": {"type", "message"}}, with the status that Anthropic's API has for it.
HttpResponse messages_error_response(const ApiError& error);

}  // namespace ingot::serve
