#include "serve/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "support/checkpoint_writer.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;
using test_support::TempDir;

constexpr int64_t kMs = 1'000'000;

RequestRecord finished_request() {
  RequestRecord r;
  r.id = 7;
  r.name = "chatcmpl-1f";
  r.prompt_tokens = 812;
  r.cached_tokens = 768;
  r.completion_tokens = 120;
  r.max_tokens = 4096;
  r.submitted_ns = 1000 * kMs;
  r.scheduled_ns = 1000 * kMs + 300'000;
  r.first_token_ns = 1041 * kMs + 200'000;
  r.last_token_ns = r.first_token_ns + 119 * 3'100'000;
  r.finished_ns = 1411 * kMs;
  r.finish = sched::FinishReason::stop_token;
  return r;
}

TEST(RequestLog, ALineSaysWhatDraftsEarned) {
  EXPECT_FALSE(request_fields(finished_request()).contains("drafted"));
  RequestRecord r = finished_request();
  r.speculation.add(4, 5, 3);
  r.speculation.add(1, 5, 0);
  const std::string line = logfmt_line(request_fields(r));
  EXPECT_NE(line.find(" draft_steps=2 drafted=10 accepted=3 accepted_per_position=[1,1,1,0,0] mean_acceptance_length=2.5 finish=stop"),
            std::string::npos)
      << line;
  EXPECT_EQ(line.find("forced"), std::string::npos) << line;
  r.forced_acceptance = 3.5;
  EXPECT_EQ(request_fields(r)["forced_acceptance"], 3.5);
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Sends the log to a string for its life.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_));
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::shared_ptr<spdlog::logger> before_;
};

TEST(RequestLog, ALineHasTheFiguresOfTheRequest) {
  EXPECT_EQ(logfmt_line(request_fields(finished_request())),
            "request id=chatcmpl-1f replica=0 prompt=812 cached=768 completion=120 queue_ms=0.3 ttft_ms=41.2 tpot_ms=3.1 tok_s=291.971 "
            "e2e_ms=411.0 finish=stop");
}

TEST(RequestLog, WhatARequestNeverCameToIsLeftOut) {
  RequestRecord r;
  r.id = 12;
  r.replica = 3;
  r.prompt_tokens = 5;
  r.submitted_ns = 1000 * kMs;
  r.finished_ns = 1250 * kMs;
  r.finish = sched::FinishReason::queue_timeout;
  EXPECT_EQ(logfmt_line(request_fields(r)),
            "request id=request-12 replica=3 prompt=5 cached=0 completion=0 e2e_ms=250.0 finish=queue_timeout");

  r = finished_request();  // one token: no time between tokens
  r.completion_tokens = 1;
  r.last_token_ns = r.first_token_ns;
  r.preemptions = 2;
  r.priority = -1;
  r.finish = sched::FinishReason::length;
  EXPECT_EQ(logfmt_line(request_fields(r)),
            "request id=chatcmpl-1f replica=0 prompt=812 cached=768 completion=1 queue_ms=0.3 ttft_ms=41.2 tok_s=2.433 e2e_ms=411.0 "
            "preemptions=2 priority=-1 finish=length");
}

TEST(RequestLog, AnIdCannotForgeAFieldOrALine) {
  RequestRecord r = finished_request();
  r.name = "x finish=stop\nrequest id=\"y";
  r.error = "device lost: \xff";
  r.finish = sched::FinishReason::error;
  const std::string line = logfmt_line(request_fields(r));
  EXPECT_THAT(line, testing::StartsWith(R"(request id="x finish=stop\nrequest id=\"y" replica=0)"));
  EXPECT_THAT(line, testing::HasSubstr("finish=error error=\"device lost: "));
  EXPECT_THAT(line, testing::Not(testing::HasSubstr("\n")));
}

TEST(RequestLog, WithoutAFileLinesGoToTheLog) {
  const CapturedLog log;
  {
    auto requests = RequestLog::open("").value();
    requests->on_finished(finished_request());
    requests->flush();
    EXPECT_THAT(log.text(), testing::StartsWith("info request id=chatcmpl-1f replica=0 prompt=812"));
  }
}

TEST(RequestLog, AFileGetsOneJsonObjectALineAndIsAppendedTo) {
  const TempDir dir;
  const fs::path file = dir.path() / "requests.jsonl";
  for (int run = 0; run < 2; ++run) {
    auto requests = RequestLog::open(file.string()).value();
    for (int i = 0; i < 100; ++i) {
      RequestRecord r = finished_request();
      r.name = "chatcmpl-" + std::to_string(run * 100 + i) + (i == 5 ? "\xc3" : "");  // bytes that are not UTF-8 are replaced
      requests->on_finished(r);
    }
  }
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 200u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = parse_json(lines[i], "line").value();
    EXPECT_THAT(line.at("id").get<std::string>(), testing::StartsWith("chatcmpl-" + std::to_string(i)));
    EXPECT_EQ(line.at("prompt"), 812);
    EXPECT_DOUBLE_EQ(line.at("ttft_ms").get<double>(), 41.2);
    EXPECT_EQ(line.at("finish"), "stop");
    EXPECT_THAT(line.at("time").get<std::string>(), testing::MatchesRegex("20[0-9-]+T[0-9:]+\\.[0-9][0-9][0-9]Z"));
  }
}

TEST(RequestLog, AfterLogRotationTheNewFileIsWritten) {
  const TempDir dir;
  const fs::path file = dir.path() / "requests.jsonl";
  auto requests = RequestLog::open(file.string()).value();
  requests->on_finished(finished_request());
  requests->flush();
  fs::rename(file, dir.path() / "requests.jsonl.1");
  std::this_thread::sleep_for(std::chrono::milliseconds(1050));  // the path is looked at once a second at most
  requests->on_finished(finished_request());
  requests->flush();
  EXPECT_EQ(lines_of(dir.path() / "requests.jsonl.1").size(), 1u);
  EXPECT_EQ(lines_of(file).size(), 1u);
  fs::remove(file);
  std::this_thread::sleep_for(std::chrono::milliseconds(1050));
  requests->on_finished(finished_request());
  requests->flush();
  EXPECT_EQ(lines_of(file).size(), 1u);
}

TEST(RequestLog, AFileThatCannotBeOpenedIsAnError) {
  const auto log = RequestLog::open("/nonexistent-folder/requests.jsonl");
  ASSERT_FALSE(log);
  EXPECT_THAT(log.error().text(), testing::HasSubstr("/nonexistent-folder/requests.jsonl"));
  EXPECT_FALSE(RequestLog::open("/tmp"));
}

TEST(RequestLog, AFullDiskIsSaidOnceAndServingGoesOn) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const CapturedLog log;
  auto requests = RequestLog::open("/dev/full").value();
  for (int i = 0; i < 5; ++i) {
    requests->on_finished(finished_request());
    requests->flush();
  }
  const std::string text = log.text();
  const size_t first = text.find("error request log: cannot write to /dev/full");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("error", first + 1), std::string::npos) << text;
}

TEST(BackgroundWriter, AStalledWriterDropsNewRecordsAndSaysSo) {
  const CapturedLog log;
  std::promise<void> go;
  std::promise<void> stalled;
  std::vector<int> seen;
  {
    BackgroundWriter<int> writer("slow disk", 4, [&, first = true, gate = go.get_future().share()](std::span<int> records) mutable {
      if (std::exchange(first, false)) stalled.set_value();
      gate.wait();
      seen.insert(seen.end(), records.begin(), records.end());
    });
    writer.push(0);
    stalled.get_future().wait();
    for (int i = 1; i <= 10; ++i) writer.push(i);  // returns although nothing is written
    EXPECT_EQ(writer.dropped(), 6u);
    go.set_value();
    writer.flush();
    EXPECT_THAT(seen, testing::ElementsAre(0, 1, 2, 3, 4));
  }
  EXPECT_THAT(log.text(), testing::HasSubstr("warning slow disk: 6 records dropped since start"));
}

TEST(BackgroundWriter, AHandlerThatThrowsIsLoggedOnceAndTheThreadLivesOn) {
  const CapturedLog log;
  int calls = 0;
  {
    BackgroundWriter<int> writer("bad", 4, [&](std::span<int>) {
      if (++calls <= 2) throw std::runtime_error("no good");
    });
    for (int i = 0; i < 3; ++i) {
      writer.push(i);
      writer.flush();
    }
  }
  EXPECT_EQ(calls, 3);
  const std::string text = log.text();
  EXPECT_NE(text.find("error bad: no good"), std::string::npos);
  EXPECT_EQ(text.find("no good"), text.rfind("no good"));
}

}  // namespace
}  // namespace ingot::serve
