#include "serve/messages_api.h"

#include "serve/messages_answer.h"
#include "serve/messages_request.h"

namespace ingot::serve {

void MessagesApi::create(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  auto request = parse_messages_request(body, desk_.model().defaults, MessagesUse::answer);
  if (!request) return writer->respond(messages_error_response(request.error()));
  ChatRequest& chat = request->chat;
  auto prompt = desk_.prepare(chat);
  if (!prompt) return writer->respond(messages_error_response(request->names.rename(prompt.error())));
  const MessagesAnswerOptions options{request->omits_thinking, chat.options.sampling.max_tokens};
  const auto answer = std::make_shared<MessagesAnswer>(desk_.answer_options(chat, *prompt), options, writer);
  desk_.submit(std::move(chat.options), std::move(prompt->tokens), answer, writer);
}

void MessagesApi::count_tokens(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  const auto request = parse_messages_request(body, desk_.model().defaults, MessagesUse::count_tokens);
  if (!request) return writer->respond(messages_error_response(request.error()));
  const auto prompt = desk_.make_prompt(request->chat);
  if (!prompt) return writer->respond(messages_error_response(request->names.rename(prompt.error())));
  writer->respond({200, dump_json({{"input_tokens", prompt->tokens.size()}}), "application/json", {}});
}

}  // namespace ingot::serve
