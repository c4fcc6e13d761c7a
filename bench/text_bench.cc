// What the host does to text, in processor time: tokenizer, chat template, request bodies, the parser of answers, the events of a stream
// written and read.
//   build/release/text_bench [CHECKPOINT] [--benchmark_...]
// CHECKPOINT: tokenizer.json and chat_template.jinja; models/demo when there is none. bytes_per_second is of the text that goes in (of
// decode, render and events_written, that comes out), items_per_second of tokens (of events_read, of events). What is called a roof goes
// over the same bytes and does nothing else with them.
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "load/stream_event.h"
#include "serve/desk.h"
#include "serve/openai_answer.h"
#include "text/chat_messages.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/utf8_text.h"
#include "text_inputs.h"

namespace ingot::bench {
namespace {

// Set by main() before the first benchmark. The second tokenizer is the same file once more: words cached for one are not the other's.
serve::ServedModel served;
std::shared_ptr<const text::Tokenizer> second_tokenizer;

void count(benchmark::State& state, size_t bytes, size_t tokens = 0) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
  if (tokens > 0) state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * tokens));
}

void roof_copy(benchmark::State& state) {
  const std::string& text = english();
  std::string out(text.size(), '\0');
  for (auto _ : state) {
    std::memcpy(out.data(), text.data(), text.size());
    benchmark::ClobberMemory();
  }
  count(state, text.size());
}
BENCHMARK(roof_copy)->Unit(benchmark::kMicrosecond);

void roof_utf8(benchmark::State& state, const std::string& (*text)()) {
  for (auto _ : state) benchmark::DoNotOptimize(text::find_invalid_utf8(text()));
  count(state, text().size());
}
BENCHMARK_CAPTURE(roof_utf8, english, english)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(roof_utf8, chinese, chinese)->Unit(benchmark::kMicrosecond);

// ------------------------------------------------------------------------------------------------------------------------------ tokenizer

void encode_text(benchmark::State& state, const std::string& text) {
  size_t tokens = 0;
  for (auto _ : state) tokens = served.tokenizer->encode(text).value().size();
  count(state, text.size(), tokens);
}
void encode(benchmark::State& state, const std::string& (*text)()) { encode_text(state, text()); }
BENCHMARK_CAPTURE(encode, english, english)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(encode, code, code)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(encode, chinese, chinese)->Unit(benchmark::kMicrosecond);

// No word is known from the time before: what the first text of a thread costs, the emptying of its cache of words (2 MiB) included.
void encode_first(benchmark::State& state, const std::string& (*text)()) {
  size_t tokens = 0;
  bool second = false;
  for (auto _ : state) {
    second = !second;
    tokens = (second ? second_tokenizer : served.tokenizer)->encode(text()).value().size();
  }
  count(state, text().size(), tokens);
}
BENCHMARK_CAPTURE(encode_first, english, english)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(encode_first, code, code)->Unit(benchmark::kMicrosecond);

// Without spaces: the whole text is one word. Linear when the rate stays.
void encode_letters(benchmark::State& state) { encode_text(state, random_letters(static_cast<size_t>(state.range(0)))); }
void encode_one_letter(benchmark::State& state) { encode_text(state, std::string(static_cast<size_t>(state.range(0)), 'a')); }
BENCHMARK(encode_letters)->RangeMultiplier(16)->Range(4 << 10, 1 << 20)->ArgName("bytes")->Unit(benchmark::kMicrosecond);
BENCHMARK(encode_one_letter)->RangeMultiplier(16)->Range(4 << 10, 1 << 20)->ArgName("bytes")->Unit(benchmark::kMicrosecond);

void decode(benchmark::State& state, const std::string& (*text)()) {
  const auto ids = served.tokenizer->encode(text()).value();
  INGOT_CHECK(served.tokenizer->decode(ids, false) == text());
  for (auto _ : state) benchmark::DoNotOptimize(served.tokenizer->decode(ids, false));
  count(state, text().size(), ids.size());
}
BENCHMARK_CAPTURE(decode, english, english)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decode, code, code)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decode, chinese, chinese)->Unit(benchmark::kMicrosecond);

// Token by token, as a stream shows them.
void detokenize(benchmark::State& state, const std::string& (*text)()) {
  const auto ids = served.tokenizer->encode(text()).value();
  for (auto _ : state) {
    text::Detokenizer detokenizer(served.tokenizer, true);
    for (const int32_t id : ids) benchmark::DoNotOptimize(detokenizer.push(id));
  }
  count(state, text().size(), ids.size());
}
BENCHMARK_CAPTURE(detokenize, english, english)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(detokenize, chinese, chinese)->Unit(benchmark::kMicrosecond);

// --------------------------------------------------------------------------------------------------------------------------------- bodies

constexpr size_t kResultBytes = 1500;

void body_json(benchmark::State& state, const Json& request) {
  const std::string body = request.dump();
  for (auto _ : state) benchmark::DoNotOptimize(parse_json(body, "the request body").value());
  count(state, body.size());
}

// The library's reader alone, which keeps nothing.
void body_roof(benchmark::State& state, const Json& request) {
  const std::string body = request.dump();
  for (auto _ : state) INGOT_CHECK(Json::accept(body));
  count(state, body.size());
}

// All of what the server does to a body before it looks at messages.
void body_request(benchmark::State& state, const Json& request) {
  const std::string body = request.dump();
  for (auto _ : state) {
    const Json json = parse_json(body, "the request body").value();
    const auto parsed = serve::parse_chat_request(json, served.defaults);
    INGOT_CHECK(parsed.has_value(), "{}", parsed.error().message);
  }
  count(state, body.size());
}

void small_body(benchmark::State& state, void (*part)(benchmark::State&, const Json&)) { part(state, short_request()); }
void agent_body(benchmark::State& state, void (*part)(benchmark::State&, const Json&)) { part(state, agent_request(40, kResultBytes)); }
void megabyte_body(benchmark::State& state, void (*part)(benchmark::State&, const Json&)) { part(state, agent_request(40, 24 << 10)); }
BENCHMARK_CAPTURE(small_body, roof, body_roof)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(small_body, json, body_json)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(small_body, request, body_request)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(agent_body, roof, body_roof)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(agent_body, json, body_json)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(agent_body, request, body_request)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(megabyte_body, roof, body_roof)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(megabyte_body, json, body_json)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(megabyte_body, request, body_request)->Unit(benchmark::kMicrosecond);

// Hostile: one object of many members. Linear when the rate stays.
void body_of_members(benchmark::State& state) {
  std::string body = "{";
  for (int64_t i = 0; i < state.range(0); ++i) body += fmt::format("{}\"m{}\":0", i == 0 ? "" : ",", i);
  body += '}';
  for (auto _ : state) benchmark::DoNotOptimize(parse_json(body, "the request body").value());
  count(state, body.size());
}
BENCHMARK(body_of_members)->RangeMultiplier(4)->Range(1 << 8, 1 << 14)->ArgName("members")->Unit(benchmark::kMicrosecond);

// ------------------------------------------------------------------------------------------------------------------------------- template

// The template alone: messages are ready for it.
void render(benchmark::State& state, const Json& request) {
  Json context{{"messages", text::normalize_messages(request["messages"]).value()}, {"add_generation_prompt", true}};
  if (request.contains("tools")) context["tools"] = request["tools"];
  size_t bytes = 0;
  for (auto _ : state) bytes = served.chat_template->render(context).value().size();
  count(state, bytes);
}
void render_short(benchmark::State& state) { render(state, short_request()); }
void render_agent(benchmark::State& state) { render(state, agent_request(state.range(0), kResultBytes)); }
BENCHMARK(render_short)->Unit(benchmark::kMicrosecond);
BENCHMARK(render_agent)->Arg(40)->Arg(400)->ArgName("turns")->Unit(benchmark::kMicrosecond);

// From a parsed request to tokens, as the server goes: messages made ready, rendered, tokenized.
void prompt(benchmark::State& state, const Json& body) {
  const auto request = serve::parse_chat_request(body, served.defaults);
  INGOT_CHECK(request.has_value(), "{}", request.error().message);
  const size_t bytes = serve::render_chat(served, *request, true).value().size();
  size_t tokens = 0;
  for (auto _ : state) {
    const auto made = serve::make_chat_prompt(served, *request);
    INGOT_CHECK(made.has_value(), "{}", made.error().message);
    tokens = made->tokens.size();
  }
  count(state, bytes, tokens);
}
void prompt_short(benchmark::State& state) { prompt(state, short_request()); }
void prompt_agent(benchmark::State& state) { prompt(state, agent_request(state.range(0), kResultBytes)); }
BENCHMARK(prompt_short)->Unit(benchmark::kMicrosecond);
BENCHMARK(prompt_agent)->Arg(40)->Arg(400)->ArgName("turns")->Unit(benchmark::kMicrosecond);

// -------------------------------------------------------------------------------------------------------------------------------- answers

// An answer as it comes: the text of each token.
struct AnswerText {
  explicit AnswerText(const std::string& text) : ids(served.tokenizer->encode(text).value()), bytes(text.size()) {
    text::Detokenizer detokenizer(served.tokenizer, true);
    for (const int32_t id : ids) pieces.push_back(detokenizer.push(id));
  }
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;
  size_t bytes;
};

text::OutputParserOptions agent_parser() {
  return {.starts_in_reasoning = true, .parse_reasoning = true, .parse_tool_calls = true, .tools = agent_tools()};
}

// Reasoning, a sentence, and four calls: what an agent's turn looks like.
AnswerText agent_answer() {
  Rng rng(9);
  std::string text = excerpt(english(), 4000, rng) + "</think>" + excerpt(english(), 300, rng);
  text += call_text("read_file", {{"path", "src/text/tokenizer.cc"}, {"first_line", "120"}, {"num_lines", "60"}});
  text += call_text("write_file", {{"path", "src/text/new.cc"}, {"content", excerpt(code(), 4000, rng)}});
  text += call_text("run_commands", {{"commands", list_of_texts(400)}, {"timeout_s", "60"}});
  text += call_text("service_3", {{"customer_id", "C-5512"}, {"kind", "order"}, {"since", "2026-01-31"}});
  return AnswerText(text);
}

void parse_answer(benchmark::State& state, const AnswerText& answer, int num_calls) {
  for (auto _ : state) {
    text::OutputParser parser(agent_parser());
    for (const std::string& piece : answer.pieces) benchmark::DoNotOptimize(parser.push(piece));
    benchmark::DoNotOptimize(parser.finish());
    INGOT_CHECK(parser.num_tool_calls() == num_calls, "{} calls", parser.num_tool_calls());
  }
  count(state, answer.bytes, answer.pieces.size());
}

// Without a parser: the pieces put one behind the other.
void answer_roof(benchmark::State& state) {
  const AnswerText answer = agent_answer();
  for (auto _ : state) {
    std::string text;
    for (const std::string& piece : answer.pieces) text += piece;
    benchmark::DoNotOptimize(text);
  }
  count(state, answer.bytes, answer.pieces.size());
}
BENCHMARK(answer_roof)->Unit(benchmark::kMicrosecond);

void answer_reasoning(benchmark::State& state) { parse_answer(state, AnswerText(english().substr(0, 16 << 10)), 0); }
void answer_content(benchmark::State& state) { parse_answer(state, AnswerText("</think>" + english().substr(0, 16 << 10)), 0); }
void answer_agent(benchmark::State& state) { parse_answer(state, agent_answer(), 4); }
BENCHMARK(answer_reasoning)->Unit(benchmark::kMicrosecond);
BENCHMARK(answer_content)->Unit(benchmark::kMicrosecond);
BENCHMARK(answer_agent)->Unit(benchmark::kMicrosecond);

// One call with one long argument: a text, which streams, and a list, which waits for its end. Linear when the rate stays.
void argument_text(benchmark::State& state) {
  std::string value = code();
  while (value.size() < static_cast<size_t>(state.range(0))) value += code();
  value.resize(static_cast<size_t>(state.range(0)));
  parse_answer(state, AnswerText("</think>" + call_text("write_file", {{"path", "a"}, {"content", value}})), 1);
}
void argument_list(benchmark::State& state) {
  parse_answer(state,
               AnswerText("</think>" + call_text("run_commands", {{"commands", list_of_texts(static_cast<size_t>(state.range(0)))}})), 1);
}
BENCHMARK(argument_text)->RangeMultiplier(16)->Range(4 << 10, 1 << 20)->ArgName("bytes")->Unit(benchmark::kMicrosecond);
BENCHMARK(argument_list)->RangeMultiplier(16)->Range(4 << 10, 1 << 20)->ArgName("bytes")->Unit(benchmark::kMicrosecond);

// --------------------------------------------------------------------------------------------------------------------------------- events

// A client that reads nothing.
class EventSink final : public serve::ResponseWriter {
 public:
  void respond(serve::HttpResponse) override {}
  void start_events(serve::HttpHeaders) override {}
  void event(std::string_view data, std::string_view) override {
    bytes += data.size();
    if (keeps) kept.emplace_back(data);
  }
  void end_events() override {}
  void post(std::function<void()> work) override { work(); }
  void on_gone(std::function<void()>) override {}

  bool keeps = false;
  size_t bytes = 0;
  std::vector<std::string> kept;
};

// The agent's turn as a stream of chat chunks, from the text of its tokens on: the parser and the JSON of each event.
void stream_answer(const AnswerText& answer, const std::shared_ptr<EventSink>& sink, int top_logprobs) {
  serve::AnswerOptions common;
  common.model = "demo";
  common.stream = true;
  common.parser = agent_parser();
  common.tokenizer = served.tokenizer;
  serve::GenerationOptions generation;
  generation.stream = true;
  generation.sampling.top_logprobs = top_logprobs;
  serve::OpenAiAnswer writer(std::move(common), {serve::OpenAiAnswerOptions::Kind::chat, generation}, sink);
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    serve::TextPiece piece;
    piece.text = answer.pieces[i];
    piece.token_ids = {answer.ids[i]};
    if (top_logprobs >= 0) {
      sched::TokenLogprob& logprob = piece.logprobs.emplace_back();
      logprob.logprob = -0.5f;
      for (int32_t n = 0; n < top_logprobs; ++n)
        logprob.top.emplace_back(answer.ids[(i + static_cast<size_t>(n)) % answer.ids.size()], -1.0f);
    }
    if (i + 1 == answer.ids.size()) piece.finish = sched::FinishReason::stop_token;
    writer.add(0, std::move(piece));
  }
}

void events_written(benchmark::State& state) {
  const AnswerText answer = agent_answer();
  const auto sink = std::make_shared<EventSink>();
  for (auto _ : state) {
    sink->bytes = 0;
    stream_answer(answer, sink, static_cast<int>(state.range(0)));
  }
  count(state, sink->bytes, answer.pieces.size());
}
BENCHMARK(events_written)->Arg(-1)->Arg(5)->ArgName("top_logprobs")->Unit(benchmark::kMicrosecond);

// The same events, read by the load client.
void events_read(benchmark::State& state) {
  const auto sink = std::make_shared<EventSink>();
  sink->keeps = true;
  stream_answer(agent_answer(), sink, static_cast<int>(state.range(0)));
  for (auto _ : state) {
    for (const std::string& event : sink->kept) benchmark::DoNotOptimize(load::parse_stream_event(event, true));
  }
  INGOT_CHECK(load::parse_stream_event(sink->kept[1], true).has_reasoning);
  count(state, sink->bytes, sink->kept.size());
}
BENCHMARK(events_read)->Arg(-1)->Arg(5)->ArgName("top_logprobs")->Unit(benchmark::kMicrosecond);

Result<> load_checkpoint(const std::filesystem::path& checkpoint) {
  served.name = "demo";
  INGOT_ASSIGN(served.tokenizer, text::Tokenizer::load(checkpoint / "tokenizer.json"));
  INGOT_ASSIGN(second_tokenizer, text::Tokenizer::load(checkpoint / "tokenizer.json"));
  const auto path = checkpoint / "chat_template.jinja";
  INGOT_ASSIGN(served.defaults.chat_template_source, read_file(path, 16 << 20));
  INGOT_ASSIGN(served.chat_template, text::ChatTemplate::parse(served.defaults.chat_template_source, path.string()));
  served.defaults.vocab_size = served.tokenizer->vocab_size();
  served.defaults.context_length = 1 << 20;
  return {};
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 2) {
    fmt::print(stderr, "usage: text_bench [CHECKPOINT] [--benchmark_...]\n");
    return 2;
  }
  const auto loaded = ingot::bench::load_checkpoint(argc == 2 ? argv[1] : ingot::test_support::source_dir() / "models/demo");
  if (!loaded) {
    fmt::print(stderr, "{}\n", loaded.error().text());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
