#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ingot::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) INGOT_CHECK(!stop.empty(), "an empty stop string would stop everything; refuse it before this");
}

StopMatcher::Piece StopMatcher::push(std::string_view text) {
  if (stopped_) return {.text = {}, .stopped = true, .stop_index = -1};
  held_.append(text);

  size_t best_end = std::string::npos, best_start = 0;
  int best = -1;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t start = held_.find(stops_[i]);
    if (start == std::string::npos) continue;
    const size_t end = start + stops_[i].size();
    if (end < best_end || (end == best_end && start < best_start)) {
      best_end = end;
      best_start = start;
      best = static_cast<int>(i);
    }
  }
  if (best >= 0) {
    held_.resize(best_start);
    stopped_ = true;
    return {.text = std::exchange(held_, {}), .stopped = true, .stop_index = best};
  }

  // Keep the longest end of the text that a stop string begins with.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t len = std::min(held_.size(), stop.size() - 1); len > keep; --len) {
      if (std::string_view(held_).substr(held_.size() - len) == std::string_view(stop).substr(0, len)) {
        keep = len;
        break;
      }
    }
  }
  Piece piece;
  piece.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return piece;
}

std::string StopMatcher::finish() {
  if (stopped_) return {};
  return std::exchange(held_, {});
}

}  // namespace ingot::text
