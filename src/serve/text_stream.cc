#include "serve/text_stream.h"

#include <algorithm>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace ingot::serve {

namespace {
class TextWatcher final : public sched::TokenWatcher {
 public:
  TextWatcher(std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<std::string> stop_strings, std::vector<int32_t> stop_token_ids)
      : detokenizer_(std::move(tokenizer), true),
        matcher_(stop_strings),
        stop_strings_(std::move(stop_strings)),
        stop_token_ids_(std::move(stop_token_ids)) {}

  bool on_token(int32_t token_id) override {
    if (std::find(stop_token_ids_.begin(), stop_token_ids_.end(), token_id) != stop_token_ids_.end()) return false;
    add(detokenizer_.push(token_id));
    return stopped_;
  }

  std::string take(bool last) {
    if (last && !stopped_) add(detokenizer_.finish());
    if (last && !stopped_) text_ += matcher_.finish();
    return std::exchange(text_, {});
  }

  // Which stop string ended the text; empty: none.
  std::string stop_string() const { return stop_index_ < 0 ? std::string() : stop_strings_[static_cast<size_t>(stop_index_)]; }

 private:
  void add(const std::string& text) {
    auto piece = matcher_.push(text);
    text_ += piece.text;
    stopped_ = piece.stopped;
    stop_index_ = piece.stop_index;
  }

  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::vector<std::string> stop_strings_;
  std::vector<int32_t> stop_token_ids_;
  std::string text_;
  bool stopped_ = false;
  int stop_index_ = -1;
};
}  // namespace

void attach_text(sched::Request& request, std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<std::string> stop_strings,
                 std::function<void(TextPiece)> reader) {
  auto watcher = std::make_shared<TextWatcher>(std::move(tokenizer), std::move(stop_strings), request.sampling.stop_token_ids);
  request.watcher = watcher;
  request.sink = [watcher, reader = std::move(reader)](sched::TokenEvent event) {
    const bool last = event.finish != sched::FinishReason::none;
    std::string text = watcher->take(last);
    reader({std::move(text), std::move(event.token_ids), std::move(event.logprobs), std::move(event.prompt_logprobs), event.finish,
            std::move(event.error), watcher->stop_string(), event.cached_tokens, event.replica, event.num_drafted, event.num_accepted});
  };
}

}  // namespace ingot::serve
