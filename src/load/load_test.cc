#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "load/figures.h"
#include "load/http_loop.h"
#include "load/knee.h"
#include "load/objective.h"
#include "load/prompt_maker.h"
#include "load/report.h"
#include "load/stream_event.h"

namespace ingot::load {
namespace {

constexpr int64_t kMs = 1'000'000;

// An answer whose first event comes after `ttft` ms, the others `gap` ms apart, each with `per_event` tokens.
Sample answer(int64_t index, int64_t sent_ms, int64_t ttft_ms, int64_t gap_ms, int64_t events, int64_t per_event, bool told) {
  Sample s;
  s.index = s.session = index;
  s.sent_ns = sent_ms * kMs;
  s.first_token_ns = s.first_content_ns = (sent_ms + ttft_ms) * kMs;
  for (int64_t i = 0; i < events; ++i) s.arrived.push_back({(sent_ms + ttft_ms + i * gap_ms) * kMs, told ? per_event : -1});
  s.end_ns = s.arrived.back().at_ns;
  s.planned_input = s.usage.prompt_tokens = 100;
  s.planned_output = s.usage.completion_tokens = events * per_event;
  s.usage.cached_tokens = 0;
  s.finish_reason = "length";
  return s;
}

// P1
TEST(Symptom, GapsBetweenTokensCountEventsWhenDraftsPutSeveralInOne) {
  for (const bool told : {false, true}) {
    // 40 ms between events of 4 tokens: 10 ms a token, 100 tokens a second.
    std::vector<Sample> samples;
    for (int64_t i = 0; i < 10; ++i) samples.push_back(answer(i, 0, 100, 40, 101, 4, told));
    const Figures f = figures_of(samples, {});
    EXPECT_NEAR(f.itl_ms.percentile(50), 10, 1e-9) << told;
    // Where events do not tell, the first is taken for one token, and the mean is TPOT's.
    EXPECT_NEAR(f.itl_ms.mean(), told ? 10 : 4000.0 / 403, 1e-9) << told;
    EXPECT_EQ(f.itl_ms.sorted.size(), told ? 4000u : 4030u);
    EXPECT_NEAR(f.tpot_ms.percentile(50), 4000.0 / 403, 1e-9) << told;
    EXPECT_EQ(f.output_tokens, 10 * 404);
    EXPECT_EQ(f.counted, told ? TokenCount::events_told : TokenCount::usage);
    EXPECT_EQ(f.warnings.size(), told ? 0u : 1u) << "an even share is told as such";
  }
}

// P1
TEST(Symptom, PeakThroughputIsBelowTheMeanBecauseItCountsEvents) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 10; ++i) samples.push_back(answer(i, 0, 10, 40, 101, 4, false));
  const Figures f = figures_of(samples, {});
  EXPECT_GE(f.peak_output_tok_s, f.output_tok_s);
  EXPECT_NEAR(f.peak_output_tok_s, 10 * 4 * 25, 10);  // 25 events in any second, and one more at the beginning
}

// P2
TEST(Symptom, ReasoningIsCountedAsPrefillBecauseTheFirstTokenIsTheAnswers) {
  Sample s = answer(0, 0, 50, 10, 101, 1, false);
  s.first_content_ns = 900 * kMs;
  const Figures f = figures_of({s}, {});
  EXPECT_NEAR(f.ttft_ms.percentile(50), 50, 1e-9);
  EXPECT_NEAR(f.ttft_content_ms.percentile(50), 900, 1e-9);
  EXPECT_NEAR(f.tpot_ms.percentile(50), 10, 1e-9);
}

// P4: whoever reads the report sees that answers were cut.
TEST(Symptom, AnswersWereCutByMaxTokensAndNobodySaidSo) {
  const auto event = parse_stream_event(R"({"choices":[{"index":0,"delta":{},"finish_reason":"length"}]})");
  EXPECT_EQ(event.finish_reason, "length");
  const Figures f = figures_of({answer(0, 0, 1, 1, 2, 1, false)}, {});
  EXPECT_EQ(f.finish_reasons.at("length"), 1);
}

TEST(Figures, PercentilesAreExact) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Distribution d(values);
  EXPECT_EQ(d.percentile(50), 50);
  EXPECT_EQ(d.percentile(95), 95);
  EXPECT_EQ(d.percentile(100), 100);
  EXPECT_NEAR(Distribution({1, 2}).percentile(50), 1.5, 1e-12);
  EXPECT_TRUE(std::isnan(Distribution().percentile(50)));
}

TEST(Figures, RatesAndGoodputAreOfMeasuredRequests) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 11; ++i) {
    samples.push_back(answer(i, i * 1000, i < 6 ? 100 : 3000, 10, 101, 1, false));
    samples.back().due_ns = samples.back().sent_ns;
    samples.back().is_warmup = i == 0;
  }
  samples[1].error = "http 503";
  RunFacts facts;
  facts.offered_rate = 1;
  facts.goodput = parse_objectives("ttft<=1s,tpot<=20ms", false).value();
  const Figures f = figures_of(samples, facts);
  EXPECT_EQ(f.requests, 10);
  EXPECT_EQ(f.ok, 9);
  EXPECT_EQ(f.warmup, 1);
  EXPECT_EQ(f.errors.at("http 503"), 1);
  EXPECT_NEAR(f.sent_rate, 1, 1e-9);
  EXPECT_NEAR(f.duration_s, 9 + 3 + 1, 1e-9);  // the last: sent at 10 s, 3 s to its first token, 1 s of tokens
  EXPECT_NEAR(f.request_s, 9 / 13.0, 1e-9);
  EXPECT_NEAR(*f.goodput_share, 0.4, 1e-9);  // a failed one is none
  EXPECT_NEAR(*f.goodput_s, 4 / 13.0, 1e-9);
  EXPECT_NEAR(f.output_tok_s, 909 / 13.0, 1e-9);
}

TEST(Figures, AClientThatIsLateSaysSo) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 200; ++i) {
    samples.push_back(answer(i, i * 10, 20, 10, 11, 1, false));
    samples.back().due_ns = samples.back().sent_ns - (i > 100 ? 50 * kMs : 0);
  }
  RunFacts facts;
  facts.offered_rate = 100;
  facts.lags_ns.assign(100, 30 * kMs);
  facts.cpu_share = 0.99;
  const Figures f = figures_of(samples, facts);
  EXPECT_EQ(f.client.warnings.size(), 3u);
  EXPECT_NEAR(f.client.late_max_ms, 50, 1e-9);
}

TEST(Figures, AServerThatFindsOtherHitsThanAskedForIsTold) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < 200; ++i) {
    samples.push_back(answer(i, i, 10, 10, 11, 1, false));
    samples.back().expected_cached = 60;
    samples.back().usage.cached_tokens = 60;
  }
  EXPECT_TRUE(figures_of(samples, {}).warnings.empty());
  for (Sample& s : samples) s.usage.cached_tokens = 0;
  const Figures f = figures_of(samples, {});
  EXPECT_NEAR(f.asked_hit_ratio, 0.6, 1e-12);
  EXPECT_NEAR(*f.hit_ratio, 0, 1e-12);
  ASSERT_EQ(f.warnings.size(), 1u);
  EXPECT_NE(f.warnings[0].find("cache hits"), std::string::npos);
  for (Sample& s : samples) s.usage.prompt_tokens = 90;
  EXPECT_EQ(figures_of(samples, {}).wrong_prompt_length, 200);
}

TEST(StreamEvent, TokensOfEveryKindAreSeen) {
  const auto chat = [](const std::string& delta) {
    return parse_stream_event(R"({"id":"a","choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":null}]})", true);
  };
  EXPECT_FALSE(chat(R"({"role":"assistant","content":""})").has_token());
  EXPECT_TRUE(chat(R"({"content":"a\n"})").has_content);
  EXPECT_EQ(chat(R"({"content":"a\n"})").content, "a\n");
  EXPECT_TRUE(chat(R"({"reasoning_content":"hm"})").has_reasoning);
  EXPECT_TRUE(chat(R"({"reasoning":"hm"})").has_reasoning);
  EXPECT_FALSE(chat(R"({"reasoning_content":"hm"})").has_content);
  EXPECT_TRUE(chat(R"({"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]})").has_tool_call);
  EXPECT_TRUE(parse_stream_event(R"({"choices":[{"text":" x","logprobs":null}]})").has_content);
  EXPECT_TRUE(parse_stream_event("[DONE]").is_done);
}

TEST(StreamEvent, TokensAreCountedByTheirLogprobs) {
  EXPECT_EQ(parse_stream_event(R"({"choices":[{"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[0,0],"top_logprobs":null}}]})")
                .logprob_tokens,
            2);
  EXPECT_EQ(
      parse_stream_event(
          R"({"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a","top_logprobs":[{"token":"c"}]},{"token":"b","top_logprobs":[]}]}}]})")
          .logprob_tokens,
      2);
  EXPECT_EQ(parse_stream_event(R"({"choices":[{"text":"ab","logprobs":null}]})").logprob_tokens, -1);
}

TEST(StreamEvent, UsageAndErrorsAreRead) {
  const auto e = parse_stream_event(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4},"speculative":{"drafted":9,"accepted":6,"accepted_per_position":[1,2],"mean_acceptance_length":2.5}}})");
  ASSERT_TRUE(e.usage);
  EXPECT_EQ(e.usage->prompt_tokens, 7);
  EXPECT_EQ(e.usage->completion_tokens, 3);
  EXPECT_EQ(e.usage->cached_tokens, 4);
  EXPECT_EQ(e.usage->drafted, 9);
  EXPECT_EQ(e.usage->accepted, 6);
  EXPECT_EQ(e.usage->mean_acceptance_length, 2.5);
  EXPECT_EQ(parse_stream_event(R"({"error":{"message":"no","code":500}})").error, "no");
  EXPECT_FALSE(parse_stream_event("{\"choices\":[{]").error.empty());
  EXPECT_FALSE(parse_stream_event("7").error.empty());
  EXPECT_FALSE(parse_stream_event(R"({"choices":[],"usage":null})").usage);
}

TEST(Objective, IsReadOrRefusedByItsPart) {
  const auto two = parse_objectives("ttft_p95<=5s,tpot_p99.9<=50ms", true);
  ASSERT_TRUE(two);
  EXPECT_EQ((*two)[0].text(), "ttft_p95<=5000ms");
  EXPECT_EQ((*two)[1].text(), "tpot_p99.9<=50ms");
  for (const char* bad : {"", "ttft_p95", "ttft<=5s", "ttft_p95<=5", "ttft_p0<=5s", "speed_p50<=1s", "ttft_p95<=-1s", "ttft_p95<=5s,"})
    EXPECT_FALSE(parse_objectives(bad, true)) << bad;
  EXPECT_TRUE(parse_objectives("ttft<=5s,e2e<=100ms", false));
  EXPECT_FALSE(parse_objectives("ttft_p50<=5s", false));
}

TEST(Url, IsTakenApart) {
  const auto url = parse_url("http://localhost:8000/base/v1/");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "localhost");
  EXPECT_EQ(url->port, 8000);
  EXPECT_EQ(url->prefix, "/base");
  EXPECT_EQ(parse_url("http://[::1]:9")->host, "::1");
  EXPECT_EQ(parse_url("https://a.example/v1")->port, 443);
  for (const char* bad : {"localhost:8000", "ftp://a", "http://:80", "http://a:x", "http://a:70000"}) EXPECT_FALSE(parse_url(bad)) << bad;
}

// A queue with one server: TTFT grows as 1 / (1 - rate / capacity).
TEST(Knee, IsFoundWhereTheObjectiveIsMetExactly) {
  KneeOptions options;
  options.objectives = parse_objectives("ttft_p95<=1s", true).value();
  options.start_rate = 0.3;
  options.tolerance = 0.01;
  int runs = 0;
  const auto run = [&](double rate, int repeat) -> Result<Figures> {
    ++runs;
    const double capacity = 10 + 0.1 * repeat;
    Figures f;
    f.requests = 100;
    f.ok = rate < capacity ? 100 : 10;
    f.ttft_ms = Distribution({rate < capacity ? 100 / (1 - rate / capacity) : 1e5});
    return f;
  };
  const auto knee = find_knee(options, run);
  ASSERT_TRUE(knee);
  ASSERT_TRUE(knee->is_bounded);
  ASSERT_EQ(knee->estimates.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(knee->estimates[static_cast<size_t>(i)], 0.9 * (10 + 0.1 * i), 0.05);
  EXPECT_NEAR(knee->rate, 9.09, 0.05);
  EXPECT_LT(knee->low, knee->rate);
  EXPECT_NEAR(knee->high - knee->rate, 4.303 * 0.09 / std::sqrt(3), 0.1);
  EXPECT_LT(runs, 45);
  EXPECT_NE(knee_text(*knee, options).find("tok/req"), std::string::npos);
}

// Seen on a quiet machine: 60 requests at 29 a second met the objective while 14 a second were answered.
TEST(Knee, ARunTooShortForItsQueueToShowIsTold) {
  KneeOptions options;
  options.objectives = parse_objectives("ttft_p95<=1s", true).value();
  options.repeats = 1;
  const auto knee_at = [&](double capacity) {
    return find_knee(options, [&](double rate, int) -> Result<Figures> {
      Figures f;
      f.requests = f.ok = 60;
      f.sent_rate = rate;
      f.request_s = std::min(rate, capacity);
      f.ttft_ms = Distribution({rate < 30 ? 900.0 : 2000.0});
      return f;
    });
  };
  const auto behind = knee_at(14), fast = knee_at(100);
  ASSERT_TRUE(behind && fast);
  EXPECT_NE(knee_text(*behind, options).find("a queue grew"), std::string::npos);
  EXPECT_EQ(knee_text(*fast, options).find("a queue grew"), std::string::npos);
  const Json json = to_json(*behind, options);
  for (const Json& row : json["rows"]) EXPECT_EQ(row["kept_up"].get<bool>(), row["rate"].get<double>() < 15) << row.dump();
}

TEST(Knee, ARateThatLosesRequestsDoesNotHold) {
  KneeOptions options;
  options.objectives = parse_objectives("ttft_p95<=1s", true).value();
  options.repeats = 1;
  const auto knee = find_knee(options, [&](double rate, int) -> Result<Figures> {
    Figures f;
    f.requests = 100;
    f.ok = rate < 5 ? 100 : 90;  // it refuses the rest, and is quick with those it takes
    f.ttft_ms = Distribution({10});
    return f;
  });
  ASSERT_TRUE(knee);
  EXPECT_LE(knee->low, 5);
  EXPECT_GE(knee->high, 5);
  const auto none = find_knee(options, [&](double, int) -> Result<Figures> { return Figures{}; });
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->is_bounded);
}

TEST(PromptMaker, PromptsHaveExactlyTheTokensThatWerePlanned) {
  std::vector<std::string> tokenizers{INGOT_SOURCE_DIR "/models/demo/tokenizer.json"};
  for (const char* name : {"glm_like_cl100k", "qwen3", "gpt2"}) {
    const std::string path = std::string(INGOT_SHARED_DIR "/data/tokenizers/") + name + "/tokenizer.json";
    if (std::filesystem::exists(path)) tokenizers.push_back(path);
  }
  for (const std::string& path : tokenizers) {
    auto tokenizer = text::Tokenizer::load(path);
    ASSERT_TRUE(tokenizer) << tokenizer.error().text();
    const auto maker = PromptMaker::create(**tokenizer);
    ASSERT_TRUE(maker) << maker.error().text();
    std::set<std::vector<int32_t>> seen;
    std::vector<int32_t> first;
    for (uint64_t i = 0; i < 20; ++i) {
      plan::PlannedRequest r;
      r.prompt = {{77, 300, plan::PromptPiece::Role::user}, {1000 + i, static_cast<int64_t>(1 + i * 13), plan::PromptPiece::Role::user}};
      const auto ids = (*tokenizer)->encode(maker->text(r, 0, {}));
      ASSERT_TRUE(ids);
      EXPECT_EQ(static_cast<int64_t>(ids->size()), r.input_tokens()) << path;
      seen.insert(*ids);
      if (first.empty()) first.assign(ids->begin(), ids->begin() + 300);
      EXPECT_TRUE(std::equal(first.begin(), first.end(), ids->begin())) << "the shared part is the same";
      if (i > 0) {
        EXPECT_EQ((*tokenizer)->encode(maker->text(r, 1, {}))->size(), ids->size() - 1) << "what the server adds is left out";
      }
    }
    EXPECT_EQ(seen.size(), 20u);
  }
}

TEST(Report, IsComparedByPairsOfRequests) {
  Report a, b;
  a.setup = b.setup = {{"seed", 1}, {"workload", "article"}};
  for (int64_t i = 0; i < 50; ++i) {
    a.samples.push_back(answer(i, i * 100, 100 + i, 20, 11, 1, false));
    b.samples.push_back(answer(i, i * 100, 2 * (100 + i), 10, 11, 1, false));
  }
  a.figures = figures_of(a.samples, {});
  b.figures = figures_of(b.samples, {});
  const auto text = compare_reports(to_json(a), to_json(b));
  ASSERT_TRUE(text) << text.error().text();
  EXPECT_NE(text->find("TTFT         x2.000   95 % x2.000 to x2.000   50 pairs"), std::string::npos) << *text;
  EXPECT_NE(text->find("TPOT         x0.500"), std::string::npos) << *text;
  EXPECT_FALSE(compare_reports(to_json(a), Json::object()));
  Json old = to_json(b);
  old["version"] = 0;
  EXPECT_FALSE(compare_reports(to_json(a), old));
}

TEST(Report, APageShowsHostileTextAsText) {
  Report r;
  r.title = "<script>alert(1)</script>";
  r.samples = {answer(0, 0, 10, 10, 5, 1, false)};
  r.samples[0].error = "error event";
  r.samples[0].detail = "<img src=x>";
  r.figures = figures_of(r.samples, {});
  const std::string page = report_html(r);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("http://"), std::string::npos) << "nothing is loaded from elsewhere";
}

}  // namespace
}  // namespace ingot::load
