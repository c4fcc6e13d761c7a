// A body through the desk's parsers: it becomes a request in its ranges, or an error a client can be shown: 4xx, with a message, UTF-8.
// Input: the JSON body as it is; every parser gets it. A conversation that passes is made ready for a template, as the server does next.
#include "serve/openai_request.h"

#include "fuzz.h"
#include "serve/messages_request.h"
#include "serve/responses_request.h"
#include "text/chat_messages.h"
#include "text/utf8_text.h"

namespace ingot::serve {
namespace {

constexpr int64_t kVocabSize = 6144;

const RequestDefaults& defaults() {
  static const RequestDefaults value = [] {
    RequestDefaults d;
    d.eos_token_ids = {7, 8};
    d.vocab_size = kVocabSize;
    d.context_length = 4096;
    d.chat_template_source = "{{ messages }}{{ tools }}{{ enable_thinking }}{{ clear_thinking }}{{ reasoning_effort }}{{ x }}";
    return d;
  }();
  return value;
}

void check_shown(const std::string& text) {
  INGOT_CHECK(!text.empty(), "an empty message");
  const std::string shown = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  INGOT_CHECK(text::find_invalid_utf8(shown) == text::kValidUtf8, "the message is not UTF-8 when shown");
}

template <class T>
bool refused(const ApiResult<T>& result) {
  if (result) return false;
  const ApiError& error = result.error();
  INGOT_CHECK(error.status >= 400 && error.status <= 499, "status {}", error.status);
  check_shown(error.message);
  INGOT_CHECK(text::find_invalid_utf8(error.message) == text::kValidUtf8, "a body in UTF-8 gave a message that is not");
  INGOT_CHECK(!error.type.empty());
  return true;
}

void check_ids(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) INGOT_CHECK(id >= 0 && id < kVocabSize, "token id {}", id);
}

void check_options(const GenerationOptions& options) {
  const sched::SamplingParams& s = options.sampling;
  INGOT_CHECK(s.temperature >= 0 && s.top_p > 0 && s.top_p <= 1 && s.top_k >= 0 && s.min_p >= 0 && s.min_p <= 1 && s.max_tokens >= 0);
  INGOT_CHECK(s.top_logprobs >= -1);
  check_ids(s.stop_token_ids);
  for (const std::string& stop : options.stop_strings) INGOT_CHECK(!stop.empty());
}

void check_chat(const ChatRequest& chat) {
  check_options(chat.options);
  INGOT_CHECK(chat.messages.is_array() && chat.tools.is_array() && chat.template_kwargs.is_object());
  const auto messages = text::normalize_messages(chat.messages);
  if (!messages) return check_shown(messages.error().text());
  for (const Json& message : *messages) INGOT_CHECK(message["content"].is_string() && message["role"].is_string());
}

void run(std::string_view text) {
  const auto body = parse_json(text, "the request body");
  if (!body) return check_shown(body.error().text());
  INGOT_CHECK(text.find('\0') == std::string_view::npos, "a zero byte is in no JSON document, but this body was taken for one");
  if (const auto chat = parse_chat_request(*body, defaults()); !refused(chat)) check_chat(*chat);
  if (const auto completion = parse_completion_request(*body, defaults()); !refused(completion)) {
    check_options(completion->options);
    INGOT_CHECK(completion->options.sampling.max_tokens > 0 || (completion->options.score_only && completion->echo));
    INGOT_CHECK(!completion->prompts.empty() &&
                completion->prompts.size() * static_cast<size_t>(completion->options.num_choices) <= kMaxChoices);
    for (const auto& prompt : completion->prompts) {
      if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) check_ids(*ids);
    }
  }
  if (const auto tokenize = parse_tokenize_request(*body, defaults()); !refused(tokenize)) {
    if (const auto* chat = std::get_if<ChatRequest>(&tokenize->input)) check_chat(*chat);
  }
  for (const MessagesUse use : {MessagesUse::answer, MessagesUse::count_tokens}) {
    if (const auto messages = parse_messages_request(*body, defaults(), use); !refused(messages)) check_chat(messages->chat);
  }
  if (auto responses = parse_responses_request(*body, true); !refused(responses)) {
    // What is stored comes back as history.
    for (const Json& history : {Json::array(), responses->input}) {
      ResponsesRequest request = *responses;
      const auto error = finish_responses_request(request, history, defaults());
      if (!refused(error ? ApiResult<bool>(tl::unexpected(*error)) : ApiResult<bool>(true))) check_chat(request.chat);
    }
  }
  if (const auto detokenize = parse_detokenize_request(*body, defaults()); !refused(detokenize)) check_ids(detokenize->tokens);
}

}  // namespace
}  // namespace ingot::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::serve::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
