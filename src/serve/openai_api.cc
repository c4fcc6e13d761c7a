#include "serve/openai_api.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "base/log.h"
#include "text/chat_messages.h"

namespace ingot::serve {

namespace {
struct Route {
  std::string_view path;
  std::string_view method;
};
constexpr std::array kRoutes{Route{"/v1/chat/completions", "POST"},
                             Route{"/v1/completions", "POST"},
                             Route{"/tokenize", "POST"},
                             Route{"/detokenize", "POST"},
                             Route{"/v1/models", "GET"},
                             Route{"/health", "GET"},
                             Route{"/ready", "GET"},
                             Route{"/metrics", "GET"},
                             Route{"/version", "GET"}};
constexpr std::string_view kModelsPrefix = "/v1/models/";

HttpResponse ok(const Json& body) { return {200, dump_json(body), "application/json", {}}; }

// Compares digests, so that neither content nor length of the key shows in the time it takes.
bool same_secret(std::string_view a, std::string_view b) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> left{};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> right{};
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), left.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), right.data());
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

bool ends_in_open_think(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with("<think>");
}

ApiResult<std::vector<int32_t>> encode_prompt(const ServedModel& model, std::string_view text, const char* param) {
  // Enough to count a prompt that is somewhat too long, little enough that a body of 32 MB is not tokenized to its end.
  const auto limit = static_cast<size_t>(model.defaults.context_length) * 8;
  auto ids = model.tokenizer->encode(text, limit);
  if (ids) return std::move(*ids);
  return tl::unexpected(ApiError{
      400, fmt::format("{}: {} (the context length is {} tokens)", param, ids.error().text(), model.defaults.context_length), param, {}});
}

std::optional<ApiError> check_length(const ServedModel& model, size_t num_tokens, const char* param) {
  if (static_cast<int64_t>(num_tokens) < model.defaults.context_length) return std::nullopt;
  return ApiError{400,
                  fmt::format("the prompt has {} tokens; the context length is {} tokens, at least one of them for the answer", num_tokens,
                              model.defaults.context_length),
                  param, "context_length_exceeded"};
}

std::string_view reason_of(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::too_long: return "too_long";
    case Refusal::Kind::queue_full: return "queue_full";
    case Refusal::Kind::stopping: return "stopping";
    case Refusal::Kind::engine_failed: break;
  }
  return "engine_failed";
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
  void event(std::string_view data) override { inner_->event(data); }
  void end_events() override { inner_->end_events(); }
  void post(std::function<void()> work) override { inner_->post(std::move(work)); }
  void on_gone(std::function<void()> callback) override { inner_->on_gone(std::move(callback)); }

 private:
  std::shared_ptr<ResponseWriter> inner_;
  Metrics& metrics_;
  std::string_view route_;
};

ApiError from_refusal(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::too_long: return {400, refusal.message, {}, "context_length_exceeded"};
    case Refusal::Kind::queue_full: return {429, refusal.message, {}, "queue_full", "rate_limit_error"};
    case Refusal::Kind::stopping: return {503, refusal.message, {}, "shutting_down", "server_error"};
    case Refusal::Kind::engine_failed: break;
  }
  return {500, refusal.message, {}, "engine_failed", "server_error"};
}
}  // namespace

// Ten times what a long conversation takes, and a second or two at the most for a template gone wild.
constexpr text::RenderLimits kRenderLimits{.max_steps = 4'000'000};

ApiResult<std::string> render_chat(const ServedModel& model, const ChatRequest& request, bool add_generation_prompt) {
  if (!model.chat_template) {
    return tl::unexpected(ApiError{400, "this model has no chat template; use /v1/completions", "messages", "no_chat_template"});
  }
  auto messages = text::normalize_messages(request.messages);
  if (!messages) {
    const std::string text = messages.error().text();
    return tl::unexpected(ApiError{400, text, text.substr(0, text.find(": ")), {}});  // an error begins with the field's path
  }
  Json context = model.defaults.special_tokens;
  for (const auto& [name, value] : request.template_kwargs.items()) context[name] = value;
  context["messages"] = std::move(*messages);
  if (!request.tools.empty()) context["tools"] = request.tools;
  context["add_generation_prompt"] = add_generation_prompt;
  auto text = model.chat_template->render(context, kRenderLimits, unix_seconds());
  if (!text) return tl::unexpected(ApiError{400, "the chat template refused this conversation: " + text.error().text(), "messages", {}});
  return std::move(*text);
}

ApiResult<Prompt> make_chat_prompt(const ServedModel& model, const ChatRequest& request) {
  const auto text = render_chat(model, request, true);
  if (!text) return tl::unexpected(text.error());
  auto ids = encode_prompt(model, *text, "messages");
  if (!ids) return tl::unexpected(std::move(ids).error());
  return Prompt{std::move(*ids), ends_in_open_think(*text)};
}

OpenAiApi::OpenAiApi(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, Metrics& metrics, Options options)
    : model_(std::move(model)), dispatcher_(dispatcher), metrics_(metrics), options_(std::move(options)) {}

bool OpenAiApi::authorized(const HttpRequest& request) const {
  // Probes and scrapers carry no key, and are told no content.
  constexpr std::array kOpen{"/health", "/ready", "/metrics"};
  if (options_.api_key.empty() || std::find(kOpen.begin(), kOpen.end(), request.path) != kOpen.end()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.header("authorization");
  return given.starts_with(kScheme) && same_secret(given.substr(kScheme.size()), options_.api_key);
}

void OpenAiApi::handle(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(error_response(error)); };
  const bool one_model = request.path.starts_with(kModelsPrefix) && request.path.size() > kModelsPrefix.size();
  const auto route = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == request.path; });
  writer = std::make_shared<CountingWriter>(std::move(writer), metrics_,
                                            route != kRoutes.end() ? route->path
                                            : one_model            ? kModelsPrefix
                                                                   : "other");
  if (!authorized(request))
    return refuse({401, "this server needs an API key: Authorization: Bearer KEY", {}, "invalid_api_key", "authentication_error"});
  if (route == kRoutes.end() && !one_model) return refuse({404, "no such path: " + request.path, {}, "not_found"});
  const std::string method(one_model ? "GET" : route->method);
  const std::string allowed = method == "GET" ? "GET, HEAD, OPTIONS" : method + ", OPTIONS";
  if (request.method == "OPTIONS") return writer->respond({204, {}, "text/plain", {{"Allow", allowed}}});
  if (request.method != method && !(request.method == "HEAD" && method == "GET")) {
    auto response =
        error_response({405, fmt::format("{} takes {}, not {}", request.path, method, request.method), {}, "method_not_allowed"});
    response.headers.emplace_back("Allow", allowed);
    return writer->respond(std::move(response));
  }

  this->route(request, method, writer);
}

void OpenAiApi::route(const HttpRequest& request, std::string_view method, const std::shared_ptr<ResponseWriter>& writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(error_response(error)); };
  if (method == "POST") {
    const auto body = parse_json(request.body, "the request body");
    if (!body) return refuse({400, body.error().text(), {}, "invalid_json"});
    if (request.path == "/v1/chat/completions") return chat(*body, writer);
    if (request.path == "/v1/completions") return completion(*body, writer);
    const Reply reply = request.path == "/tokenize" ? tokenize(*body) : detokenize(*body);
    return reply ? writer->respond(*reply) : refuse(reply.error());
  }
  if (request.path == "/health" || request.path == "/ready") {
    const Reply reply = request.path == "/health" ? health() : ready();
    return reply ? writer->respond(*reply) : refuse(reply.error());
  }
  if (request.path == "/metrics") return writer->respond({200, metrics_.scrape(), std::string(Metrics::kContentType), {}});
  if (request.path == "/version") return writer->respond(ok({{"version", INGOT_VERSION}}));
  if (request.path == "/v1/models") return writer->respond(ok({{"object", "list"}, {"data", Json::array({model_card()})}}));
  if (const auto error = check_model(request.path.substr(kModelsPrefix.size()))) return refuse(*error);
  writer->respond(ok(model_card()));
}

Json OpenAiApi::model_card() const {
  return {{"id", model_->name},
          {"object", "model"},
          {"created", model_->created},
          {"owned_by", "ingot"},
          {"max_model_len", model_->defaults.context_length}};
}

std::optional<ApiError> OpenAiApi::check_model(const std::string& name) const {
  if (name.empty() || name == model_->name) return std::nullopt;
  return ApiError{404, fmt::format("the model \"{}\" is not served here; \"{}\" is", name, model_->name), "model", "model_not_found"};
}

void OpenAiApi::chat(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  auto request = parse_chat_request(body, model_->defaults);
  if (!request) return writer->respond(error_response(request.error()));
  if (const auto error = check_model(request->options.model)) return writer->respond(error_response(*error));
  auto prompt = make_chat_prompt(*model_, *request);
  if (!prompt) return writer->respond(error_response(prompt.error()));
  if (const auto error = check_length(*model_, prompt->tokens.size(), "messages")) return writer->respond(error_response(*error));

  AnswerOptions answer;
  answer.kind = AnswerOptions::Kind::chat;
  answer.parser.starts_in_reasoning = prompt->starts_in_reasoning;
  answer.parser.parse_tool_calls = !request->tools.empty();
  answer.parser.tools = std::move(request->tools);
  answer.think_end_id = model_->tokenizer->token_to_id("</think>");
  if (answer.parser.parse_tool_calls) answer.tool_call_id = model_->tokenizer->token_to_id("<tool_call>");
  generate(std::move(request->options), std::move(prompt->tokens), std::move(answer), writer);
}

void OpenAiApi::completion(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  auto request = parse_completion_request(body, model_->defaults);
  if (!request) return writer->respond(error_response(request.error()));
  if (const auto error = check_model(request->options.model)) return writer->respond(error_response(*error));
  std::vector<int32_t> tokens;
  if (const auto* text = std::get_if<std::string>(&request->prompt)) {
    auto ids = encode_prompt(*model_, *text, "prompt");
    if (!ids) return writer->respond(error_response(ids.error()));
    tokens = std::move(*ids);
  } else {
    tokens = std::move(std::get<std::vector<int32_t>>(request->prompt));
  }
  if (const auto error = check_length(*model_, tokens.size(), "prompt")) return writer->respond(error_response(*error));
  AnswerOptions answer;
  answer.kind = AnswerOptions::Kind::completion;
  generate(std::move(request->options), std::move(tokens), std::move(answer), writer);
}

void OpenAiApi::generate(GenerationOptions options, std::vector<int32_t> prompt, AnswerOptions answer_options,
                         const std::shared_ptr<ResponseWriter>& writer) {
  answer_options.model = model_->name;
  answer_options.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  answer_options.stream = options.stream;
  answer_options.include_usage = options.include_usage;
  answer_options.logprobs = options.sampling.top_logprobs >= 0;
  answer_options.num_top_logprobs = options.sampling.top_logprobs;
  answer_options.tokenizer = model_->tokenizer;
  answer_options.forced_acceptance = model_->forced_acceptance;

  sched::Request request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(options.sampling);
  request.priority = options.priority;
  request.max_draft_tokens = options.max_draft_tokens;
  const int64_t room = model_->defaults.context_length - static_cast<int64_t>(request.prompt.size());
  if (request.sampling.max_tokens == 0) request.sampling.max_tokens = static_cast<int32_t>(room);
  auto answer = std::make_shared<Answer>(std::move(answer_options), writer);
  request.name = answer->id();
  attach_text(request, model_->tokenizer, std::move(options.stop_strings), [answer, writer](TextPiece piece) {
    writer->post([answer, piece = std::move(piece)]() mutable { answer->add(std::move(piece)); });
  });
  const auto ticket = dispatcher_.submit(std::move(request));
  if (!ticket) {
    metrics_.on_refused(reason_of(ticket.error()));
    return writer->respond(error_response(from_refusal(ticket.error())));
  }
  writer->post([answer, replica = ticket->replica] { answer->begin(replica); });
  writer->on_gone([this, ticket = *ticket] { dispatcher_.cancel(ticket); });
}

OpenAiApi::Reply OpenAiApi::tokenize(const Json& body) const {
  auto request = parse_tokenize_request(body, model_->defaults);
  if (!request) return tl::unexpected(std::move(request).error());
  if (auto error = check_model(request->model)) return tl::unexpected(std::move(*error));
  std::vector<int32_t> tokens;
  if (const auto* chat = std::get_if<ChatRequest>(&request->input)) {
    auto prompt = make_chat_prompt(*model_, *chat);
    if (!prompt) return tl::unexpected(std::move(prompt).error());
    tokens = std::move(prompt->tokens);
  } else {
    auto ids = model_->tokenizer->encode(std::get<std::string>(request->input));
    if (!ids) return tl::unexpected(ApiError{400, ids.error().text(), "prompt", {}});
    tokens = std::move(*ids);
  }
  return ok({{"count", tokens.size()}, {"max_model_len", model_->defaults.context_length}, {"tokens", std::move(tokens)}});
}

OpenAiApi::Reply OpenAiApi::detokenize(const Json& body) const {
  const auto request = parse_detokenize_request(body, model_->defaults);
  if (!request) return tl::unexpected(request.error());
  if (auto error = check_model(request->model)) return tl::unexpected(std::move(*error));
  return ok({{"prompt", model_->tokenizer->decode(request->tokens, false)}});
}

OpenAiApi::Reply OpenAiApi::health() const {
  std::string reason;
  if (!dispatcher_.healthy(&reason)) return tl::unexpected(ApiError{503, reason, {}, "engine_unhealthy", "server_error"});
  const ReplicaState state = dispatcher_.total();
  return ok({{"status", "ok"},
             {"replicas", dispatcher_.num_replicas()},
             {"running", state.running},
             {"waiting", state.waiting},
             {"free_pages", state.free_pages},
             {"cached_pages", state.cached_pages},
             {"total_pages", state.total_pages}});
}

OpenAiApi::Reply OpenAiApi::ready() const {
  if (draining_) return tl::unexpected(ApiError{503, "the server is shutting down", {}, "shutting_down", "server_error"});
  std::string reason;
  if (!dispatcher_.healthy(&reason)) return tl::unexpected(ApiError{503, reason, {}, "engine_unhealthy", "server_error"});
  return ok({{"status", "ready"}});
}

}  // namespace ingot::serve
