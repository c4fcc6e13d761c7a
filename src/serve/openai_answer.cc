#include "serve/openai_answer.h"

#include <algorithm>

namespace ingot::serve {

namespace {
constexpr const char* kFingerprint = "ingot-" INGOT_VERSION;

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}
}  // namespace

OpenAiAnswerOptions::OpenAiAnswerOptions(Kind answer_kind, const GenerationOptions& options)
    : kind(answer_kind),
      include_usage(options.include_usage),
      continuous_usage(options.continuous_usage),
      logprobs(options.sampling.top_logprobs >= 0),
      num_top_logprobs(options.sampling.top_logprobs),
      tokens_as_ids(options.tokens_as_ids),
      token_ids(options.token_ids) {}

OpenAiAnswer::OpenAiAnswer(AnswerOptions common, OpenAiAnswerOptions options, std::shared_ptr<ResponseWriter> writer)
    : Answer(std::move(common), std::move(writer), make_id(options.kind == OpenAiAnswerOptions::Kind::chat ? "chatcmpl-" : "cmpl-")),
      options_(std::move(options)),
      choices_(static_cast<size_t>(Answer::options().num_choices)) {}

Json OpenAiAnswer::header(const char* object) const {
  std::string fingerprint = kFingerprint;
  const double forced = options().forced_acceptance;
  if (forced > 0) fingerprint += fmt::format("-forced-acceptance-{}", forced);
  return {{"id", id()}, {"object", object}, {"created", created()}, {"model", options().model}, {"system_fingerprint", fingerprint}};
}

Json OpenAiAnswer::usage_json() const {
  const AnswerUsage& u = usage();
  Json json{{"prompt_tokens", u.prompt_tokens},
            {"completion_tokens", u.completion_tokens},
            {"total_tokens", u.prompt_tokens + u.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}}};
  if (is_chat()) json["completion_tokens_details"] = {{"reasoning_tokens", u.reasoning_tokens}};
  const double forced = options().forced_acceptance;
  if (u.speculation.any() || forced > 0) json["speculative"] = u.speculation.json();
  if (forced > 0) json["speculative"]["forced_acceptance"] = forced;
  return json;
}

void OpenAiAnswer::on_begin() {
  writer().start_events(headers());
  if (!is_chat()) return;
  for (int i = 0; i < options().num_choices; ++i)
    send_chunk(i, {{"delta", {{"role", "assistant"}, {"content", ""}}}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
}

const AnsweredPrompt& OpenAiAnswer::prompt_of(int choice) const {
  const int per_prompt = options().num_choices / options().num_prompts;
  return options_.prompts[static_cast<size_t>(choice / per_prompt)];
}

void OpenAiAnswer::send_chunk(int index, Json choice) {
  choice["index"] = index;
  std::string tail = "]";
  if (options_.token_ids) {
    Choice& state = choices_[static_cast<size_t>(index)];
    choice["token_ids"] = std::exchange(state.token_ids, {});
    if (!state.first_chunk_sent) choice["prompt_token_ids"] = prompt_of(index).tokens;
    state.first_chunk_sent = true;
  }
  if (options_.continuous_usage) tail += ",\"usage\":" + dump_json(usage_json());
  // All chunks begin alike: what does not change is written once.
  if (chunk_head_.empty()) {
    chunk_head_ = dump_json(header(is_chat() ? "chat.completion.chunk" : "text_completion"));
    chunk_head_.back() = ',';  // was the closing brace
    chunk_head_ += "\"choices\":[";
  }
  writer().event(chunk_head_ + dump_json(choice) + tail + "}");
}

std::string OpenAiAnswer::shown(int32_t id) const {
  return options_.tokens_as_ids ? fmt::format("token_id:{}", id) : options().tokenizer->decode({&id, 1}, false);
}

Json OpenAiAnswer::logprobs_entry(int32_t id, float logprob) const {
  Json entry = logprob_json(*options().tokenizer, id, logprob);
  if (options_.tokens_as_ids) entry["token"] = shown(id);
  return entry;
}

// logprob null: of a token that nothing comes before.
void OpenAiAnswer::add_to_lists(Choice& choice, int32_t id, const sched::TokenLogprob* logprob) {
  Json& lists = choice.logprobs;
  lists["tokens"].push_back(shown(id));
  lists["token_logprobs"].push_back(logprob != nullptr ? Json(logprob->logprob) : Json());
  Json top;
  if (logprob != nullptr && options_.num_top_logprobs > 0) {
    top = Json::object();
    // Tokens that are parts of characters may look alike: the likeliest keeps the name.
    for (const auto& [top_id, top_logprob] : logprob->top) top.emplace(shown(top_id), top_logprob);
  }
  lists["top_logprobs"].push_back(std::move(top));
  lists["text_offset"].push_back(choice.text_offset);
  choice.text_offset += count_code_points(options().tokenizer->token_bytes(id));
}

void OpenAiAnswer::echo_prompt(int index, const TextPiece& piece) {
  const AnsweredPrompt& prompt = prompt_of(index);
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (options_.logprobs) {
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      const bool scored = i > 0 && i <= piece.prompt_logprobs.size();
      add_to_lists(choice, prompt.tokens[i], scored ? &piece.prompt_logprobs[i - 1] : nullptr);
    }
  }
  emit_text(index, prompt.text);
}

void OpenAiAnswer::add_logprobs(Choice& choice, const TextPiece& piece) {
  if (!options_.logprobs) return;
  for (size_t i = 0; i < piece.logprobs.size(); ++i) {
    const int32_t id = piece.token_ids[i];
    const bool is_last = i + 1 == piece.logprobs.size();
    if (is_last && piece.finish == sched::FinishReason::stop_token) continue;
    const auto& logprob = piece.logprobs[i];
    if (is_chat()) {
      Json entry = logprobs_entry(id, logprob.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [top_id, top_logprob] : logprob.top) entry["top_logprobs"].push_back(logprobs_entry(top_id, top_logprob));
      choice.logprobs["content"].push_back(std::move(entry));
    } else {
      add_to_lists(choice, id, &logprob);
    }
  }
}

void OpenAiAnswer::on_delta(int index, const TextPiece& piece, const text::OutputDelta& delta) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (options_.token_ids) choice.token_ids.insert(choice.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
  if (!choice.begun && (!piece.token_ids.empty() || piece.finish != sched::FinishReason::none)) {
    choice.begun = true;
    if (options_.echo) echo_prompt(index, piece);
  }
  add_logprobs(choice, piece);
  if (is_chat()) {
    emit(index, delta);
  } else {
    emit_text(index, delta.content);
  }
}

void OpenAiAnswer::emit_text(int index, const std::string& text) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (!options().stream) {
    choice.content += text;
  } else if (!text.empty()) {
    send_chunk(index, {{"text", text}, {"logprobs", std::exchange(choice.logprobs, Json())}, {"finish_reason", nullptr}});
  }
}

void OpenAiAnswer::emit(int index, const text::OutputDelta& delta) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const auto chunk = [&](Json fields) {
    send_chunk(index, {{"delta", std::move(fields)}, {"logprobs", std::exchange(choice.logprobs, Json())}, {"finish_reason", nullptr}});
  };
  if (!options().stream) {
    choice.reasoning += delta.reasoning;
    choice.content += delta.content;
  } else {
    if (!delta.reasoning.empty()) chunk({{"reasoning_content", delta.reasoning}});
    if (!delta.content.empty()) chunk({{"content", delta.content}});
  }
  for (const auto& call : delta.tool_calls) {
    const auto number = static_cast<size_t>(call.index);
    const bool begins = number >= choice.num_calls_begun;
    if (begins) {
      choice.num_calls_begun = number + 1;
      choice.call_ids.push_back(make_id("call_"));
    }
    if (!options().stream) {
      if (begins)
        choice.tool_calls.push_back(
            {{"id", choice.call_ids.back()}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", ""}}}});
      choice.tool_calls[number]["function"]["arguments"].get_ref<std::string&>() += call.arguments;
      continue;
    }
    Json item{{"index", call.index}};
    Json function = Json::object();
    if (begins) {
      item["id"] = choice.call_ids.back();
      item["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    item["function"] = std::move(function);
    chunk({{"tool_calls", Json::array({std::move(item)})}});
  }
}

void OpenAiAnswer::on_choice_end(int index, sched::FinishReason reason) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  remember(index, reason, choice.call_ids);
  choice.finish_reason = reason == sched::FinishReason::length ? "length" : choice.num_calls_begun > 0 ? "tool_calls" : "stop";
  if (!options().stream) return;
  Json last = Json::object();
  if (is_chat()) {
    last["delta"] = Json::object();
  } else {
    last["text"] = "";
  }
  last["logprobs"] = std::exchange(choice.logprobs, Json());
  last["finish_reason"] = choice.finish_reason;
  send_chunk(index, std::move(last));
}

void OpenAiAnswer::on_done() {
  if (options().stream) {
    if (options_.include_usage) {
      Json chunk = header(is_chat() ? "chat.completion.chunk" : "text_completion");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_json();
      writer().event(dump_json(chunk));
    }
    writer().event("[DONE]");
    return writer().end_events();
  }
  Json body = header(is_chat() ? "chat.completion" : "text_completion");
  body["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json item{{"index", i}};
    if (is_chat()) {
      Json message{{"role", "assistant"}, {"content", choice.content}};
      if (choice.content.empty() && !choice.tool_calls.empty()) message["content"] = nullptr;
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      if (!choice.tool_calls.empty()) message["tool_calls"] = choice.tool_calls;
      item["message"] = std::move(message);
    } else {
      item["text"] = choice.content;
    }
    item["logprobs"] = std::exchange(choice.logprobs, Json());
    item["finish_reason"] = choice.finish_reason;
    if (options_.token_ids) {
      item["token_ids"] = std::move(choice.token_ids);
      item["prompt_token_ids"] = prompt_of(static_cast<int>(i)).tokens;
    }
    body["choices"].push_back(std::move(item));
  }
  body["usage"] = usage_json();
  writer().respond({200, dump_json(body), "application/json", headers()});
}

void OpenAiAnswer::on_error(const ApiError& error) {
  writer().event(error_body(error.message, error.type, error.param, error.code));
  writer().event("[DONE]");
  writer().end_events();
}

}  // namespace ingot::serve
