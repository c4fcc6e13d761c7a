// What a client asked for, typed and validated: immutable from here on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sched/host_page.h"

namespace ingot::sched {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;         // 0, or less than 1e-5: greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0: off
  float min_p = 0.0f;               // [0, 1]
  uint64_t seed = 0;                // always set: the desk draws one when the client gave none
  bool has_client_seed = false;     // the client gave it: the same seed must give the same tokens, whatever runs beside
  float presence_penalty = 0.0f;    // [-2, 2]: taken once from the logit of every token that the completion has already
  float frequency_penalty = 0.0f;   // [-2, 2]: taken so many times as the completion has the token
  float repetition_penalty = 1.0f;  // > 0: of tokens in prompt or completion, positive logits are divided by it, others multiplied
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, added to its logit), ids distinct
  int32_t max_tokens = 0;                             // > 0; with prompt_logprobs 0 as well: the prompt is scored, and no token told
  std::vector<int32_t> stop_token_ids;                // end of sequence ids and the client's own; the stop token is counted, not shown
  bool ignore_eos = false;                            // then stop_token_ids holds the client's own alone
  int32_t top_logprobs = -1;                          // -1: no logprobs; 0: of the chosen token; n: and of the n likeliest
  // The same of the prompt's tokens but the first, each under those before it. Then no row is taken from the prefix cache.
  int32_t prompt_logprobs = -1;
};

// Most tokens that may be drafted for a sequence in a step.
inline constexpr int32_t kMaxDraftTokens = 8;

// What may come next: a grammar. Called on the engine thread by the runner: for each token of the completion first restrict(), then
// on_token() with the token that was drawn. Drafts are never shown to it, so it is never asked to take a token back.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the logits (vocab_size) of forbidden tokens to -inf; must leave one.
  virtual void restrict(std::span<float> logits) = 0;
  virtual void on_token(int32_t token_id) = 0;
};

// Sees every appended token on the engine thread, in order; true ends the sequence after this token (a stop string was completed).
// Must be quick and must not throw.
class TokenWatcher {
 public:
  virtual ~TokenWatcher() = default;
  virtual bool on_token(int32_t token_id) = 0;
};

enum class FinishReason : uint8_t {
  none,         // goes on
  stop_token,   // an id of stop_token_ids; the last token id is that id
  stop_string,  // the watcher said so
  length,       // max_tokens or the context limit
  cancelled,
  queue_timeout,  // it waited longer than its queue deadline
  timeout,        // it was not done at its deadline
  error,          // `error` says why
};

struct TokenLogprob {
  float logprob = 0;                           // natural log, of the model's distribution (before temperature and truncation)
  std::vector<std::pair<int32_t, float>> top;  // (token id, logprob), likeliest first
};

// What one step added to one request.
struct TokenEvent {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;  // as many as token_ids when asked for, else empty
  // Of the tokens 1, 2, ... of the prompt, when asked for: prompt.size() - 1 in one piece, once, with the first token of the completion
  // (with max_tokens 0: with the finish). Empty in all other events.
  std::vector<TokenLogprob> prompt_logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
  // The request's story so far.
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t scheduled_ns = 0;   // its first rows were planned; 0: never
  int32_t num_preempted = 0;
  int replica = 0;          // set by the engine
  int32_t num_drafted = 0;  // tokens drafted in this step, and what they earned: tokens of token_ids beyond the first
  int32_t num_accepted = 0;
};

// Called on the engine thread, in order; the last call has a finish reason. Must not block.
using EventSink = std::function<void(TokenEvent)>;

// A page of the prompt that the disk tier had: `page` follows on the pages before it.
struct FetchedPage {
  int64_t index = 0;  // it holds prompt tokens [index * page_size, (index + 1) * page_size)
  HostPage bytes;
};

struct Request {
  RequestId id = 0;             // set by the engine
  std::string name;             // what the client calls it ("chatcmpl-..."), for the log
  std::vector<int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  int32_t priority = 0;                         // higher goes first
  int64_t submitted_ns = 0;                     // set by the engine, as the deadlines: on the clock that plan() is told of
  int64_t queue_deadline_ns = 0;                // ends unless its first rows are planned by then; 0: none
  int64_t deadline_ns = 0;                      // ends unless done by then; 0: none
  std::vector<FetchedPage> fetched;             // in order of index
  std::shared_ptr<TokenWatcher> watcher;        // may be null
  std::shared_ptr<TokenConstraint> constraint;  // may be null
  int32_t max_draft_tokens = kMaxDraftTokens;   // of this request, in a step; 0: no speculation
  EventSink sink;
};

}  // namespace ingot::sched
