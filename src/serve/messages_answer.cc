#include "serve/messages_answer.h"

#include <algorithm>

namespace ingot::serve {

namespace {
constexpr int kOverloaded = 529;  // Anthropic's own status

int status_of(const ApiError& error) { return error.status == 503 ? kOverloaded : error.status; }

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 504: return "timeout_error";
    case kOverloaded: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json error_json(const ApiError& error) {
  // Claude Code makes room by a summary of the conversation when it reads these words.
  const bool too_long = error.code == "context_length_exceeded";
  const std::string message = (too_long ? "prompt is too long: " : "") + error.message;
  return {{"type", "error"}, {"error", {{"type", type_of(status_of(error))}, {"message", message}}}};
}

}  // namespace

HttpResponse messages_error_response(const ApiError& error) {
  HttpResponse response = error_response(error);
  response.status = status_of(error);
  response.body = dump_json(error_json(error));
  return response;
}

MessagesAnswer::MessagesAnswer(AnswerOptions common, MessagesAnswerOptions options, std::shared_ptr<ResponseWriter> writer)
    : Answer(std::move(common), std::move(writer), make_id("msg_")), options_(options), signature_(make_id("ingot-")) {}

// The headers go out at once, and comments after them while the prompt is computed: message_start says how much of it was cached.
void MessagesAnswer::on_begin() { writer().start_events(headers()); }

void MessagesAnswer::send(const char* name, Json event) {
  Json named{{"type", name}};
  named.update(event);
  writer().event(dump_json(named), name);
}

Json MessagesAnswer::usage_json() const {
  const AnswerUsage& u = usage();
  return {{"input_tokens", u.prompt_tokens - u.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", u.completion_tokens}};
}

Json MessagesAnswer::message(Json content) const {
  return {{"id", id()},
          {"type", "message"},
          {"role", "assistant"},
          {"model", options().model},
          {"content", std::move(content)},
          {"stop_reason", stop_reason_ == nullptr ? Json() : Json(stop_reason_)},
          {"stop_sequence", stop_sequence_.empty() ? Json() : Json(stop_sequence_)},
          {"usage", usage_json()}};
}

void MessagesAnswer::start_message() {
  started_ = true;
  send("message_start", {{"message", message(Json::array())}});
  send("ping", Json::object());
}

void MessagesAnswer::open(Kind kind, Json block) {
  close();
  open_ = kind;
  if (options().stream) send("content_block_start", {{"index", blocks_.size()}, {"content_block", block}});
  blocks_.push_back(std::move(block));
}

void MessagesAnswer::close() {
  if (open_ == Kind::thinking) {
    blocks_.back()["signature"] = signature_;
    if (options().stream) send_delta("signature_delta", "signature", signature_);
  }
  if (open_ == Kind::tool_use && !options().stream) {
    // The parser's arguments are an object whatever the model wrote.
    auto input = parse_json(std::exchange(arguments_, {}), "arguments");
    blocks_.back()["input"] = input ? std::move(*input) : Json::object();
  }
  if (open_ != Kind::none && options().stream) send("content_block_stop", {{"index", blocks_.size() - 1}});
  open_ = Kind::none;
  held_.clear();  // white space between blocks belongs to nobody
}

void MessagesAnswer::send_delta(const char* type, const char* field, std::string_view text) {
  send("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", {{"type", type}, {field, text}}}});
}

void MessagesAnswer::add_text(std::string_view text) {
  if (open_ != Kind::text) {
    held_ += text;
    if (is_blank(held_)) return;
    const std::string begin = std::exchange(held_, {});
    open(Kind::text, {{"type", "text"}, {"text", ""}});
    return add_text(begin);
  }
  if (options().stream) return send_delta("text_delta", "text", text);
  blocks_.back()["text"].get_ref<std::string&>() += text;
}

void MessagesAnswer::add_calls(const std::vector<text::ToolCallDelta>& calls) {
  for (const auto& call : calls) {
    if (static_cast<size_t>(call.index) >= call_ids_.size()) {
      call_ids_.push_back(make_id("toolu_"));
      open(Kind::tool_use, {{"type", "tool_use"}, {"id", call_ids_.back()}, {"name", call.name}, {"input", Json::object()}});
    }
    if (call.arguments.empty()) continue;
    if (options().stream)
      send_delta("input_json_delta", "partial_json", call.arguments);
    else
      arguments_ += call.arguments;
  }
}

void MessagesAnswer::on_delta(int /*choice*/, const TextPiece& piece, const text::OutputDelta& delta) {
  if (options().stream && !started_) start_message();
  if (!piece.stop_string.empty()) stop_sequence_ = piece.stop_string;
  if (!delta.reasoning.empty()) {
    if (open_ != Kind::thinking) open(Kind::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    if (options_.omits_thinking) {
      // The block and its signature are all there is.
    } else if (options().stream) {
      send_delta("thinking_delta", "thinking", delta.reasoning);
    } else {
      blocks_.back()["thinking"].get_ref<std::string&>() += delta.reasoning;
    }
  }
  if (!delta.content.empty()) add_text(delta.content);
  add_calls(delta.tool_calls);
}

void MessagesAnswer::on_choice_end(int choice, sched::FinishReason reason) {
  close();
  switch (reason) {
    case sched::FinishReason::length:
      stop_reason_ = usage().completion_tokens < options_.max_tokens ? "model_context_window_exceeded" : "max_tokens";
      break;
    case sched::FinishReason::stop_string: stop_reason_ = "stop_sequence"; break;
    default: stop_reason_ = call_ids_.empty() ? "end_turn" : "tool_use";
  }
  if (reason != sched::FinishReason::stop_string) stop_sequence_.clear();
  std::vector<std::string> ids = call_ids_;
  ids.push_back(signature_);
  remember(choice, reason, ids);
}

void MessagesAnswer::on_done() {
  if (!options().stream) return writer().respond({200, dump_json(message(std::move(blocks_))), "application/json", headers()});
  Json delta{{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_.empty() ? Json() : Json(stop_sequence_)}};
  send("message_delta", {{"delta", std::move(delta)}, {"usage", usage_json()}});
  send("message_stop", Json::object());
  writer().end_events();
}

HttpResponse MessagesAnswer::refusal(const ApiError& error) const { return messages_error_response(error); }

void MessagesAnswer::on_error(const ApiError& error) {
  writer().event(dump_json(error_json(error)), "error");
  writer().end_events();
}

}  // namespace ingot::serve
