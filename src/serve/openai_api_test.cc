// The whole desk over real HTTP with a scripted model: a stream and a whole answer must say the same, and a dead engine must be told.
#include "serve/openai_api.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file_map.h"
#include "serve/model_service.h"
#include "support/scripted_runner.h"

namespace ingot::serve {
namespace {
const std::string kModel = INGOT_SOURCE_DIR "/models/demo";
using ingot::testing::ScriptedRunner;
constexpr int64_t kPages = 64;
constexpr int64_t kPageSize = 16;

struct House {
  explicit House(const std::string& says, ScriptedRunner::BeforeStep before_step = {}, int dp = 1) {
    auto served = std::make_shared<ServedModel>();
    served->name = "m";
    served->tokenizer = text::Tokenizer::load(kModel + "/tokenizer.json").value();
    auto& defaults = served->defaults;
    defaults.chat_template_source = read_file(kModel + "/chat_template.jinja", 1 << 20).value();
    served->chat_template = text::ChatTemplate::parse(defaults.chat_template_source, "t").value();
    defaults.eos_token_ids = {served->tokenizer->token_to_id("<|user|>").value()};
    defaults.vocab_size = served->tokenizer->vocab_size();
    defaults.context_length = 512;
    auto answer = served->tokenizer->encode(says).value();
    answer.push_back(defaults.eos_token_ids[0]);
    ServiceOptions options;
    options.page_size = kPageSize;
    options.chunked_prefill_size = 64;
    options.max_running_requests = 4;
    options.dp = dp;
    CacheShape cache;
    cache.num_pages = kPages;
    cache.page_bytes = kPageSize * 4;
    cache.context_length = defaults.context_length;
    const int64_t vocab_size = defaults.vocab_size;
    service = assemble_service(options, served, cache, [&](int) -> Result<MadeRunner> {
                return MadeRunner{std::make_unique<ScriptedRunner>(ScriptedRunner::Options{
                                      kPages, kPageSize, vocab_size, ScriptedRunner::says(answer), before_step, nullptr}),
                                  {}};
              }).value();
    api = std::make_unique<OpenAiApi>(service.model, *service.dispatcher, *service.metrics, OpenAiApi::Options{});
    server = HttpServer::start({}, [this](const HttpRequest& r, const std::shared_ptr<ResponseWriter>& w) { api->handle(r, w); }).value();
  }

  std::string post(const Json& body) const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string text = body.dump();
    // HTTP/1.0: no chunks between the events.
    const std::string all = fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", text.size(), text);
    EXPECT_EQ(send(fd, all.data(), all.size(), MSG_NOSIGNAL), static_cast<ssize_t>(all.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<size_t>(got));
    close(fd);
    return answer.substr(std::min(answer.size(), answer.find("\r\n\r\n") + 4));
  }

  ModelService service;
  std::unique_ptr<OpenAiApi> api;
  std::unique_ptr<HttpServer> server;
};

Json request(bool stream) {
  return Json::parse(fmt::format(R"({{"messages": [{{"role": "user", "content": "hi"}}], "temperature": 0, "stream": {},
    "tools": [{{"type": "function", "function": {{"name": "ping"}}}}]}})",
                                 stream));
}

TEST(OpenAiApi, AStreamSaysTheSameAsAWholeAnswer) {
  House house("Hm 🙂.</think>Wait.<tool_call>ping</tool_call><tool_call>ping<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>");
  const Json whole = Json::parse(house.post(request(false)));
  const Json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Hm 🙂.");
  EXPECT_EQ(message["content"], "Wait.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{}");
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");

  const std::string events = house.post(request(true));
  ASSERT_TRUE(events.ends_with("data: [DONE]\n\n")) << events;
  std::string reasoning, content, finish;
  std::vector<std::string> arguments;
  for (size_t at = 0; (at = events.find("data: {", at)) != std::string::npos; ++at) {
    const Json chunk = Json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6));
    EXPECT_FALSE(chunk.contains("usage"));
    const Json& choice = chunk["choices"][0];
    reasoning += choice["delta"].value("reasoning_content", "");
    content += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) finish += choice["finish_reason"].get<std::string>();
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      arguments.resize(std::max(arguments.size(), call["index"].get<size_t>() + 1));
      arguments[call["index"].get<size_t>()] += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, message["reasoning_content"]);
  EXPECT_EQ(content, message["content"]);
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(arguments.size(), 2u);
  EXPECT_EQ(arguments[1], message["tool_calls"][1]["function"]["arguments"]);
}

TEST(OpenAiApi, ADeviceErrorEndsAStreamWithAnErrorAndDone) {
  House house("x", [](const sched::BatchPlan&) -> Result<> { return fail("device lost"); });
  const std::string events = house.post(request(true));
  EXPECT_NE(events.find("device lost"), std::string::npos) << events;
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace ingot::serve
