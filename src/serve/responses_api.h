// OpenAI's Responses API on the desk: /v1/responses and what is below it. Handlers run on HTTP worker threads. The Desk and the store
// belong to the caller.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/desk.h"
#include "serve/response_store.h"

namespace ingot::serve {

class ResponsesApi {
 public:
  // `store` may be null: then nothing is kept.
  ResponsesApi(Desk& desk, ResponseStore* store) : desk_(desk), store_(store) {}

  void create(const Json& body, const std::shared_ptr<ResponseWriter>& writer);

  static constexpr std::string_view kPrefix = "/v1/responses/";
  // The methods that a path of one response takes ("GET, DELETE"); empty: it is none.
  static std::string_view methods(std::string_view path);
  // A request with one of those methods.
  HttpResponse handle(const HttpRequest& request);

 private:
  ApiResult<StoredResponse> find(const std::string& id, const char* param) const;
  // Items of the responses up to `id`, oldest first.
  ApiResult<Json> history(const std::string& id) const;
  ApiResult<Json> list_input_items(const std::string& id, std::string_view query) const;

  Desk& desk_;
  ResponseStore* store_;
};

}  // namespace ingot::serve
