#include "serve/local_answer.h"

#include <chrono>

#include "base/queue.h"

namespace ingot::serve {

std::string LocalFigures::text() const {
  const auto rate = [](int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; };
  const int64_t decoded = num_completion_tokens > 0 ? num_completion_tokens - 1 : 0;
  std::string text = fmt::format("prompt {} tokens, prefill {:.1f} tok/s, decode {:.1f} tok/s over {} tokens", num_prompt_tokens,
                                 rate(num_prompt_tokens, prefill_s), rate(decoded, decode_s), num_completion_tokens);
  if (forced_acceptance > 0) text += fmt::format("; acceptance forced to {}: the answer means nothing", forced_acceptance);
  if (speculation.any()) text = "speculation: " + speculation.text() + "\n" + text;
  return text;
}

Result<LocalFigures> answer_locally(const ServedModel& model, Dispatcher& engine, LocalRequest request,
                                    const std::function<void(const text::OutputDelta&)>& show, const std::function<bool()>& interrupted) {
  using Time = std::chrono::steady_clock;
  const auto seconds = [](Time::duration d) { return std::chrono::duration<double>(d).count(); };
  LocalFigures figures;
  figures.num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  figures.forced_acceptance = model.forced_acceptance;
  const int64_t room = model.defaults.context_length - figures.num_prompt_tokens;
  if (room < 1) {
    return fail("the prompt has {} tokens; the context length is {} tokens, at least one of them for the answer", figures.num_prompt_tokens,
                model.defaults.context_length);
  }
  sched::Request inner;
  inner.prompt = std::move(request.prompt);
  inner.sampling = std::move(request.sampling);
  if (inner.sampling.max_tokens == 0) inner.sampling.max_tokens = static_cast<int32_t>(room);

  struct Timed {
    TextPiece piece;
    Time::time_point at;
  };
  // A piece a token and one for the end: it is never full.
  auto pieces = std::make_shared<BoundedQueue<Timed>>(static_cast<size_t>(room) + 2);
  attach_text(inner, model.tokenizer, std::move(request.stop_strings), [pieces](TextPiece piece) {
    Timed timed{std::move(piece), Time::now()};
    pieces->try_push(timed);
  });
  std::optional<text::OutputParser> parser;
  if (request.parser) parser.emplace(std::move(*request.parser));

  const auto started = Time::now();
  const auto id = engine.submit(std::move(inner));
  if (!id) return fail("{}", id.error().message);
  Time::time_point first;
  bool cancelled = false;
  while (true) {
    auto timed = pieces->wait_pop(std::chrono::milliseconds(20));
    if (!cancelled && interrupted && interrupted()) {
      cancelled = true;
      engine.cancel(*id);
    }
    if (!timed) continue;
    TextPiece& piece = timed->piece;
    if (piece.finish == sched::FinishReason::error) return fail("{}", piece.error);
    figures.speculation.add(static_cast<int64_t>(piece.token_ids.size()), piece.num_drafted, piece.num_accepted);
    if (!piece.token_ids.empty()) {
      if (figures.num_completion_tokens == 0) {
        first = timed->at;
        figures.prefill_s = seconds(first - started);
      }
      figures.num_completion_tokens += static_cast<int64_t>(piece.token_ids.size());
      figures.decode_s = seconds(timed->at - first);
    }
    const bool last = piece.finish != sched::FinishReason::none;
    if (parser) {
      if (auto delta = parser->push(piece.text); !delta.empty()) show(delta);
      if (last) {
        if (auto delta = parser->finish(); !delta.empty()) show(delta);
      }
    } else if (!piece.text.empty()) {
      show({.reasoning = {}, .content = piece.text, .tool_calls = {}});
    }
    if (last) {
      figures.finish = piece.finish;
      return figures;
    }
  }
}

}  // namespace ingot::serve
