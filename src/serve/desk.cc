#include "serve/desk.h"

#include <algorithm>
#include <mutex>

#include "serve/answer_constraint.h"
#include "text/chat_messages.h"

namespace ingot::serve {

namespace {
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

std::string_view reason_of(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::too_long: return "too_long";
    case Refusal::Kind::queue_full: return "queue_full";
    case Refusal::Kind::stopping: return "stopping";
    case Refusal::Kind::engine_failed: break;
  }
  return "engine_failed";
}

ApiError from_refusal(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::too_long: return {400, refusal.message, {}, "context_length_exceeded"};
    case Refusal::Kind::queue_full: return {429, refusal.message, {}, "queue_full", "rate_limit_error"};
    case Refusal::Kind::stopping: return {503, refusal.message, {}, "shutting_down", "server_error"};
    case Refusal::Kind::engine_failed: break;
  }
  return {500, refusal.message, {}, "engine_failed", "server_error"};
}

// The choices of one request as they stand with the engine; the io thread and the handler share it.
struct Tickets {
  std::mutex mutex;
  std::vector<Dispatcher::Ticket> sent;
  bool cancelled = false;
};

// Ten times what a long conversation takes, and a second or two at the most for a template gone wild.
constexpr text::RenderLimits kRenderLimits{.max_steps = 4'000'000};

ApiResult<Json> normal_messages(const ServedModel& model, const ChatRequest& request) {
  if (!model.chat_template) {
    return tl::unexpected(ApiError{400, "this model has no chat template; use /v1/completions", "messages", "no_chat_template"});
  }
  auto messages = text::normalize_messages(request.messages);
  if (messages) return std::move(*messages);
  const std::string text = messages.error().text();
  return tl::unexpected(ApiError{400, text, text.substr(0, text.find(": ")), {}});  // an error begins with the field's path
}

ApiResult<std::string> render(const ServedModel& model, const ChatRequest& request, const Json& messages, bool add_generation_prompt) {
  Json context = model.defaults.special_tokens;
  for (const auto& [name, value] : request.template_kwargs.items()) context[name] = value;
  context["messages"] = messages;
  if (!request.tools.empty()) context["tools"] = request.tools;
  context["add_generation_prompt"] = add_generation_prompt;
  auto text = model.chat_template->render(context, kRenderLimits, unix_seconds());
  if (!text) return tl::unexpected(ApiError{400, "the chat template refused this conversation: " + text.error().text(), "messages", {}});
  return std::move(*text);
}

ApiResult<Prompt> make_replayed_prompt(const ServedModel& model, const ChatRequest& request, ReplayMarks& marks) {
  auto text = render(model, request, marks.messages(), true);
  // What the template cannot write in marks, it writes as the client sent it.
  while (text && marks.drop_misplaced(*text)) text = render(model, request, marks.messages(), true);
  if (!text) return tl::unexpected(text.error());
  Prompt prompt;
  for (const ReplayMarks::Part& part : marks.split(*text)) {
    if (part.turn) {
      prompt.tokens.insert(prompt.tokens.end(), part.turn->tokens.begin(), part.turn->tokens.end());
      continue;
    }
    const auto ids = encode_prompt(model, part.text, "messages");
    if (!ids) return tl::unexpected(ids.error());
    prompt.tokens.insert(prompt.tokens.end(), ids->begin(), ids->end());
  }
  prompt.starts_in_reasoning = ends_in_open_think(*text);
  return prompt;
}
}  // namespace

ApiResult<std::string> render_chat(const ServedModel& model, const ChatRequest& request, bool add_generation_prompt) {
  const auto messages = normal_messages(model, request);
  if (!messages) return tl::unexpected(messages.error());
  return render(model, request, *messages, add_generation_prompt);
}

ApiResult<Prompt> make_chat_prompt(const ServedModel& model, const ChatRequest& request, ReplayStore* replay) {
  const auto messages = normal_messages(model, request);
  if (!messages) return tl::unexpected(messages.error());
  if (replay != nullptr) {
    ReplayMarks marks(*replay, *messages);
    if (!marks.empty()) {
      // A template that cannot write marks may still write the conversation.
      if (auto prompt = make_replayed_prompt(model, request, marks)) return prompt;
    }
  }
  const auto text = render(model, request, *messages, true);
  if (!text) return tl::unexpected(text.error());
  auto ids = encode_prompt(model, *text, "messages");
  if (!ids) return tl::unexpected(std::move(ids).error());
  return Prompt{std::move(*ids), ends_in_open_think(*text), {}};
}

Desk::Desk(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, Metrics& metrics)
    : model_(std::move(model)), dispatcher_(dispatcher), metrics_(metrics), replay_(std::make_shared<ReplayStore>()) {}

std::optional<ApiError> Desk::check_model(const std::string& name) const {
  if (name.empty() || name == model_->name) return std::nullopt;
  return ApiError{404, fmt::format("the model \"{}\" is not served here; \"{}\" is", name, model_->name), "model", "model_not_found"};
}

ApiResult<std::vector<int32_t>> Desk::encode(std::string_view text, const char* param) const { return encode_prompt(*model_, text, param); }

std::optional<ApiError> Desk::check_length(size_t num_tokens, const char* param) const {
  const int64_t context_length = model_->defaults.context_length;
  if (static_cast<int64_t>(num_tokens) < context_length) return std::nullopt;
  return ApiError{400,
                  fmt::format("the prompt has {} tokens; the context length is {} tokens, at least one of them for the answer", num_tokens,
                              context_length),
                  param, "context_length_exceeded"};
}

ApiResult<Prompt> Desk::make_prompt(const ChatRequest& request) const {
  if (auto error = check_model(request.options.model)) return tl::unexpected(std::move(*error));
  return make_chat_prompt(*model_, request, replay_.get());
}

ApiResult<Prompt> Desk::prepare(const ChatRequest& request) const {
  auto prompt = make_prompt(request);
  if (!prompt) return prompt;
  if (auto error = check_length(prompt->tokens.size(), "messages")) return tl::unexpected(std::move(*error));
  auto constraint = make_constraints(*model_, request.options, &request.tool_choice, prompt->starts_in_reasoning);
  if (!constraint) return tl::unexpected(std::move(constraint).error());
  prompt->constraint = std::move(*constraint);
  return prompt;
}

AnswerOptions Desk::answer_options(ChatRequest& request, const Prompt& prompt) const {
  AnswerOptions options;
  request.options.constraint = prompt.constraint;
  options.parser.emplace();
  options.parser->starts_in_reasoning = prompt.starts_in_reasoning;
  options.parser->parse_reasoning = request.reasoning != ChatRequest::Reasoning::in_content;
  options.hide_reasoning = request.reasoning == ChatRequest::Reasoning::hidden;
  options.parser->parse_tool_calls = !request.tools.empty();
  options.parser->tools = std::move(request.tools);
  options.think_end_id = model_->tokenizer->token_to_id("</think>");
  if (options.parser->parse_tool_calls) options.tool_call_id = model_->tokenizer->token_to_id("<tool_call>");
  options.replay = replay_;
  return with_common(std::move(options), request.options, prompt.tokens.size());
}

AnswerOptions Desk::with_common(AnswerOptions options, const GenerationOptions& generation, size_t num_prompt_tokens,
                                size_t num_prompts) const {
  options.model = model_->name;
  options.num_prompt_tokens = static_cast<int64_t>(num_prompt_tokens);
  options.num_prompts = static_cast<int>(num_prompts);
  options.num_choices = options.num_prompts * generation.num_choices;
  options.stream = generation.stream;
  options.tokenizer = model_->tokenizer;
  options.forced_acceptance = model_->forced_acceptance;
  return options;
}

void Desk::submit(GenerationOptions options, std::vector<int32_t> prompt, const std::shared_ptr<Answer>& answer,
                  const std::shared_ptr<ResponseWriter>& writer) {
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(prompt));
  submit_all(std::move(options), std::move(prompts), answer, writer);
}

sched::Request Desk::make_request(const GenerationOptions& options, std::vector<int32_t> prompt, int choice) const {
  sched::Request request;
  request.prompt = std::move(prompt);
  request.sampling = options.sampling;
  if (options.sampling.max_tokens == 0 && !options.score_only)
    request.sampling.max_tokens = static_cast<int32_t>(model_->defaults.context_length - static_cast<int64_t>(request.prompt.size()));
  // Each choice draws numbers of its own; the first one those of a request that asks for one.
  request.sampling.seed += static_cast<uint64_t>(choice);
  request.priority = options.priority;
  request.max_draft_tokens = options.max_draft_tokens;
  if (options.constraint) request.constraint = options.constraint();
  return request;
}

void Desk::submit_all(GenerationOptions options, std::vector<std::vector<int32_t>> prompts, const std::shared_ptr<Answer>& answer,
                      const std::shared_ptr<ResponseWriter>& writer) {
  const auto tickets = std::make_shared<Tickets>();
  const auto cancel_all = [this, tickets] {
    std::vector<Dispatcher::Ticket> sent;
    {
      const std::lock_guard lock(tickets->mutex);
      tickets->cancelled = true;
      sent.swap(tickets->sent);
    }
    for (const Dispatcher::Ticket& ticket : sent) dispatcher_.cancel(ticket);
  };
  const int num_choices = static_cast<int>(prompts.size()) * options.num_choices;
  for (int choice = 0; choice < num_choices; ++choice) {
    const int of_prompt = choice % options.num_choices;
    std::vector<int32_t>& prompt = prompts[static_cast<size_t>(choice / options.num_choices)];
    const bool last_of_prompt = of_prompt + 1 == options.num_choices;
    sched::Request request = make_request(options, last_of_prompt ? std::move(prompt) : prompt, of_prompt);
    request.name = num_choices == 1 ? answer->id() : fmt::format("{}-{}", answer->id(), choice);
    attach_text(request, model_->tokenizer, options.stop_strings, [answer, writer, choice, cancel_all](TextPiece piece) {
      writer->post([answer, choice, cancel_all, piece = std::move(piece)]() mutable {
        if (answer->add(choice, std::move(piece))) cancel_all();
      });
    });
    const auto ticket = dispatcher_.submit(std::move(request));
    if (!ticket) {
      metrics_.on_refused(reason_of(ticket.error()));
      cancel_all();
      return writer->post([answer, error = from_refusal(ticket.error())] { answer->fail(error); });
    }
    bool gone = false;
    {
      const std::lock_guard lock(tickets->mutex);
      gone = tickets->cancelled;
      if (!gone) tickets->sent.push_back(*ticket);
    }
    if (gone) dispatcher_.cancel(*ticket);
    if (choice + 1 == num_choices) writer->post([answer, replica = ticket->replica] { answer->begin(replica); });
  }
  writer->on_gone(cancel_all);
}

}  // namespace ingot::serve
