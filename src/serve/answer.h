// The desk's writing half: pieces of text to OpenAI responses, whole or as a stream of chunks; both say the same. One Answer a request,
// used on the io thread alone once its request was submitted.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "sched/request.h"
#include "serve/http.h"
#include "serve/json_fields.h"
#include "serve/speculation.h"
#include "serve/text_stream.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace ingot::serve {

struct AnswerOptions {
  enum class Kind : uint8_t { chat, completion };
  Kind kind = Kind::chat;
  std::string model;
  int64_t num_prompt_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  int num_top_logprobs = 0;
  text::OutputParserOptions parser;     // chat only
  std::optional<int32_t> think_end_id;  // the token of "</think>": what comes before it is counted as reasoning
  std::optional<int32_t> tool_call_id;  // the token of "<tool_call>", which ends reasoning too
  std::shared_ptr<const text::Tokenizer> tokenizer;
  double forced_acceptance = 0;  // the server's: every answer is labelled with it; 0: none
};

class Answer {
 public:
  Answer(AnswerOptions options, std::shared_ptr<ResponseWriter> writer);

  // Of a stream: headers (which name the replica) and the first chunk, before any token is there. Does nothing for a whole answer, or when
  // add() came first.
  void begin(int replica);
  const std::string& id() const { return id_; }
  // The last piece has a finish reason; then the answer is sent to its end.
  void add(TextPiece piece);

 private:
  void emit(const text::OutputDelta& delta);
  void add_logprobs(const TextPiece& piece);
  void count_reasoning(const TextPiece& piece);
  std::string shown(int32_t id) const;  // one token's text, U+FFFD for parts of characters
  Json logprobs_entry(int32_t id, float logprob) const;
  void send_chunk(const Json& choice);
  Json take_logprobs();
  Json usage() const;
  HttpHeaders headers() const;
  Json header(const char* object) const;
  void finish(sched::FinishReason reason);
  void fail(const ApiError& error);

  AnswerOptions options_;
  std::shared_ptr<ResponseWriter> writer_;
  text::OutputParser parser_;
  std::string id_;
  int64_t created_;
  int replica_ = 0;
  int64_t num_cached_tokens_ = 0;
  std::string chunk_head_;  // of every chunk, up to its choice
  bool begun_ = false;
  bool ended_ = false;
  bool in_reasoning_;
  int64_t num_completion_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
  SpeculationCounts speculation_;
  // A whole answer gathers here.
  std::string reasoning_;
  std::string content_;
  Json tool_calls_ = Json::array();
  size_t num_calls_begun_ = 0;
  // Of chat: entries that wait for the chunk of their text. Of completions: the same in OpenAI's four lists.
  Json logprobs_;
  int64_t text_offset_ = 0;  // of completions: code points before the next token
};

// A random id with OpenAI's prefix: "chatcmpl-...".
std::string make_id(std::string_view prefix);
int64_t unix_seconds();
HttpResponse error_response(const ApiError& error);
std::string dump_json(const Json& json);

}  // namespace ingot::serve
