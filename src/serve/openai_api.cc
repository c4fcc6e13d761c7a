#include "serve/openai_api.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "serve/answer_constraint.h"
#include "serve/messages_answer.h"
#include "serve/openapi.h"

namespace ingot::serve {

namespace {
struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr std::array kRoutes{Route{"/v1/chat/completions", "POST"},
                             Route{"/v1/completions", "POST"},
                             Route{"/v1/responses", "POST"},
                             Route{"/v1/messages", "POST"},
                             Route{"/v1/messages/count_tokens", "POST"},
                             Route{"/tokenize", "POST"},
                             Route{"/detokenize", "POST"},
                             Route{"/v1/models", "GET"},
                             Route{"/health", "GET"},
                             Route{"/ready", "GET"},
                             Route{"/metrics", "GET"},
                             Route{"/server_info", "GET"},
                             Route{"/get_server_info", "GET"},
                             Route{"/model_info", "GET"},
                             Route{"/get_model_info", "GET"},
                             Route{"/get_load", "GET"},
                             Route{"/get_loads", "GET"},
                             Route{"/v1/loads", "GET"},
                             Route{"/health_generate", "GET"},
                             Route{"/flush_cache", "POST"},
                             Route{"/openapi.json", "GET"},
                             Route{"/version", "GET"}};
constexpr std::string_view kModelsPrefix = "/v1/models/";

// What clients look for, and this server has not.
struct Missing {
  std::string_view prefix;
  std::string_view what;
};
constexpr std::array kMissing{Missing{"/v1/embeddings", "embeddings"},
                              Missing{"/embeddings", "embeddings"},
                              Missing{"/v1/audio/", "audio"},
                              Missing{"/v1/images/", "images"},
                              Missing{"/v1/videos", "videos"},
                              Missing{"/v1/rerank", "reranking"},
                              Missing{"/v2/rerank", "reranking"},
                              Missing{"/rerank", "reranking"},
                              Missing{"/v1/score", "scoring of pairs; /v1/completions with echo and max_tokens 0 scores a text"},
                              Missing{"/score", "scoring of pairs; /v1/completions with echo and max_tokens 0 scores a text"},
                              Missing{"/v1/moderations", "moderation"},
                              Missing{"/v1/files", "files"},
                              Missing{"/v1/uploads", "files"},
                              Missing{"/v1/batches", "batches; send the requests side by side"},
                              Missing{"/v1/fine_tuning", "fine-tuning"},
                              Missing{"/v1/assistants", "assistants; use /v1/responses"},
                              Missing{"/v1/threads", "assistants; use /v1/responses"},
                              Missing{"/v1/conversations", "stored conversations; use previous_response_id of /v1/responses"},
                              Missing{"/v1/vector_stores", "vector stores"},
                              Missing{"/v1/realtime", "realtime sessions"},
                              Missing{"/generate", "SGLang's own API; use /v1/completions"},
                              Missing{"/pooling", "pooling"},
                              Missing{"/classify", "classification"}};

ApiError no_such_path(const std::string& path) {
  const auto missing = std::find_if(kMissing.begin(), kMissing.end(), [&](const Missing& m) { return path.starts_with(m.prefix); });
  if (missing == kMissing.end()) return {404, fmt::format("no such path: {}; GET /openapi.json lists them", path), {}, "not_found"};
  return {404, fmt::format("{}: this server has no {}", path, missing->what), {}, "not_found"};
}

// In the form of the dialect that the path belongs to.
HttpResponse refusal(const HttpRequest& request, const ApiError& error) {
  return MessagesApi::serves(request.path) ? messages_error_response(error) : error_response(error);
}

HttpResponse ok(const Json& body) { return {200, dump_json(body), "application/json", {}}; }

// Compares digests, so that neither content nor length of the key shows in the time it takes.
bool same_secret(std::string_view a, std::string_view b) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> left{};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> right{};
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), left.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), right.data());
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

// Counts each answer by its route, whoever gives it.
class CountingWriter final : public ResponseWriter {
 public:
  CountingWriter(std::shared_ptr<ResponseWriter> inner, Metrics& metrics, std::string_view route)
      : inner_(std::move(inner)), metrics_(metrics), route_(route) {}
  void respond(HttpResponse response) override {
    metrics_.on_http_request(route_, response.status);
    inner_->respond(std::move(response));
  }
  void start_events(HttpHeaders headers) override {
    metrics_.on_http_request(route_, 200);
    inner_->start_events(std::move(headers));
  }
  void event(std::string_view data, std::string_view name) override { inner_->event(data, name); }
  void end_events() override { inner_->end_events(); }
  void post(std::function<void()> work) override { inner_->post(std::move(work)); }
  void on_gone(std::function<void()> callback) override { inner_->on_gone(std::move(callback)); }

 private:
  std::shared_ptr<ResponseWriter> inner_;
  Metrics& metrics_;
  std::string_view route_;
};

}  // namespace

OpenAiApi::OpenAiApi(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, Metrics& metrics, Options options)
    : desk_(std::move(model), dispatcher, metrics),
      metrics_(metrics),
      options_(std::move(options)),
      responses_(desk_, options_.response_store),
      messages_(desk_) {}

bool OpenAiApi::authorized(const HttpRequest& request) const {
  // Probes and scrapers carry no key, and are told no content.
  constexpr std::array kOpen{"/health", "/ready", "/metrics"};
  if (options_.api_key.empty() || std::find(kOpen.begin(), kOpen.end(), request.path) != kOpen.end()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.header("authorization");
  if (given.starts_with(kScheme) && same_secret(given.substr(kScheme.size()), options_.api_key)) return true;
  const std::string_view key = request.header("x-api-key");  // Anthropic's clients
  return !key.empty() && same_secret(key, options_.api_key);
}

void OpenAiApi::handle(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(refusal(request, error)); };
  const bool one_model = request.path.starts_with(kModelsPrefix) && request.path.size() > kModelsPrefix.size();
  const std::string_view of_response = ResponsesApi::methods(request.path);
  const bool one_response = !of_response.empty();
  const auto route = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == request.path; });
  writer = std::make_shared<CountingWriter>(std::move(writer), metrics_,
                                            route != kRoutes.end() ? route->path
                                            : one_model            ? kModelsPrefix
                                            : one_response         ? ResponsesApi::kPrefix
                                                                   : "other");
  if (!authorized(request))
    return refuse(
        {401, "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY", {}, "invalid_api_key", "authentication_error"});
  if (route == kRoutes.end() && !one_model && !one_response) return refuse(no_such_path(request.path));
  const std::string method(one_model ? "GET" : one_response ? of_response : route->method);
  const std::string allowed = (method == "GET" ? "GET, HEAD" : method) + ", OPTIONS";
  if (request.method == "OPTIONS") return writer->respond({204, {}, "text/plain", {{"Allow", allowed}}});
  const bool may = one_response && (" " + method + ",").find(" " + request.method + ",") != std::string::npos;
  if (!may && request.method != method && !(request.method == "HEAD" && method == "GET")) {
    auto response =
        refusal(request, {405, fmt::format("{} takes {}, not {}", request.path, method, request.method), {}, "method_not_allowed"});
    response.headers.emplace_back("Allow", allowed);
    return writer->respond(std::move(response));
  }

  if (one_response) return writer->respond(responses_.handle(request));
  this->route(request, method, writer);
}

void OpenAiApi::route(const HttpRequest& request, std::string_view method, const std::shared_ptr<ResponseWriter>& writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(refusal(request, error)); };
  if (options_.worker != nullptr && options_.worker->serves(request.path)) return options_.worker->handle(request, writer);
  if (method == "POST") {
    const auto body = parse_json(request.body, "the request body");
    if (!body) return refuse({400, body.error().text(), {}, "invalid_json"});
    if (request.path == "/v1/chat/completions") return chat(*body, writer);
    if (request.path == "/v1/completions") return completion(*body, writer);
    if (request.path == "/v1/responses") return responses_.create(*body, writer);
    if (request.path == "/v1/messages") return messages_.create(*body, writer);
    if (request.path == "/v1/messages/count_tokens") return messages_.count_tokens(*body, writer);
    const Reply reply = request.path == "/tokenize" ? tokenize(*body) : detokenize(*body);
    return reply ? writer->respond(*reply) : refuse(reply.error());
  }
  if (request.path == "/health" || request.path == "/ready") {
    const Reply reply = request.path == "/health" ? health() : ready();
    return reply ? writer->respond(*reply) : refuse(reply.error());
  }
  if (request.path == "/metrics") return writer->respond({200, metrics_.scrape(), std::string(Metrics::kContentType), {}});
  if (request.path == "/openapi.json") {
    static const std::string document = dump_json(openapi_document());
    return writer->respond({200, document, "application/json", {}});
  }
  if (request.path == "/version") return writer->respond(ok({{"version", INGOT_VERSION}}));
  if (request.path == "/v1/models") return writer->respond(ok({{"object", "list"}, {"data", Json::array({model_card()})}}));
  if (const auto error = desk_.check_model(request.path.substr(kModelsPrefix.size()))) return refuse(*error);
  writer->respond(ok(model_card()));
}

Json OpenAiApi::model_card() const {
  return {{"id", desk_.model().name},
          {"object", "model"},
          {"created", desk_.model().created},
          {"owned_by", "ingot"},
          {"max_model_len", desk_.model().defaults.context_length}};
}

void OpenAiApi::chat(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  auto request = parse_chat_request(body, desk_.model().defaults);
  if (!request) return writer->respond(error_response(request.error()));
  auto prompt = desk_.prepare(*request);
  if (!prompt) return writer->respond(error_response(prompt.error()));
  OpenAiAnswerOptions options(OpenAiAnswerOptions::Kind::chat, request->options);
  if (options.token_ids) options.prompts.push_back({{}, prompt->tokens});
  const auto answer = std::make_shared<OpenAiAnswer>(desk_.answer_options(*request, *prompt), std::move(options), writer);
  desk_.submit(std::move(request->options), std::move(prompt->tokens), answer, writer);
}

// A prompt in tokens, and in text as it is echoed. Errors: too long.
ApiResult<AnsweredPrompt> OpenAiApi::read_prompt(CompletionRequest::Prompt prompt) const {
  AnsweredPrompt answered;
  if (auto* text = std::get_if<std::string>(&prompt)) {
    auto ids = desk_.encode(*text, "prompt");
    if (!ids) return tl::unexpected(std::move(ids).error());
    answered = {std::move(*text), std::move(*ids)};
  } else {
    answered.tokens = std::move(std::get<std::vector<int32_t>>(prompt));
    answered.text = desk_.model().tokenizer->decode(answered.tokens, false);
  }
  if (auto error = desk_.check_length(answered.tokens.size(), "prompt")) return tl::unexpected(std::move(*error));
  return answered;
}

void OpenAiApi::completion(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(error_response(error)); };
  auto request = parse_completion_request(body, desk_.model().defaults);
  if (!request) return refuse(request.error());
  if (const auto error = desk_.check_model(request->options.model)) return refuse(*error);
  OpenAiAnswerOptions options(OpenAiAnswerOptions::Kind::completion, request->options);
  options.echo = request->echo;
  std::vector<std::vector<int32_t>> prompts;
  size_t num_tokens = 0;
  for (CompletionRequest::Prompt& given : request->prompts) {
    auto prompt = read_prompt(std::move(given));
    if (!prompt) return refuse(prompt.error());
    num_tokens += prompt->tokens.size();
    prompts.push_back(prompt->tokens);
    if (options.echo || options.token_ids) options.prompts.push_back(std::move(*prompt));
  }
  auto constraint = make_constraints(desk_.model(), request->options, nullptr, false);
  if (!constraint) return refuse(constraint.error());
  request->options.constraint = std::move(*constraint);
  auto common = desk_.with_common({}, request->options, num_tokens, prompts.size());
  const auto answer = std::make_shared<OpenAiAnswer>(std::move(common), std::move(options), writer);
  desk_.submit_all(std::move(request->options), std::move(prompts), answer, writer);
}

OpenAiApi::Reply OpenAiApi::tokenize(const Json& body) const {
  auto request = parse_tokenize_request(body, desk_.model().defaults);
  if (!request) return tl::unexpected(std::move(request).error());
  if (auto error = desk_.check_model(request->model)) return tl::unexpected(std::move(*error));
  std::vector<int32_t> tokens;
  if (const auto* chat = std::get_if<ChatRequest>(&request->input)) {
    auto prompt = make_chat_prompt(desk_.model(), *chat);
    if (!prompt) return tl::unexpected(std::move(prompt).error());
    tokens = std::move(prompt->tokens);
  } else {
    auto ids = desk_.model().tokenizer->encode(std::get<std::string>(request->input));
    if (!ids) return tl::unexpected(ApiError{400, ids.error().text(), "prompt", {}});
    tokens = std::move(*ids);
  }
  return ok({{"count", tokens.size()}, {"max_model_len", desk_.model().defaults.context_length}, {"tokens", std::move(tokens)}});
}

OpenAiApi::Reply OpenAiApi::detokenize(const Json& body) const {
  const auto request = parse_detokenize_request(body, desk_.model().defaults);
  if (!request) return tl::unexpected(request.error());
  if (auto error = desk_.check_model(request->model)) return tl::unexpected(std::move(*error));
  return ok({{"prompt", desk_.model().tokenizer->decode(request->tokens, false)}});
}

OpenAiApi::Reply OpenAiApi::health() const {
  std::string reason;
  if (!desk_.dispatcher().healthy(&reason)) return tl::unexpected(ApiError{503, reason, {}, "engine_unhealthy", "server_error"});
  const ReplicaState state = desk_.dispatcher().total();
  return ok({{"status", "ok"},
             {"replicas", desk_.dispatcher().num_replicas()},
             {"running", state.running},
             {"waiting", state.waiting},
             {"free_pages", state.free_pages},
             {"cached_pages", state.cached_pages},
             {"total_pages", state.total_pages}});
}

OpenAiApi::Reply OpenAiApi::ready() const {
  if (draining_) return tl::unexpected(ApiError{503, "the server is shutting down", {}, "shutting_down", "server_error"});
  std::string reason;
  if (!desk_.dispatcher().healthy(&reason)) return tl::unexpected(ApiError{503, reason, {}, "engine_unhealthy", "server_error"});
  return ok({{"status", "ready"}});
}

}  // namespace ingot::serve
