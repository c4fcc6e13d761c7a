#include "eval/demo_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

namespace ingot::eval {
namespace {

// A letter, digit or underscore, a hyphen, or a part of a character beyond ASCII.
bool is_word_byte(char c) {
  const auto b = static_cast<unsigned char>(c);
  return std::isalnum(b) != 0 || c == '_' || c == '-' || b >= 0x80;
}

bool contains_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word_byte(text[at - 1])) && (end == text.size() || !is_word_byte(text[end]))) return true;
  }
  return false;
}

Result<std::vector<std::filesystem::path>> files_of(const std::vector<std::filesystem::path>& given) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : given) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    if (files.size() == before) return fail("{}: no .jsonl file in the folder", path.string());
    std::sort(files.begin() + static_cast<ptrdiff_t>(before), files.end());
  }
  return files;
}

}  // namespace

Result<bool> score_demo_answer(const Json& task, const DemoAnswer& answer) {
  const std::string id = text_of(task, "id"), kind = text_of(task, "kind");
  const auto expected = task.find("expected");
  if (expected == task.end()) return fail("{}: no `expected` answer", id);
  if (kind == "word" || kind == "retr") {
    if (!expected->is_string()) return fail("{}: `expected` of kind {} is a string", id, kind);
    const std::string& want = expected->get_ref<const std::string&>();
    if (kind == "retr") return contains_word(answer.content, want);
    static const std::regex number("#### (-?[0-9]+)");
    std::smatch found;
    return std::regex_search(answer.content, found, number) && found[1] == want;
  }
  if (kind != "tool") return fail_hint("word, tool and retr are known", "{}: kind \"{}\" is unknown", id, kind);
  if (!expected->is_object() || !expected->contains("calls") || !(*expected)["calls"].is_array())
    return fail("{}: `expected` of kind tool is an object with `calls`", id);
  std::vector<ToolCall> want;
  for (const Json& call : (*expected)["calls"]) want.push_back({text_of(call, "name"), call.value("arguments", Json::object())});
  if (want.empty()) return answer.ended && answer.calls.empty() && answer.content.find("<tool_call>") == std::string::npos;
  return answer.ended_in_call && answer.calls == want;
}

int64_t demo_answer_limit(const std::string& kind) { return kind == "word" ? 220 : kind == "tool" ? 260 : 60; }

std::vector<std::pair<std::string, std::string>> demo_groups(const Json& task) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const char* name : {"steps", "family", "form", "enable_thinking"})
    if (task.contains(name) && !task[name].is_null())
      groups.emplace_back(name, task[name].is_string() ? task[name].get<std::string>() : task[name].dump());
  const auto expected = task.find("expected");
  if (expected != task.end() && expected->is_object() && expected->contains("calls"))
    groups.emplace_back("calls", std::to_string((*expected)["calls"].size()));
  return groups;
}

Result<Task> make_demo_tasks(const DemoOptions& options) {
  Task task;
  task.name = "demo", task.rule = "demo-1";
  task.about =
      "the conversation of each line through the chat template, greedy; word: the first `#### N`, tool: the same calls in the same "
      "order, retr: the string as a word of its own";
  INGOT_ASSIGN(const auto files, files_of(options.data));
  std::set<std::string> ids;
  for (const auto& file : files) {
    INGOT_ASSIGN(const std::vector<Json> lines, read_objects(file));
    for (size_t i = 0; i < lines.size(); ++i) {
      const Json& line = lines[i];
      Question q;
      q.id = text_of(line, "id");
      if (q.id.empty()) q.id = fmt::format("{}-{}", file.stem().string(), i);
      if (!ids.insert(q.id).second) return fail("{}:{}: id \"{}\" occurs twice", file.string(), i + 1, q.id);
      // A task that cannot be scored is refused before an hour of answers, not after.
      if (const auto scored = score_demo_answer(line, {}); !scored) return fail("{}:{}: {}", file.string(), i + 1, scored.error().text());
      if (!line.contains("messages") || !line["messages"].is_array()) return fail("{}:{}: {}: no `messages`", file.string(), i + 1, q.id);
      const std::string kind = text_of(line, "kind");
      q.path = "/v1/chat/completions";
      q.body["messages"] = line["messages"];
      if (line.contains("tools") && !line["tools"].is_null()) q.body["tools"] = line["tools"];
      for (const char* name : {"enable_thinking", "reasoning_effort"})
        if (line.contains(name) && !line[name].is_null()) q.body["chat_template_kwargs"][name] = line[name];
      q.body["temperature"] = 0;
      q.body["max_tokens"] = options.max_tokens > 0 ? options.max_tokens : demo_answer_limit(kind);
      q.key = {{"id", q.id}, {"kind", kind}, {"expected", line["expected"]}};
      q.groups.emplace_back("set", file.stem().string());
      for (auto& [name, value] : demo_groups(line))
        q.groups.emplace_back(fmt::format("{} {}", file.stem().string(), name), std::move(value));
      task.questions.push_back(std::move(q));
    }
  }
  task.score = [](const Question& q, const Answer& answer) {
    DemoAnswer seen;
    seen.content = after_thoughts(answer.content);
    seen.calls = answer.calls;
    seen.ended = answer.ended();
    // Over HTTP the last token is not seen: a server says tool_calls when an answer ended with calls made.
    seen.ended_in_call = answer.finish_reason == "tool_calls";
    Score score;
    score.ok = score_demo_answer(q.key, seen).value();  // make_demo_tasks has tried it
    score.no_answer = seen.content.empty() && seen.calls.empty();
    return score;
  };
  return task;
}

}  // namespace ingot::eval
