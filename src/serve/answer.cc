#include "serve/answer.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/check.h"

namespace ingot::serve {

std::string dump_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string make_id(std::string_view prefix) {
  std::array<uint64_t, 2> random{};
  INGOT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), sizeof random) == 1, "OpenSSL has no random bytes");
  return fmt::format("{}{:016x}{:016x}", prefix, random[0], random[1]);
}

Json logprob_json(const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  Json list = Json::array();
  for (const char c : tokenizer.token_bytes(id)) list.push_back(static_cast<unsigned char>(c));
  return {{"token", tokenizer.decode({&id, 1}, false)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{error.status, error_body(error.message, error.type, error.param, error.code), "application/json", {}};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

namespace {
// Why a choice ended, when its text is not the answer that was asked for.
std::optional<ApiError> failure_of(const TextPiece& piece) {
  switch (piece.finish) {
    case sched::FinishReason::error: return ApiError{500, piece.error, {}, "engine_failed", "server_error"};
    case sched::FinishReason::cancelled:
      return ApiError{503, "the server stopped before the answer was complete", {}, "shutting_down", "server_error"};
    case sched::FinishReason::queue_timeout:
      return ApiError{503, "the request waited too long in the queue; try again later", {}, "queue_timeout", "server_error"};
    case sched::FinishReason::timeout:
      return ApiError{504, "the request took longer than this server's request timeout", {}, "request_timeout", "server_error"};
    default: return std::nullopt;
  }
}
}  // namespace

Answer::Answer(AnswerOptions options, std::shared_ptr<ResponseWriter> writer, std::string id)
    : options_(std::move(options)),
      writer_(std::move(writer)),
      id_(std::move(id)),
      created_(unix_seconds()),
      choices_(static_cast<size_t>(options_.num_choices)) {
  usage_.prompt_tokens = options_.num_prompt_tokens;
  for (Choice& choice : choices_) {
    if (!options_.parser) continue;
    choice.parser.emplace(*options_.parser);
    choice.in_reasoning = options_.parser->starts_in_reasoning;
    choice.turn.starts_in_reasoning = options_.parser->starts_in_reasoning;
  }
}

HttpHeaders Answer::headers() const {
  HttpHeaders headers{{"X-Ingot-Replica", std::to_string(replica_)}};
  if (options_.forced_acceptance > 0) headers.emplace_back("X-Ingot-Forced-Acceptance", fmt::format("{}", options_.forced_acceptance));
  return headers;
}

void Answer::begin(int replica) {
  if (begun_ || failed_) return;
  replica_ = replica;
  begun_ = true;
  if (options_.stream) on_begin();
}

// A prompt's choices find what its first one has computed: the least of them is what was there before.
int64_t Answer::cached_tokens() const {
  const size_t per_prompt = choices_.size() / static_cast<size_t>(options_.num_prompts);
  int64_t sum = 0;
  for (size_t first = 0; first < choices_.size(); first += per_prompt) {
    std::optional<int64_t> least;
    for (size_t i = first; i < first + per_prompt; ++i) {
      if (const auto cached = choices_[i].cached_tokens) least = std::min(least.value_or(*cached), *cached);
    }
    sum += least.value_or(0);
  }
  return sum;
}

void Answer::count(Choice& choice, const TextPiece& piece) {
  const auto num_tokens = static_cast<int64_t>(piece.token_ids.size());
  usage_.completion_tokens += num_tokens;
  choice.cached_tokens = std::max(choice.cached_tokens.value_or(0), piece.cached_tokens);
  usage_.cached_tokens = cached_tokens();
  usage_.speculation.add(num_tokens, piece.num_drafted, piece.num_accepted);
  for (const int32_t id : piece.token_ids) {
    if (id == options_.think_end_id || id == options_.tool_call_id) choice.in_reasoning = false;
    if (choice.in_reasoning) ++usage_.reasoning_tokens;
  }
}

void Answer::extend(SampledTurn& turn, const text::OutputDelta& delta) {
  turn.reasoning += delta.reasoning;
  turn.content += delta.content;
  for (const auto& call : delta.tool_calls) {
    const auto number = static_cast<size_t>(call.index);
    if (number >= turn.calls.size()) turn.calls.push_back({call.name, {}});
    turn.calls[number].arguments += call.arguments;
  }
}

void Answer::remember(int index, sched::FinishReason reason, const std::vector<std::string>& ids) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  // A turn that was cut has tokens that its client was not shown, or ends in the middle.
  if (!options_.replay || !choice.parser || reason != sched::FinishReason::stop_token || choice.turn.tokens.empty()) return;
  choice.turn.tokens.pop_back();  // the stop token: the template writes it as the beginning of what follows
  options_.replay->add(ids, std::move(choice.turn));
}

bool Answer::add(int index, TextPiece piece) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (failed_ || choice.ended) return false;
  begin(piece.replica);
  if (const auto error = failure_of(piece)) {
    fail(*error);
    return true;
  }
  count(choice, piece);
  const bool last = piece.finish != sched::FinishReason::none;
  text::OutputDelta delta;
  if (choice.parser) {
    delta = choice.parser->push(piece.text);
    extend(choice.turn, delta);
    choice.turn.tokens.insert(choice.turn.tokens.end(), piece.token_ids.begin(), piece.token_ids.end());
  } else {
    delta.content = std::move(piece.text);
  }
  if (options_.hide_reasoning) delta.reasoning.clear();
  on_delta(index, piece, delta);
  if (!last) return false;
  if (choice.parser) {
    text::OutputDelta rest = choice.parser->finish();
    extend(choice.turn, rest);
    if (options_.hide_reasoning) rest.reasoning.clear();
    on_delta(index, {}, rest);
  }
  choice.ended = true;
  on_choice_end(index, piece.finish);
  if (++num_ended_ == choices_.size()) on_done();
  return false;
}

HttpResponse Answer::refusal(const ApiError& error) const { return error_response(error); }

void Answer::fail(const ApiError& error) {
  if (failed_ || num_ended_ == choices_.size()) return;
  failed_ = true;
  if (options_.stream && begun_) return on_error(error);
  HttpResponse response = refusal(error);
  if (begun_) {
    for (auto& header : headers()) response.headers.push_back(std::move(header));
  }
  writer_->respond(std::move(response));
}

}  // namespace ingot::serve
