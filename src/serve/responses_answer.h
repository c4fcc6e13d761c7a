// Answers of /v1/responses in OpenAI's form: items of reasoning, text and calls, whole or as a stream of numbered events, which say the
// same. Each item of a stream is added, filled and done before the next one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/answer.h"

namespace ingot::serve {

struct ResponsesAnswerOptions {
  Json repeated;  // what a response repeats of its request
  bool logprobs = false;
  // Called once, with the whole response, before the client gets it; empty: it is not stored.
  std::function<void(const Json& response)> store;
};

class ResponsesAnswer final : public Answer {
 public:
  ResponsesAnswer(AnswerOptions common, ResponsesAnswerOptions options, std::shared_ptr<ResponseWriter> writer);

 private:
  enum class Kind : uint8_t { none, reasoning, message, call };

  void on_begin() override;
  void on_delta(int choice, const TextPiece& piece, const text::OutputDelta& delta) override;
  void on_choice_end(int choice, sched::FinishReason reason) override;
  void on_done() override;
  void on_error(const ApiError& error) override;

  Json response(const char* status) const;
  void send(const char* name, Json event);
  // An event about the open item; of its one part, too.
  void send_item(const char* name, Json fields, bool of_part);
  void open(Kind kind, Json item, Json part);
  void close(const char* status);
  void add_text(Kind kind, std::string_view text);
  void add_calls(const std::vector<text::ToolCallDelta>& calls);
  void add_logprobs(const TextPiece& piece);
  Json& open_text();  // the text of the open item

  ResponsesAnswerOptions options_;
  int64_t sequence_number_ = 0;
  Json output_ = Json::array();
  Kind open_ = Kind::none;
  std::string held_;              // white space that is a text's beginning, or nothing at all
  std::vector<std::string> ids_;  // of items and calls
  size_t num_calls_ = 0;
  bool in_content_;                // the next token is text, not reasoning and no call
  Json logprobs_ = Json::array();  // that wait for the event of their text
  const char* status_ = "completed";
};

}  // namespace ingot::serve
