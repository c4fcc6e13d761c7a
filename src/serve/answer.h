// The desk's writing half: pieces of text to typed deltas, in every dialect alike. A dialect derives from Answer and writes its own JSON,
// whole or as a stream of events. One Answer a request, of one or several choices; used on the io thread alone once its request was
// submitted.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "sched/request.h"
#include "serve/http.h"
#include "serve/json_fields.h"
#include "serve/replay.h"
#include "serve/speculation.h"
#include "serve/text_stream.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace ingot::serve {

struct AnswerOptions {
  std::string model;
  int64_t num_prompt_tokens = 0;  // of all prompts
  int num_prompts = 1;
  int num_choices = 1;  // of all prompts, equally many each; those of the first prompt come first
  bool stream = false;
  bool hide_reasoning = false;  // it is counted, and not given to the dialect
  // Of a conversation: reasoning, content and tool calls are told apart. Absent: the text is content as it is.
  std::optional<text::OutputParserOptions> parser;
  std::optional<int32_t> think_end_id;  // the token of "</think>": what comes before it is counted as reasoning
  std::optional<int32_t> tool_call_id;  // the token of "<tool_call>", which ends reasoning too; absent: no calls are parsed
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<ReplayStore> replay;  // remembers conversations' turns as they were sampled; null: nobody does
  double forced_acceptance = 0;         // the server's: every answer is labelled with it; 0: none
};

// Over all choices.
struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts, found in the prefix cache; by a prompt's own later choices is not counted
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of them
  SpeculationCounts speculation;
};

class Answer {
 public:
  Answer(AnswerOptions options, std::shared_ptr<ResponseWriter> writer, std::string id);
  virtual ~Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  const std::string& id() const { return id_; }
  // Of a stream: headers (which name the replica), before any token is there. Does nothing when it was begun already.
  void begin(int replica);
  // A choice's last piece has a finish reason; after the last choice's last one the answer is sent to its end. True: the other choices are
  // not wanted any more, since this one failed.
  bool add(int choice, TextPiece piece);
  // Ends the answer with an error, unless it has ended. Before submit() from any thread, then on the io thread.
  void fail(const ApiError& error);

 protected:
  // In this order: on_begin() once, of a stream; on_delta() for every piece, in the order of its tokens; on_choice_end() once a choice;
  // on_done() once. Or, of a stream whose headers are out, on_error() once, at any time, and nothing after it.
  virtual void on_begin() = 0;
  // `delta` may be empty; `piece` has the token ids, logprobs and the speculation of the step.
  virtual void on_delta(int choice, const TextPiece& piece, const text::OutputDelta& delta) = 0;
  virtual void on_choice_end(int choice, sched::FinishReason reason) = 0;
  virtual void on_done() = 0;
  virtual void on_error(const ApiError& error) = 0;
  // An error as a whole response, in the dialect's form; OpenAI's, if it has none of its own.
  virtual HttpResponse refusal(const ApiError& error) const;

  const AnswerOptions& options() const { return options_; }
  const AnswerUsage& usage() const { return usage_; }
  ResponseWriter& writer() { return *writer_; }
  int64_t created() const { return created_; }  // unix seconds
  HttpHeaders headers() const;                  // which replica, and whether the server is for benchmarks
  // In on_choice_end(): the ids that the client knows this choice by. A later request that sends it back gets the tokens of this one into
  // its prompt. `ids`: unguessable (make_id).
  void remember(int choice, sched::FinishReason reason, const std::vector<std::string>& ids);

 private:
  struct Choice {
    std::optional<text::OutputParser> parser;
    bool in_reasoning = false;
    bool ended = false;
    std::optional<int64_t> cached_tokens;  // known with its first piece
    SampledTurn turn;
  };
  static void extend(SampledTurn& turn, const text::OutputDelta& delta);
  void count(Choice& choice, const TextPiece& piece);
  int64_t cached_tokens() const;

  AnswerOptions options_;
  std::shared_ptr<ResponseWriter> writer_;
  std::string id_;
  int64_t created_;
  int replica_ = 0;
  std::vector<Choice> choices_;
  AnswerUsage usage_;
  size_t num_ended_ = 0;
  bool begun_ = false;  // a replica has the request; of a stream: the headers are out
  bool failed_ = false;
};

// "chatcmpl-" -> "chatcmpl-" and 32 digits that nobody can guess.
std::string make_id(std::string_view prefix);
// One token of a logprobs list in OpenAI's form: token, logprob, bytes.
Json logprob_json(const text::Tokenizer& tokenizer, int32_t id, float logprob);
int64_t unix_seconds();
bool is_blank(std::string_view text);  // nothing but white space
HttpResponse error_response(const ApiError& error);
std::string dump_json(const Json& json);

}  // namespace ingot::serve
