// Text through the demo's tokenizer comes back as it was; bytes as a tokenizer.json load or give an error that names the file.
// Input: kind ('j' a tokenizer.json, else text), bytes. A tokenizer that loads is used on a few texts.
#include "text/tokenizer.h"

#include "fuzz.h"
#include "text/detokenizer.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

std::shared_ptr<const Tokenizer> load_demo() {
  auto tokenizer = Tokenizer::load(INGOT_SOURCE_DIR "/models/demo/tokenizer.json");
  INGOT_CHECK(tokenizer.has_value(), "{}", tokenizer.error().text());
  return *tokenizer;
}

// What holds for every tokenizer: the ids are in the vocabulary; max_tokens is the border, exactly; the streaming detokenizer says what
// decode says.
std::vector<int32_t> check_encode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (!ids) return {};
  for (const int32_t id : *ids) INGOT_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id {} of {}", id, tokenizer.vocab_size());
  INGOT_CHECK(tokenizer.encode(text, ids->size()).has_value());
  INGOT_CHECK(ids->empty() || !tokenizer.encode(text, ids->size() - 1).has_value());
  const std::string whole = tokenizer.decode(*ids, false);
  INGOT_CHECK(find_invalid_utf8(whole) == kValidUtf8, "decode gave bytes that are not UTF-8");
  tokenizer.decode(*ids, true);
  return *ids;
}

void run_text(std::string_view text) {
  static const auto tokenizer = load_demo();
  const bool valid = find_invalid_utf8(text) == kValidUtf8;
  INGOT_CHECK(tokenizer->encode(text).has_value() == valid, "UTF-8 is {}, encode says otherwise", valid);
  const std::vector<int32_t> ids = check_encode(*tokenizer, text);
  if (!valid) return;
  // The demo has every byte, no normalizer and no added token that eats white space: nothing may be lost.
  INGOT_CHECK(tokenizer->decode(ids, false) == text, "the text came back changed");
}

void run_file(std::string_view bytes) {
  static fuzz::MemoryFile file;
  file.write(bytes);
  const auto tokenizer = Tokenizer::load(file.path());
  if (!tokenizer) {
    INGOT_CHECK(tokenizer.error().message.find(file.path()) != std::string::npos, "the error names no file: {}", tokenizer.error().text());
    return;
  }
  const int64_t end = (*tokenizer)->vocab_size();
  for (const int64_t id : {int64_t{-1}, int64_t{0}, end - 1, end}) {
    (*tokenizer)->token_bytes(static_cast<int32_t>(id));
    (*tokenizer)->is_special(static_cast<int32_t>(id));
  }
  (*tokenizer)->token_to_id("<|user|>");
  for (const char* text : {"", "hello  world\n\n 12345", "<|user|> é\xcc\x81 \xf0\x9f\x98\x80<|user|>", "aaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    check_encode(**tokenizer, text);
  }
}

void run(fuzz::Input input) {
  const bool is_file = input.byte() == 'j';
  is_file ? run_file(input.rest()) : run_text(input.rest());
}

}  // namespace
}  // namespace ingot::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::text::run({data, size});
  return 0;
}
