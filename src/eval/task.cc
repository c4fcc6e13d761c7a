#include "eval/task.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"
#include "base/file_map.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 30;

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it != object.end() && !it->is_null() ? &*it : nullptr;
}

int64_t count_of(const Json& object, const char* name) {
  const Json* found = member(object, name);
  return found != nullptr && found->is_number_integer() ? found->get<int64_t>() : 0;
}

ToolCall parse_call(const Json& call) {
  const Json* function = member(call, "function");
  if (function == nullptr) return {};
  ToolCall parsed;
  parsed.name = text_of(*function, "name");
  const Json* arguments = member(*function, "arguments");
  if (arguments == nullptr) return parsed;
  parsed.arguments = *arguments;
  if (!arguments->is_string()) return parsed;
  if (auto object = parse_json(arguments->get_ref<const std::string&>(), "arguments"); object && object->is_object())
    parsed.arguments = std::move(*object);
  return parsed;
}

}  // namespace

bool ToolCall::operator==(const ToolCall& other) const {
  // Without key order: the unordered type compares objects as sets.
  return name == other.name && nlohmann::json(arguments) == nlohmann::json(other.arguments);
}

Result<Answer> parse_answer(const Json& reply) {
  const Json* choices = member(reply, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty() || !choices->front().is_object())
    return fail("the reply has no `choices`");
  const Json& choice = choices->front();
  Answer answer;
  answer.finish_reason = text_of(choice, "finish_reason");
  if (const Json* message = member(choice, "message")) {
    answer.content = text_of(*message, "content");
    answer.reasoning = text_of(*message, "reasoning_content");
    if (answer.reasoning.empty()) answer.reasoning = text_of(*message, "reasoning");
    if (const Json* calls = member(*message, "tool_calls"); calls != nullptr && calls->is_array())
      for (const Json& call : *calls) answer.calls.push_back(parse_call(call));
  } else if (const Json* text = member(choice, "text"); text != nullptr && text->is_string()) {
    answer.content = text->get<std::string>();
  } else {
    return fail("the reply's choice has neither `message` nor `text`");
  }
  if (const Json* usage = member(reply, "usage")) {
    answer.prompt_tokens = count_of(*usage, "prompt_tokens");
    answer.completion_tokens = count_of(*usage, "completion_tokens");
    if (const Json* details = member(*usage, "prompt_tokens_details")) answer.cached_tokens = count_of(*details, "cached_tokens");
  }
  return answer;
}

std::string_view after_thoughts(std::string_view content) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = content.rfind(kEnd);
  return at == std::string_view::npos ? content : content.substr(at + kEnd.size());
}

std::string sha256_hex(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  INGOT_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string prompts_sha256(const Task& task) {
  std::string all;
  for (const Question& q : task.questions) all += fmt::format("{}\n{}\n{}\n", q.id, q.path, q.body.dump());
  return sha256_hex(all);
}

Result<std::vector<Json>> read_objects(const std::filesystem::path& path) {
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxFile));
  std::vector<Json> lines;
  INGOT_TRY(for_each_json_line(text, path.string(), [&](Json line, const std::string& where) -> Result<bool> {
    if (!line.is_object()) return fail("{}: expected a JSON object", where);
    lines.push_back(std::move(line));
    return true;
  }));
  if (lines.empty()) return fail("{} has no questions", path.string());
  return lines;
}

std::string text_of(const Json& object, const char* name) {
  const Json* found = member(object, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

Result<std::string> string_member(const Json& object, const char* name, std::string_view where) {
  const Json* found = member(object, name);
  if (found == nullptr || !found->is_string()) return fail("{}: `{}` is not a string", where, name);
  return found->get<std::string>();
}

}  // namespace ingot::eval
