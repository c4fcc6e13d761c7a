// Anthropic's Messages API on the desk: /v1/messages and /v1/messages/count_tokens. Handlers run on HTTP worker threads. The Desk belongs
// to the caller.
#pragma once

#include <memory>
#include <string_view>

#include "serve/desk.h"

namespace ingot::serve {

class MessagesApi {
 public:
  explicit MessagesApi(Desk& desk) : desk_(desk) {}
  // Whether errors of this path have Anthropic's form.
  static bool serves(std::string_view path) { return path == "/v1/messages" || path.starts_with("/v1/messages/"); }

  void create(const Json& body, const std::shared_ptr<ResponseWriter>& writer);
  void count_tokens(const Json& body, const std::shared_ptr<ResponseWriter>& writer);

 private:
  Desk& desk_;
};

}  // namespace ingot::serve
