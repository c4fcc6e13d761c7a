// Stop strings over a text that comes in pieces: emits what can no longer be part of a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::text {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  struct Piece {
    std::string text;  // safe to show; ends before the stop string once stopped
    bool stopped = false;
    int stop_index = -1;  // which one
  };
  // The earliest completed stop string wins; of several that complete together, the one that starts first.
  Piece push(std::string_view text);
  std::string finish();  // what was held back, when no stop string came

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace ingot::text
