#include "serve/answer.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace ingot::serve {

namespace {
constexpr const char* kFingerprint = "ingot-" INGOT_VERSION;

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}
}  // namespace

std::string dump_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string make_id(std::string_view prefix) {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{error.status, error_body(error.message, error.type, error.param, error.code), "application/json", {}};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

Answer::Answer(AnswerOptions options, std::shared_ptr<ResponseWriter> writer)
    : options_(std::move(options)),
      writer_(std::move(writer)),
      parser_(options_.parser),
      id_(make_id(options_.kind == AnswerOptions::Kind::chat ? "chatcmpl" : "cmpl")),
      created_(unix_seconds()),
      in_reasoning_(options_.parser.starts_in_reasoning) {}

Json Answer::header(const char* object) const {
  std::string fingerprint = kFingerprint;
  if (options_.forced_acceptance > 0) fingerprint += fmt::format("-forced-acceptance-{}", options_.forced_acceptance);
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", options_.model}, {"system_fingerprint", fingerprint}};
}

Json Answer::usage() const {
  Json json{{"prompt_tokens", options_.num_prompt_tokens},
            {"completion_tokens", num_completion_tokens_},
            {"total_tokens", options_.num_prompt_tokens + num_completion_tokens_},
            {"prompt_tokens_details", {{"cached_tokens", num_cached_tokens_}}}};
  if (options_.kind == AnswerOptions::Kind::chat) json["completion_tokens_details"] = {{"reasoning_tokens", num_reasoning_tokens_}};
  if (speculation_.any() || options_.forced_acceptance > 0) json["speculative"] = speculation_.json();
  if (options_.forced_acceptance > 0) json["speculative"]["forced_acceptance"] = options_.forced_acceptance;
  return json;
}

HttpHeaders Answer::headers() const {
  HttpHeaders headers{{"X-Ingot-Replica", std::to_string(replica_)}};
  if (options_.forced_acceptance > 0) headers.emplace_back("X-Ingot-Forced-Acceptance", fmt::format("{}", options_.forced_acceptance));
  return headers;
}

void Answer::begin(int replica) {
  replica_ = replica;
  if (!options_.stream || begun_) return;
  begun_ = true;
  writer_->start_events(headers());
  if (options_.kind == AnswerOptions::Kind::chat) {
    send_chunk({{"index", 0}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  }
}

void Answer::send_chunk(const Json& choice) {
  // All chunks begin alike: what does not change is written once.
  if (chunk_head_.empty()) {
    chunk_head_ = dump_json(header(options_.kind == AnswerOptions::Kind::chat ? "chat.completion.chunk" : "text_completion"));
    chunk_head_.back() = ',';  // was the closing brace
    chunk_head_ += "\"choices\":[";
  }
  writer_->event(chunk_head_ + dump_json(choice) + "]}");
}

void Answer::count_reasoning(const TextPiece& piece) {
  for (const int32_t id : piece.token_ids) {
    if (id == options_.think_end_id || id == options_.tool_call_id) in_reasoning_ = false;
    if (in_reasoning_) ++num_reasoning_tokens_;
  }
}

std::string Answer::shown(int32_t id) const { return options_.tokenizer->decode({&id, 1}, false); }

Json Answer::logprobs_entry(int32_t id, float logprob) const {
  const std::string_view bytes = options_.tokenizer->token_bytes(id);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", shown(id)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

void Answer::add_logprobs(const TextPiece& piece) {
  if (!options_.logprobs) return;
  for (size_t i = 0; i < piece.logprobs.size(); ++i) {
    const int32_t id = piece.token_ids[i];
    const bool is_last = i + 1 == piece.logprobs.size();
    if (is_last && piece.finish == sched::FinishReason::stop_token) continue;
    const auto& logprob = piece.logprobs[i];
    if (options_.kind == AnswerOptions::Kind::chat) {
      Json entry = logprobs_entry(id, logprob.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [top_id, top_logprob] : logprob.top) entry["top_logprobs"].push_back(logprobs_entry(top_id, top_logprob));
      logprobs_["content"].push_back(std::move(entry));
    } else {
      logprobs_["tokens"].push_back(shown(id));
      logprobs_["token_logprobs"].push_back(logprob.logprob);
      Json top = Json::object();
      // Tokens that are parts of characters may look alike: the likeliest keeps the name.
      for (const auto& [top_id, top_logprob] : logprob.top) top.emplace(shown(top_id), top_logprob);
      logprobs_["top_logprobs"].push_back(options_.num_top_logprobs > 0 ? std::move(top) : Json());
      logprobs_["text_offset"].push_back(text_offset_);
      text_offset_ += count_code_points(options_.tokenizer->token_bytes(id));
    }
  }
}

Json Answer::take_logprobs() { return std::exchange(logprobs_, Json()); }

void Answer::add(TextPiece piece) {
  if (ended_) return;
  begin(piece.replica);
  num_cached_tokens_ = piece.cached_tokens;
  switch (piece.finish) {
    case sched::FinishReason::error: return fail({500, piece.error, {}, "engine_failed", "server_error"});
    case sched::FinishReason::cancelled:
      return fail({503, "the server stopped before the answer was complete", {}, "shutting_down", "server_error"});
    case sched::FinishReason::queue_timeout:
      return fail({503, "the request waited too long in the queue; try again later", {}, "queue_timeout", "server_error"});
    case sched::FinishReason::timeout:
      return fail({504, "the request took longer than this server's request timeout", {}, "request_timeout", "server_error"});
    default: break;
  }
  const auto num_tokens = static_cast<int64_t>(piece.token_ids.size());
  num_completion_tokens_ += num_tokens;
  speculation_.add(num_tokens, piece.num_drafted, piece.num_accepted);
  add_logprobs(piece);
  const bool last = piece.finish != sched::FinishReason::none;
  if (options_.kind == AnswerOptions::Kind::chat) {
    count_reasoning(piece);
    emit(parser_.push(piece.text));
    if (last) emit(parser_.finish());
  } else if (!options_.stream) {
    content_ += piece.text;
  } else if (!piece.text.empty()) {
    send_chunk({{"index", 0}, {"text", piece.text}, {"logprobs", take_logprobs()}, {"finish_reason", nullptr}});
  }
  if (last) finish(piece.finish);
}

void Answer::emit(const text::OutputDelta& delta) {
  const auto chunk = [&](Json fields) {
    send_chunk({{"index", 0}, {"delta", std::move(fields)}, {"logprobs", take_logprobs()}, {"finish_reason", nullptr}});
  };
  if (!options_.stream) {
    reasoning_ += delta.reasoning;
    content_ += delta.content;
  } else {
    if (!delta.reasoning.empty()) chunk({{"reasoning_content", delta.reasoning}});
    if (!delta.content.empty()) chunk({{"content", delta.content}});
  }
  for (const auto& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    const bool begins = index >= num_calls_begun_;
    if (begins) num_calls_begun_ = index + 1;
    if (!options_.stream) {
      if (begins)
        tool_calls_.push_back({{"id", make_id("call")}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", ""}}}});
      tool_calls_[index]["function"]["arguments"].get_ref<std::string&>() += call.arguments;
      continue;
    }
    Json item{{"index", call.index}};
    Json function = Json::object();
    if (begins) {
      item["id"] = make_id("call");
      item["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    item["function"] = std::move(function);
    chunk({{"tool_calls", Json::array({std::move(item)})}});
  }
}

void Answer::finish(sched::FinishReason reason) {
  ended_ = true;
  const bool is_chat = options_.kind == AnswerOptions::Kind::chat;
  const char* why = reason == sched::FinishReason::length ? "length" : num_calls_begun_ > 0 ? "tool_calls" : "stop";
  if (options_.stream) {
    Json choice{{"index", 0}};
    if (is_chat) {
      choice["delta"] = Json::object();
    } else {
      choice["text"] = "";
    }
    choice["logprobs"] = take_logprobs();
    choice["finish_reason"] = why;
    send_chunk(choice);
    if (options_.include_usage) {
      Json chunk = header(is_chat ? "chat.completion.chunk" : "text_completion");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage();
      writer_->event(dump_json(chunk));
    }
    writer_->event("[DONE]");
    return writer_->end_events();
  }
  Json choice{{"index", 0}};
  if (is_chat) {
    Json message{{"role", "assistant"}, {"content", content_}};
    if (content_.empty() && !tool_calls_.empty()) message["content"] = nullptr;
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (!tool_calls_.empty()) message["tool_calls"] = tool_calls_;
    choice["message"] = std::move(message);
  } else {
    choice["text"] = content_;
  }
  choice["logprobs"] = take_logprobs();
  choice["finish_reason"] = why;
  Json body = header(is_chat ? "chat.completion" : "text_completion");
  body["choices"] = Json::array({std::move(choice)});
  body["usage"] = usage();
  writer_->respond({200, dump_json(body), "application/json", headers()});
}

void Answer::fail(const ApiError& error) {
  ended_ = true;
  if (!options_.stream) {
    auto response = error_response(error);
    for (auto& header : headers()) response.headers.push_back(std::move(header));
    return writer_->respond(std::move(response));
  }
  writer_->event(error_body(error.message, error.type, error.param, error.code));
  writer_->event("[DONE]");
  writer_->end_events();
}

}  // namespace ingot::serve
