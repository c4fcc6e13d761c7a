// What text_bench.cc reads: texts, conversations and answers, the same in every run on one checkout. English is the repository's documents
// and code its sources, so that words are as many and as rare as they are in life; the rest is drawn with a fixed seed.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/source_dir.h"

namespace ingot::bench {

// The files of one folder whose names end so, one after the other. Lines with a '<' are left out: they may hold a tag of the model's
// format, which would be a part of the answer that nobody meant.
inline std::string read_texts(const std::filesystem::path& folder, std::string_view extension) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(test_support::source_dir() / folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const auto& file : files) {
    const std::string whole = read_file(file, 1 << 20).value();
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = std::min(whole.find('\n', begin), whole.size() - 1) + 1;
      if (const auto line = std::string_view(whole).substr(begin, end - begin); line.find('<') == line.npos) text += line;
      begin = end;
    }
  }
  INGOT_CHECK(!text.empty(), "no {} in {}", extension, folder.string());
  return text;
}

inline const std::string& english() {
  static const std::string text = read_texts("docs", ".md");
  return text;
}

inline const std::string& code() {
  static const std::string text = read_texts("src/text", ".cc");
  return text;
}

// Clauses of common words between Chinese marks: a clause is one word to the pre-tokenizer.
inline const std::string& chinese() {
  static const std::string text = [] {
    constexpr std::array<std::string_view, 48> kWords{
        "我们", "时间", "问题", "服务", "请求", "模型", "计算", "内存", "数据", "系统", "可以", "需要", "因为", "所以", "如果", "但是",
        "已经", "还是", "没有", "一个", "这个", "那些", "每次", "然后", "开始", "结束", "速度", "结果", "文字", "语言", "学习", "工作",
        "城市", "天气", "今天", "明天", "朋友", "老师", "学生", "电脑", "网络", "安全", "方法", "世界", "在",   "的",   "是",   "了"};
    constexpr std::array<std::string_view, 4> kMarks{"，", "，", "。", "！"};
    Rng rng(3);
    std::string out;
    while (out.size() < 256 << 10) {
      for (uint64_t left = 3 + rng.below(7); left > 0; --left) out += kWords[rng.below(kWords.size())];
      out += kMarks[rng.below(kMarks.size())];
    }
    return out;
  }();
  return text;
}

// Hostile: one word, which no pre-tokenizer cuts.
inline std::string random_letters(size_t size) {
  Rng rng(5);
  std::string out(size, 'a');
  for (char& c : out) c = static_cast<char>('a' + rng.below(26));
  return out;
}

// Whole lines of `text`, at least `size` bytes when it has them, from the first line after an offset drawn at random.
inline std::string excerpt(const std::string& text, size_t size, Rng& rng) {
  const size_t begin = text.find('\n', rng.below(text.size() - std::min(text.size() / 2, size * 2))) + 1;
  return text.substr(begin, text.find('\n', std::min(begin + size, text.size() - 1)) + 1 - begin);
}

inline Json string_property(const char* description) { return {{"type", "string"}, {"description", description}}; }

inline Json function_tool(std::string name, const char* description, Json properties, Json required) {
  Json parameters{{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
  return {{"type", "function"},
          {"function", {{"name", std::move(name)}, {"description", description}, {"parameters", std::move(parameters)}}}};
}

// The tools of a coding agent: three that are called, and nine more that the template prints.
inline Json agent_tools() {
  Json tools = Json::array();
  tools.push_back(function_tool("read_file", "Read a part of a file of the workspace",
                                {{"path", string_property("Path from the workspace's root")},
                                 {"first_line", {{"type", "integer"}, {"minimum", 1}}},
                                 {"num_lines", {{"type", "integer"}, {"maximum", 2000}}}},
                                {"path"}));
  tools.push_back(function_tool(
      "write_file", "Replace a file of the workspace",
      {{"path", string_property("Path from the workspace's root")}, {"content", string_property("The whole text")}}, {"path", "content"}));
  tools.push_back(function_tool("run_commands", "Run commands one after the other",
                                {{"commands", {{"type", "array"}, {"items", {{"type", "string"}}}}}, {"timeout_s", {{"type", "number"}}}},
                                {"commands"}));
  for (int i = 0; i < 9; ++i) {
    tools.push_back(function_tool(fmt::format("service_{}", i), "Ask one of the company's services, and wait for what it says",
                                  {{"customer_id", string_property("Number of the customer, with its prefix")},
                                   {"kind", {{"type", "string"}, {"enum", {"invoice", "order", "shipment", "complaint"}}}},
                                   {"since", string_property("First day, as YYYY-MM-DD")}},
                                  {"customer_id", "kind"}));
  }
  return tools;
}

inline Json short_request() {
  return {{"model", "demo"},
          {"messages",
           {{{"role", "system"}, {"content", "You answer in one sentence."}},
            {{"role", "user"}, {"content", "What does a radix tree hold in an inference server?"}},
            {{"role", "assistant"}, {"content", "The prefixes of prompts whose keys and values are computed already."}},
            {{"role", "user"}, {"content", "And who may throw one of them away?"}}}},
          {"max_tokens", 200},
          {"temperature", 0.7},
          {"stream", true},
          {"stream_options", {{"include_usage", true}}}};
}

// A task, and `num_turns` of the agent: it thinks, calls one tool, and gets about `result_bytes` of source.
inline Json agent_request(int64_t num_turns, size_t result_bytes) {
  Rng rng(7);
  Json messages = Json::array();
  messages.push_back({{"role", "system"}, {"content", excerpt(english(), 3000, rng)}});
  messages.push_back({{"role", "user"}, {"content", excerpt(english(), 500, rng)}});
  for (int64_t turn = 0; turn < num_turns; ++turn) {
    const std::string id = fmt::format("call_{:032x}", turn);
    const Json arguments{{"path", fmt::format("src/text/part_{}.cc", turn)}, {"first_line", turn * 10 + 1}, {"num_lines", 40}};
    const Json call{{"id", id}, {"type", "function"}, {"function", {{"name", "read_file"}, {"arguments", arguments.dump()}}}};
    messages.push_back({{"role", "assistant"},
                        {"content", nullptr},
                        {"reasoning_content", excerpt(english(), 300, rng)},
                        {"tool_calls", Json::array({call})}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", excerpt(code(), result_bytes, rng)}});
  }
  return {{"model", "demo"}, {"messages", std::move(messages)}, {"tools", agent_tools()}, {"max_tokens", 4096}, {"stream", true}};
}

// A call as the model writes it.
inline std::string call_text(std::string_view tool, const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = fmt::format("<tool_call>{}", tool);
  for (const auto& [key, value] : arguments) text += fmt::format("<arg_key>{}</arg_key><arg_value>{}</arg_value>", key, value);
  return text + "</tool_call>";
}

// JSON of a list of texts, `size` bytes or a little more.
inline std::string list_of_texts(size_t size) {
  std::string text = "[\"make\"";
  while (text.size() < size) text += ", \"ctest -R text\"";
  return text + "]";
}

}  // namespace ingot::bench
