// Turns that this server has sampled, so that the next request's prompt holds their very tokens. A client sends an answer back as JSON, and
// the chat template writes it again: white space between calls, the spelling of an argument or a tokenization that the model chose itself
// come out otherwise, and the prefix cache ends there. A turn is found by an id that only its receiver knows (of a tool call, of an item, a
// signature), or by what it says; it is used only when the client's copy says the same as ours, and only where the template shows the
// whole turn. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace ingot::serve {

// One answer as it was sampled: what the parser made of it, and its tokens from behind the prompt up to, without, the stop token.
struct SampledTurn {
  struct Call {
    std::string name;
    std::string arguments;  // JSON text of an object
  };
  bool starts_in_reasoning = false;  // the prompt ended in an open <think>
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::vector<int32_t> tokens;
};

class ReplayStore {
 public:
  struct Limits {
    size_t max_turns = 16384;
    size_t max_bytes = 256 << 20;  // of tokens and texts
  };
  ReplayStore() = default;
  explicit ReplayStore(Limits limits) : limits_(limits) {}

  // Remembers a turn under `keys` (at most a few; unguessable) and under what it says. The turns used least recently are forgotten first.
  void add(const std::vector<std::string>& keys, SampledTurn turn);
  // The turn that a normalized assistant message (text::normalize_messages) is a copy of. By its "id" or the ids of its calls: then
  // reasoning that the client has left out is no difference, as many clients do. Else by all that it says. Null: none.
  std::shared_ptr<const SampledTurn> find(const Json& message);

  size_t num_turns() const;

 private:
  struct Entry {
    std::shared_ptr<const SampledTurn> turn;
    std::vector<std::string> keys;
    size_t bytes = 0;
  };
  using Place = std::list<Entry>::iterator;
  void drop(Place place);
  std::shared_ptr<const SampledTurn> look_up(const std::string& key);

  Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // front: used most recently
  std::unordered_map<std::string, Place> places_;
  size_t num_bytes_ = 0;
};

// The turns of one conversation that are written by their tokens: marks stand in for them while the template renders.
class ReplayMarks {
 public:
  // Replaces what the copies of sampled turns say in `messages` (normalized) by marks.
  ReplayMarks(ReplayStore& store, const Json& messages);

  bool empty() const { return marks_.empty(); }
  const Json& messages() const { return messages_; }
  // Forgets the marks that do not stand in `text` in the one way that a whole turn is written; true when some were: `messages` has
  // those turns as the client sent them, and is to be rendered again.
  bool drop_misplaced(std::string_view text);

  struct Part {
    std::string_view text;                    // of the rendered text; empty where
    std::shared_ptr<const SampledTurn> turn;  // a turn stands
  };
  // The rendered text in order, each mark a turn of its own.
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Mark {
    size_t index = 0;     // of its message
    std::string written;  // what the template makes of the message's marks
    size_t skip = 0;      // bytes of it that come before the sampled tokens
    std::shared_ptr<const SampledTurn> turn;
    Json original;
  };
  Json messages_;
  std::vector<Mark> marks_;
};

}  // namespace ingot::serve
