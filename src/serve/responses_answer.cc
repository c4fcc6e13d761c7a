#include "serve/responses_answer.h"

#include <utility>

namespace ingot::serve {

namespace {
// Codes that OpenAI's clients know.
const char* code_of(const ApiError& error) { return error.status == 429 ? "rate_limit_exceeded" : "server_error"; }
}  // namespace

ResponsesAnswer::ResponsesAnswer(AnswerOptions common, ResponsesAnswerOptions options, std::shared_ptr<ResponseWriter> writer)
    : Answer(std::move(common), std::move(writer), make_id("resp_")),
      options_(std::move(options)),
      in_content_(!Answer::options().parser || !Answer::options().parser->starts_in_reasoning) {}

Json ResponsesAnswer::response(const char* status) const {
  const AnswerUsage& u = usage();
  const bool ended = std::string_view(status) != "in_progress";
  Json json{{"id", id()},
            {"object", "response"},
            {"created_at", created()},
            {"status", status},
            {"background", false},
            {"completed_at", std::string_view(status) == "completed" ? Json(unix_seconds()) : Json()},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"model", options().model},
            {"output", ended ? output_ : Json::array()},
            {"max_tool_calls", nullptr},
            {"service_tier", "default"},
            {"truncation", "disabled"}};
  if (std::string_view(status) == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  json.update(options_.repeated);
  json["usage"] = nullptr;
  if (ended)
    json["usage"] = {{"input_tokens", u.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", u.cached_tokens}, {"cache_write_tokens", 0}}},
                     {"output_tokens", u.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}},
                     {"total_tokens", u.prompt_tokens + u.completion_tokens}};
  return json;
}

void ResponsesAnswer::send(const char* name, Json event) {
  Json named{{"type", name}, {"sequence_number", sequence_number_++}};
  named.update(event);
  writer().event(dump_json(named), name);
}

void ResponsesAnswer::send_item(const char* name, Json fields, bool of_part) {
  Json event{{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
  if (of_part) event["content_index"] = 0;
  event.update(fields);
  send(name, std::move(event));
}

void ResponsesAnswer::on_begin() {
  writer().start_events(headers());
  send("response.created", {{"response", response("in_progress")}});
  send("response.in_progress", {{"response", response("in_progress")}});
}

void ResponsesAnswer::open(Kind kind, Json item, Json part) {
  close("completed");
  open_ = kind;
  ids_.push_back(item["id"].get<std::string>());
  output_.push_back(std::move(item));
  if (options().stream) send("response.output_item.added", {{"output_index", output_.size() - 1}, {"item", output_.back()}});
  if (part.is_null()) return;
  if (options().stream) send_item("response.content_part.added", {{"part", part}}, true);
  output_.back()["content"].push_back(std::move(part));
}

void ResponsesAnswer::close(const char* status) {
  held_.clear();  // white space between items belongs to nobody
  if (open_ == Kind::none) return;
  Json& item = output_.back();
  item["status"] = status;
  if (open_ == Kind::message && !logprobs_.empty()) {
    Json& list = item["content"][0]["logprobs"];
    for (Json& entry : std::exchange(logprobs_, Json::array())) list.push_back(std::move(entry));
  }
  if (options().stream) {
    if (open_ == Kind::call) {
      send_item("response.function_call_arguments.done", {{"arguments", item["arguments"]}, {"name", item["name"]}}, false);
    } else {
      const Json& part = item["content"][0];
      if (open_ == Kind::message)
        send_item("response.output_text.done", {{"text", part["text"]}, {"logprobs", part["logprobs"]}}, true);
      else
        send_item("response.reasoning_text.done", {{"text", part["text"]}}, true);
      send_item("response.content_part.done", {{"part", part}}, true);
    }
    send("response.output_item.done", {{"output_index", output_.size() - 1}, {"item", item}});
  }
  open_ = Kind::none;
}

Json& ResponsesAnswer::open_text() { return output_.back()["content"][0]["text"]; }

void ResponsesAnswer::add_text(Kind kind, std::string_view text) {
  std::string begin;
  if (open_ != kind) {
    if (kind == Kind::message) {
      held_ += text;
      if (is_blank(held_)) return;
      begin = std::exchange(held_, {});
      text = begin;
      open(kind,
           {{"id", make_id("msg_")}, {"type", "message"}, {"status", "in_progress"}, {"role", "assistant"}, {"content", Json::array()}},
           {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}, {"logprobs", Json::array()}});
    } else {
      open(kind,
           {{"id", make_id("rs_")},
            {"type", "reasoning"},
            {"status", "in_progress"},
            {"summary", Json::array()},
            {"content", Json::array()}},
           {{"type", "reasoning_text"}, {"text", ""}});
    }
  }
  open_text().get_ref<std::string&>() += text;
  Json event{{"delta", text}};
  if (kind == Kind::message) {
    event["logprobs"] = std::exchange(logprobs_, Json::array());
    for (const Json& entry : event["logprobs"]) output_.back()["content"][0]["logprobs"].push_back(entry);
  }
  if (options().stream)
    send_item(kind == Kind::message ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(event), true);
}

void ResponsesAnswer::add_calls(const std::vector<text::ToolCallDelta>& calls) {
  for (const auto& call : calls) {
    if (static_cast<size_t>(call.index) >= num_calls_) {
      num_calls_ = static_cast<size_t>(call.index) + 1;
      const std::string call_id = make_id("call_");
      ids_.push_back(call_id);
      open(Kind::call,
           {{"id", make_id("fc_")},
            {"type", "function_call"},
            {"status", "in_progress"},
            {"call_id", call_id},
            {"name", call.name},
            {"arguments", ""}},
           nullptr);
    }
    if (call.arguments.empty()) continue;
    output_.back()["arguments"].get_ref<std::string&>() += call.arguments;
    if (options().stream) send_item("response.function_call_arguments.delta", {{"delta", call.arguments}}, false);
  }
}

// Of the tokens that are text of the answer: those of reasoning and of calls have no place in the response.
void ResponsesAnswer::add_logprobs(const TextPiece& piece) {
  for (size_t i = 0; i < piece.token_ids.size(); ++i) {
    const int32_t id = piece.token_ids[i];
    const bool ends_text = id == options().tool_call_id;
    const bool is_stop = i + 1 == piece.token_ids.size() && piece.finish == sched::FinishReason::stop_token;
    if (ends_text) in_content_ = false;
    if (in_content_ && !is_stop && options_.logprobs && i < piece.logprobs.size()) {
      const auto& logprob = piece.logprobs[i];
      Json entry = logprob_json(*options().tokenizer, id, logprob.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [top_id, top] : logprob.top) entry["top_logprobs"].push_back(logprob_json(*options().tokenizer, top_id, top));
      logprobs_.push_back(std::move(entry));
    }
    if (id == options().think_end_id) in_content_ = true;
  }
}

void ResponsesAnswer::on_delta(int /*choice*/, const TextPiece& piece, const text::OutputDelta& delta) {
  add_logprobs(piece);
  if (!delta.reasoning.empty()) add_text(Kind::reasoning, delta.reasoning);
  if (!delta.content.empty()) add_text(Kind::message, delta.content);
  add_calls(delta.tool_calls);
}

void ResponsesAnswer::on_choice_end(int choice, sched::FinishReason reason) {
  if (reason == sched::FinishReason::length) status_ = "incomplete";
  close(status_);
  remember(choice, reason, ids_);
}

void ResponsesAnswer::on_done() {
  const Json whole = response(status_);
  if (options_.store) options_.store(whole);
  if (!options().stream) return writer().respond({200, dump_json(whole), "application/json", headers()});
  const bool completed = std::string_view(status_) == "completed";
  send(completed ? "response.completed" : "response.incomplete", {{"response", whole}});
  writer().end_events();
}

void ResponsesAnswer::on_error(const ApiError& error) {
  Json failed = response("failed");
  failed["error"] = {{"code", code_of(error)}, {"message", error.message}};
  send("response.failed", {{"response", std::move(failed)}});
  writer().end_events();
}

}  // namespace ingot::serve
