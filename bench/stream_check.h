// One streamed answer as a client sees it: HTTP head and chunks, and the events of an answer that counts. Pure: fed bytes, tells faults.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::bench {

using Json = nlohmann::ordered_json;
// The order in which a scripted server counts (tests/support/scripted_model.h).
inline constexpr std::string_view kAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
inline constexpr size_t kMaxHeadBytes = 64 << 10;

// Head and chunked body of one HTTP answer, fed as it arrives.
class AnswerReader {
 public:
  bool head_done() const { return head_done_; }
  bool ended() const { return state_ == State::end; }
  int status() const { return status_; }
  bool is_event_stream() const { return is_event_stream_; }
  const std::string& raw() const { return raw_; }

  // Takes bytes; appends body bytes to `body`. Returns what is wrong with them, or nothing.
  std::optional<std::string> feed(std::string_view bytes, std::string& body) {
    raw_ += bytes;
    if (!head_done_) {
      const size_t end = raw_.find("\r\n\r\n");
      if (end == std::string::npos) return raw_.size() > kMaxHeadBytes ? std::optional("head too large") : std::nullopt;
      if (auto error = parse_head(std::string_view(raw_).substr(0, end + 2))) return error;
      raw_.erase(0, end + 4);
      head_done_ = true;
      if (status_ != 200) return std::nullopt;
    }
    size_t at = 0;
    const auto error = decode(at, body);
    raw_.erase(0, at);
    return error;
  }

 private:
  enum class State : uint8_t { size, data, data_end, last_line, end };

  std::optional<std::string> parse_head(std::string_view head) {
    if (!head.starts_with("HTTP/1.1 ") || head.size() < 12) return "no HTTP/1.1 status line";
    std::from_chars(head.data() + 9, head.data() + 12, status_);
    std::string lower(head);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    is_event_stream_ = lower.find("\r\ncontent-type: text/event-stream") != std::string::npos;
    if (status_ == 200 && lower.find("\r\ntransfer-encoding: chunked\r\n") == std::string::npos) return "the answer is not chunked";
    return std::nullopt;
  }

  std::optional<std::string> decode(size_t& at, std::string& body) {
    while (true) {
      const std::string_view rest = std::string_view(raw_).substr(at);
      if (state_ == State::data) {
        const size_t count = std::min(left_, rest.size());
        body += rest.substr(0, count);
        at += count;
        left_ -= count;
        if (left_ > 0) return std::nullopt;
        state_ = State::data_end;
        continue;
      }
      if (state_ == State::end) return rest.empty() ? std::nullopt : std::optional("bytes behind the answer's end");
      const size_t line = rest.find("\r\n");
      if (line == std::string_view::npos) return rest.size() > 20 ? std::optional("chunk line without an end") : std::nullopt;
      at += line + 2;
      if (state_ == State::size) {
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + line, left_, 16);
        if (error != std::errc() || end != rest.data() + line) return "bad chunk size";
        state_ = left_ == 0 ? State::last_line : State::data;
      } else {
        if (line != 0) return "bad chunk end";
        state_ = state_ == State::last_line ? State::end : State::size;
      }
    }
  }

  std::string raw_;
  bool head_done_ = false;
  bool is_event_stream_ = false;
  int status_ = 0;
  State state_ = State::size;
  size_t left_ = 0;  // of the chunk's data
};

// What a request must be answered with.
struct Expected {
  bool is_chat = false;
  bool usage = false;
  size_t first = 0;  // index of the answer's first character in kAlphabet
  int64_t tokens = 0;
  int64_t tokens_per_event = 1;  // at most: a step with drafts gives several tokens, and they come together
};

// Follows one stream's events. The first fault ends it.
struct Fault {
  std::string kind;
  std::string detail;
};

class StreamChecker {
 public:
  explicit StreamChecker(const Expected& expected) : expected_(expected) {}

  int64_t tokens() const { return tokens_; }
  bool finished() const { return finished_; }
  bool done() const { return done_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }  // -1: no usage so far

  std::optional<Fault> event(std::string_view data) {
    if (done_) return Fault{"event_after_done", std::string(data)};
    if (data == "[DONE]") {
      if (!finished_) return Fault{"no_finish", fmt::format("[DONE] after {} of {} tokens", tokens_, expected_.tokens)};
      if (expected_.usage && prompt_tokens_ < 0) return Fault{"no_usage", "asked for and not there"};
      done_ = true;
      return std::nullopt;
    }
    const Json json = Json::parse(data, nullptr, false);
    if (!json.is_object()) return Fault{"bad_json", std::string(data)};
    if (json.contains("error")) return Fault{"error_event", std::string(data)};
    const bool is_well_formed = json.value("object", "") == (expected_.is_chat ? "chat.completion.chunk" : "text_completion") &&
                                json.contains("choices") && json["choices"].is_array() && json.contains("id") && json["id"].is_string();
    if (!is_well_formed) return Fault{"bad_event", std::string(data)};
    if (id_.empty()) id_ = json["id"].get<std::string>();
    if (json["id"] != id_) return Fault{"wrong_id", fmt::format("{} in the stream of {}", json["id"].dump(), id_)};
    if (json["choices"].empty()) return usage(json, data);
    return choice(json["choices"][0], data);
  }

 private:
  std::optional<Fault> usage(const Json& json, std::string_view data) {
    if (!expected_.usage || !finished_ || prompt_tokens_ >= 0) return Fault{"unexpected_usage", std::string(data)};
    const Json usage = json.value("usage", Json::object());
    const auto count = [&](const char* name) { return usage.is_object() ? usage.value(name, int64_t{-1}) : -1; };
    prompt_tokens_ = count("prompt_tokens");
    if (count("completion_tokens") != tokens_ || prompt_tokens_ <= 0 || count("total_tokens") != prompt_tokens_ + tokens_)
      return Fault{"wrong_usage", fmt::format("{} tokens came: {}", tokens_, data)};
    return std::nullopt;
  }

  std::optional<Fault> choice(const Json& choice, std::string_view data) {
    std::string text;
    bool is_first = false;
    if (expected_.is_chat) {
      const Json delta = choice.value("delta", Json::object());
      is_first = delta.contains("role");
      for (const char* name : {"reasoning_content", "content"}) {
        if (delta.contains(name) && delta[name].is_string()) text += delta[name].get<std::string>();
      }
      if (is_first == had_role_) return Fault{"bad_event", std::string(data)};  // the role comes first, and once
      had_role_ = true;
    } else if (choice.contains("text") && choice["text"].is_string()) {
      text = choice["text"].get<std::string>();
    }
    const Json finish = choice.value("finish_reason", Json());
    if (finished_) return Fault{finish.is_null() ? "event_after_finish" : "two_finishes", std::string(data)};
    if (text.empty() && finish.is_null() && !is_first) return Fault{"empty_event", std::string(data)};
    if (!text.empty()) {
      if (auto fault = count_all(text)) return fault;
    }
    if (finish.is_null()) return std::nullopt;
    finished_ = true;
    if (finish != "length") return Fault{"wrong_finish", std::string(data)};
    if (tokens_ != expected_.tokens) return Fault{"lost_token", fmt::format("finished after {} of {} tokens", tokens_, expected_.tokens)};
    return std::nullopt;
  }

  // Every token is one character.
  char due(int64_t index) const { return kAlphabet[(expected_.first + static_cast<size_t>(index)) % kAlphabet.size()]; }

  std::optional<Fault> count_all(const std::string& text) {
    if (static_cast<int64_t>(text.size()) > expected_.tokens_per_event) {
      const bool is_true = text[0] == due(tokens_) && text[1] == due(tokens_ + 1);
      return Fault{is_true ? "merged_tokens" : "wrong_text", fmt::format("token {}: \"{}\" in one event", tokens_, text)};
    }
    for (const char character : text) {
      if (auto fault = count(character)) return fault;
    }
    return std::nullopt;
  }

  std::optional<Fault> count(char text) {
    const auto detail = [&] { return fmt::format("token {}: \"{}\" where \"{}\" was due", tokens_, text, due(tokens_)); };
    if (text != due(tokens_)) {
      if (tokens_ > 0 && text == due(tokens_ - 1)) return Fault{"doubled_token", detail()};
      return Fault{text == due(tokens_ + 1) ? "lost_token" : "wrong_text", detail()};
    }
    ++tokens_;
    if (tokens_ > expected_.tokens) return Fault{"too_many_tokens", detail()};
    return std::nullopt;
  }

  Expected expected_;
  std::string id_;
  int64_t tokens_ = 0;
  int64_t prompt_tokens_ = -1;
  bool had_role_ = false;
  bool finished_ = false;
  bool done_ = false;
};

}  // namespace ingot::bench
