#include "serve/replay.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "serve/answer.h"
#include "serve/json_fields.h"

namespace ingot::serve {

namespace {
// What a turn costs beside its texts and tokens: list and map nodes.
constexpr size_t kEntryBytes = 512;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Objects compare whatever the order of their keys: some clients sort them.
bool same_value(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !same_value(value, *other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value);
  return a == b;
}

const Json& function_of(const Json& call) {
  const auto function = call.find("function");
  return function == call.end() ? call : *function;
}

std::vector<Json> calls_of(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls == message.end() ? std::vector<Json>() : calls->get<std::vector<Json>>();
}

bool same_calls(const SampledTurn& turn, const std::vector<Json>& calls) {
  return std::equal(calls.begin(), calls.end(), turn.calls.begin(), turn.calls.end(), [](const Json& said, const SampledTurn::Call& call) {
    const Json& function = function_of(said);
    if (string_of(function, "name") != call.name) return false;
    const auto sampled = parse_json(call.arguments, "arguments");
    const auto arguments = function.find("arguments");
    return sampled && arguments != function.end() && same_value(*sampled, *arguments);
  });
}

// What a turn says apart from its calls. Clients that know no reasoning_content have it in the content, with its tags.
struct Words {
  std::string_view reasoning;
  std::string_view content;
};
Words words_of(std::string_view reasoning, std::string_view content) {
  constexpr std::string_view kThink = "<think>";
  constexpr std::string_view kEndThink = "</think>";
  const size_t end = reasoning.empty() ? content.find(kEndThink) : std::string_view::npos;
  if (end != std::string_view::npos) {
    reasoning = trimmed(content.substr(0, end));
    if (reasoning.starts_with(kThink)) reasoning.remove_prefix(kThink.size());
    content.remove_prefix(end + kEndThink.size());
  }
  return {trimmed(reasoning), trimmed(content)};
}

bool says_the_same(const SampledTurn& turn, const Words& said, const std::vector<Json>& calls, bool may_leave_out_reasoning) {
  const Words sampled = words_of(turn.reasoning, turn.content);
  if (said.reasoning != sampled.reasoning && !(said.reasoning.empty() && may_leave_out_reasoning)) return false;
  return said.content == sampled.content && same_calls(turn, calls);
}

// A key by what a turn says; arguments apart, whose spelling may differ. Finds only: the words are compared.
std::string key_of_words(const Words& said, const std::vector<std::string>& calls) {
  std::string words = fmt::format("{}\n{}\n{}", said.reasoning.size(), said.reasoning, said.content);
  for (const std::string& name : calls) words += "\n" + name;
  const XXH128_hash_t hash = XXH3_128bits(words.data(), words.size());
  return fmt::format("words {:016x}{:016x}", hash.high64, hash.low64);
}
}  // namespace

void ReplayStore::drop(Place place) {
  for (const std::string& key : place->keys) {
    const auto known = places_.find(key);
    if (known != places_.end() && known->second == place) places_.erase(known);
  }
  num_bytes_ -= place->bytes;
  entries_.erase(place);
}

void ReplayStore::add(const std::vector<std::string>& keys, SampledTurn turn) {
  Entry entry;
  entry.keys = keys;
  std::vector<std::string> names;
  for (const auto& call : turn.calls) names.push_back(call.name);
  entry.keys.push_back(key_of_words(words_of(turn.reasoning, turn.content), names));
  entry.bytes = kEntryBytes + turn.tokens.size() * sizeof(int32_t) + turn.reasoning.size() + turn.content.size();
  for (const auto& call : turn.calls) entry.bytes += call.name.size() + call.arguments.size();
  for (const std::string& key : entry.keys) entry.bytes += 2 * key.size();
  if (entry.bytes > limits_.max_bytes) return;
  entry.turn = std::make_shared<const SampledTurn>(std::move(turn));
  const std::lock_guard lock(mutex_);
  num_bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  for (const std::string& key : entries_.front().keys) places_[key] = entries_.begin();
  while (entries_.size() > limits_.max_turns || num_bytes_ > limits_.max_bytes) drop(std::prev(entries_.end()));
}

std::shared_ptr<const SampledTurn> ReplayStore::look_up(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto known = places_.find(key);
  if (known == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  return known->second->turn;
}

std::shared_ptr<const SampledTurn> ReplayStore::find(const Json& message) {
  const std::vector<Json> calls = calls_of(message);
  std::vector<std::string> ids{string_of(message, "id")};
  std::vector<std::string> names;
  for (const Json& call : calls) {
    ids.push_back(string_of(call, "id"));
    names.push_back(string_of(function_of(call), "name"));
  }
  const std::string reasoning = string_of(message, "reasoning_content");
  const std::string content = string_of(message, "content");
  const Words said = words_of(reasoning, content);
  for (const std::string& id : ids) {
    if (id.empty() || id.starts_with("words ")) continue;
    auto turn = look_up(id);
    if (turn && says_the_same(*turn, said, calls, true)) return turn;
  }
  auto turn = look_up(key_of_words(said, names));
  return turn && says_the_same(*turn, said, calls, false) ? turn : nullptr;
}

size_t ReplayStore::num_turns() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

ReplayMarks::ReplayMarks(ReplayStore& store, const Json& messages) : messages_(messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].value("role", Json()) != "assistant") continue;
    auto turn = store.find(messages[i]);
    if (!turn) continue;
    Mark mark;
    mark.index = i;
    mark.original = messages[i];
    // Unguessable, so that no text of the conversation can be taken for a mark.
    const std::string name = make_id("ingot-turn-");
    Json& message = messages_[i];
    message["content"] = name + "-content";
    mark.written = "</think>" + name + "-content";
    if (turn->starts_in_reasoning) {
      message["reasoning_content"] = name + "-reasoning";
      mark.written = "<think>" + name + "-reasoning" + mark.written;
      mark.skip = std::string_view("<think>").size();
    } else {
      message.erase("reasoning_content");
      mark.skip = std::string_view("</think>").size();
    }
    message.erase("tool_calls");
    if (!turn->calls.empty()) {
      message["tool_calls"] =
          Json::array({{{"id", name}, {"type", "function"}, {"function", {{"name", name + "-call"}, {"arguments", Json::object()}}}}});
      mark.written += "<tool_call>" + name + "-call</tool_call>";
    }
    mark.turn = std::move(turn);
    marks_.push_back(std::move(mark));
  }
}

bool ReplayMarks::drop_misplaced(std::string_view text) {
  // In order of messages, as a template writes them: one pass over the text.
  size_t from = 0;
  const auto misplaced = [&](const Mark& mark) {
    const size_t at = text.find(mark.written, from);
    if (at == std::string_view::npos) {
      messages_[mark.index] = mark.original;
      return true;
    }
    from = at + mark.written.size();
    return false;
  };
  return std::erase_if(marks_, misplaced) > 0;
}

std::vector<ReplayMarks::Part> ReplayMarks::split(std::string_view text) const {
  std::vector<Part> parts;
  for (const Mark& mark : marks_) {
    const size_t at = text.find(mark.written);
    if (at == std::string_view::npos) continue;
    parts.push_back({text.substr(0, at + mark.skip), nullptr});
    parts.push_back({{}, mark.turn});
    text.remove_prefix(at + mark.written.size());
  }
  parts.push_back({text, nullptr});
  return parts;
}

}  // namespace ingot::serve
