#include "text/tokenizer.h"

#include <algorithm>
#include <map>

#include "base/file_map.h"
#include "base/json.h"
#include "text/bpe_json.h"
#include "text/bpe_model.h"
#include "text/pretokenizer.h"
#include "text/unicode_classes.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr int64_t kMaxAddedHoles = 65536;

struct AddedToken {
  std::string content;
  std::string bytes;
  int32_t id = 0;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// Longest match at a place, leftmost first, over the added tokens of one kind.
class AddedTrie {
 public:
  void add(const std::string& content, int32_t index) {
    starts_[static_cast<unsigned char>(content[0])] = true;
    int32_t node = 0;
    for (const char c : content) {
      int32_t child = nodes_[static_cast<size_t>(node)].first_child;
      while (child != 0 && nodes_[static_cast<size_t>(child)].byte != c) child = nodes_[static_cast<size_t>(child)].next_sibling;
      if (child == 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({c, 0, nodes_[static_cast<size_t>(node)].first_child, -1});
        nodes_[static_cast<size_t>(node)].first_child = child;
      }
      node = child;
    }
    if (nodes_[static_cast<size_t>(node)].token < 0) nodes_[static_cast<size_t>(node)].token = index;
  }
  bool empty() const { return nodes_.size() == 1; }

  // Next match at or after `at`: its token's index, begin and end. False when there is none.
  bool find(std::string_view text, size_t at, int32_t& token, size_t& begin, size_t& end) const {
    for (; at < text.size(); ++at) {
      if (!starts_[static_cast<unsigned char>(text[at])]) continue;
      token = -1;
      int32_t node = 0;
      for (size_t i = at; i < text.size(); ++i) {
        node = nodes_[static_cast<size_t>(node)].first_child;
        while (node != 0 && nodes_[static_cast<size_t>(node)].byte != text[i]) node = nodes_[static_cast<size_t>(node)].next_sibling;
        if (node == 0) break;
        if (nodes_[static_cast<size_t>(node)].token >= 0) {
          token = nodes_[static_cast<size_t>(node)].token;
          end = i + 1;
        }
      }
      if (token >= 0) {
        begin = at;
        return true;
      }
    }
    return false;
  }

 private:
  struct Node {
    char byte;
    int32_t first_child;
    int32_t next_sibling;
    int32_t token;  // index of the token that ends here, or -1
  };
  std::vector<Node> nodes_{{'\0', 0, 0, -1}};
  std::array<bool, 256> starts_{};
};

class BpeTokenizer final : public Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> read(std::string_view file, const std::string& what);

  Result<std::vector<int32_t>> encode(std::string_view text, size_t max_tokens) const override;
  std::string_view token_bytes(int32_t id) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  bool is_special(int32_t id) const override {
    const AddedToken* token = added(id);
    return token != nullptr && token->special;
  }
  int64_t vocab_size() const override { return vocab_size_; }

 private:
  struct Encoding {
    std::vector<int32_t> ids;
    size_t max_tokens;
    bool full() const { return ids.size() > max_tokens; }
  };

  Result<> read_added(const Json& list, const std::string& what);
  Result<> read_normalizer(const Json& config, const std::string& what, int depth);
  Result<> encode_raw(std::string_view text, Encoding& out) const;
  Result<> encode_normalized(std::string_view text, Encoding& out) const;
  Result<> encode_plain(std::string_view text, Encoding& out) const;
  // Cuts `text` at the added tokens of `trie`; rest(part) encodes what lies between them.
  template <class Rest>
  Result<> cut_at_added(const AddedTrie& trie, std::string_view text, Encoding& out, Rest&& rest) const;
  Result<> no_token_for(std::string_view word) const;
  const AddedToken* added(int32_t id) const {
    const auto found = added_by_id_.find(id);
    return found == added_by_id_.end() ? nullptr : &added_[found->second];
  }

  std::unique_ptr<const BpeModel> model_;
  std::optional<Pretokenizer> pretokenizer_;
  bool nfc_ = false;
  std::vector<AddedToken> added_;
  std::map<int32_t, size_t> added_by_id_;
  std::map<std::string, int32_t, std::less<>> added_ids_;
  AddedTrie raw_trie_;         // tokens looked for in the text as it came
  AddedTrie normalized_trie_;  // those looked for after normalisation
  int64_t vocab_size_ = 0;
};

std::string type_of(const Json& config) {
  return config.is_object() && config.contains("type") && config["type"].is_string() ? config["type"].get<std::string>() : "(none)";
}

// The post-processor only adds tokens of add_special_tokens=True, which we never ask for, or trims offsets: its kinds are checked, no more.
Result<> check_post_processor(const Json& config, const std::string& what) {
  if (config.is_null()) return {};
  const std::string type = type_of(config);
  if (type == "Sequence" && config.contains("processors") && config["processors"].is_array()) {
    for (const Json& part : config["processors"]) INGOT_TRY(check_post_processor(part, what));
    return {};
  }
  for (const char* known : {"ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"}) {
    if (type == known) return {};
  }
  return fail("{}: post_processor: type {} is unsupported", what, type);
}

Result<> check_decoder(const Json& config, const std::string& what) {
  if (type_of(config) == "ByteLevel") return {};
  if (type_of(config) == "Sequence" && config.contains("decoders") && config["decoders"].is_array() && config["decoders"].size() == 1) {
    return check_decoder(config["decoders"][0], what);
  }
  return fail_hint("only ByteLevel is supported", "{}: decoder: type {} is unsupported", what, type_of(config));
}

Result<std::shared_ptr<const Tokenizer>> BpeTokenizer::read(std::string_view file, const std::string& what) {
  auto self = std::make_shared<BpeTokenizer>();
  std::map<std::string, Json> parts;
  BpeJsonReader reader(file, what);
  INGOT_TRY(reader.object("the file", [&](std::string_view key_view) -> Result<> {
    const std::string key(key_view);
    if (key == "model") {
      if (self->model_ != nullptr) return fail("{}: model comes twice", what);
      if (reader.peek() != '{') return fail("{}: model is not an object", what);
      INGOT_ASSIGN(self->model_, BpeModel::read(reader, what));
      return {};
    }
    INGOT_ASSIGN(const std::string_view raw, reader.raw_value(key));
    INGOT_ASSIGN(parts[key], parse_json(raw, fmt::format("{}: {}", what, key)));
    return {};
  }));
  if (!reader.at_end()) return fail("{}: something follows the JSON object at byte {}", what, reader.offset());
  if (self->model_ == nullptr) return fail("{}: has no model", what);
  INGOT_TRY(self->read_normalizer(parts["normalizer"], what, 0));
  INGOT_ASSIGN(self->pretokenizer_, Pretokenizer::parse(parts["pre_tokenizer"], what));
  INGOT_TRY(check_decoder(parts["decoder"], what));
  INGOT_TRY(check_post_processor(parts["post_processor"], what));
  INGOT_TRY(self->read_added(parts["added_tokens"], what));
  return std::shared_ptr<const Tokenizer>(std::move(self));
}

Result<> BpeTokenizer::read_normalizer(const Json& config, const std::string& what, int depth) {
  if (config.is_null()) return {};
  const std::string type = type_of(config);
  if (type == "NFC") {
    nfc_ = true;
    return {};
  }
  if (type == "Sequence" && depth < 4 && config.contains("normalizers") && config["normalizers"].is_array()) {
    for (const Json& part : config["normalizers"]) INGOT_TRY(read_normalizer(part, what, depth + 1));
    return {};
  }
  return fail_hint("supported: null, NFC, and a Sequence of these", "{}: normalizer: type {} is unsupported", what, type);
}

Result<> BpeTokenizer::read_added(const Json& list, const std::string& what) {
  vocab_size_ = model_->vocab_size();
  if (list.is_null()) return {};
  if (!list.is_array()) return fail("{}: added_tokens is not a list", what);
  const int64_t id_limit = vocab_size_ + static_cast<int64_t>(list.size()) + kMaxAddedHoles;
  for (const Json& entry : list) {
    const size_t n = added_.size();
    if (!entry.is_object()) return fail("{}: added_tokens[{}] is not an object", what, n);
    AddedToken token;
    if (!entry.contains("content") || !entry["content"].is_string() || entry["content"] == "") {
      return fail("{}: added_tokens[{}]: content is not a string with something in it", what, n);
    }
    token.content = entry["content"].get<std::string>();
    if (!entry.contains("id") || !entry["id"].is_number_integer())
      return fail("{}: added_tokens[{}] \"{}\": id is not a whole number", what, n, token.content);
    const auto id = entry["id"].get<int64_t>();
    if (id < 0 || id >= id_limit)
      return fail("{}: added_tokens[{}] \"{}\": id {} is out of range (0 to {})", what, n, token.content, id, id_limit - 1);
    token.id = static_cast<int32_t>(id);
    bool single_word = false;
    for (const auto& [name, value] : {std::pair{"lstrip", &token.lstrip},
                                      {"rstrip", &token.rstrip},
                                      {"normalized", &token.normalized},
                                      {"special", &token.special},
                                      {"single_word", &single_word}}) {
      if (!entry.contains(name)) continue;
      if (!entry[name].is_boolean()) return fail("{}: added_tokens[{}] \"{}\": {} is not true or false", what, n, token.content, name);
      *value = entry[name].get<bool>();
    }
    if (single_word) return fail("{}: added_tokens[{}] \"{}\": single_word is unsupported", what, n, token.content);
    if (added_ids_.contains(token.content)) return fail("{}: added_tokens: \"{}\" comes twice", what, token.content);
    if (added_by_id_.contains(token.id)) return fail("{}: added_tokens: id {} comes twice", what, id);
    const int32_t in_model = model_->find(token.content);
    if (in_model != BpeModel::kNoToken && in_model != token.id) {
      return fail("{}: added_tokens: \"{}\" has id {}, but {} in the vocabulary", what, token.content, id, in_model);
    }
    if (in_model == BpeModel::kNoToken && id < model_->vocab_size() && !model_->spelling(token.id).empty()) {
      return fail("{}: added_tokens: \"{}\" has id {} of the vocabulary's \"{}\"", what, token.content, id, model_->spelling(token.id));
    }
    token.bytes = byte_level_bytes(token.content);
    // Hugging Face looks for the normalised content of a normalised token.
    std::string wanted;
    if (token.normalized && nfc_) append_nfc(token.content, wanted);
    const auto index = static_cast<int32_t>(n);
    (token.normalized ? normalized_trie_ : raw_trie_).add(wanted.empty() ? token.content : wanted, index);
    added_ids_[token.content] = token.id;
    added_by_id_[token.id] = n;
    vocab_size_ = std::max(vocab_size_, id + 1);
    added_.push_back(std::move(token));
  }
  return {};
}

template <class Rest>
Result<> BpeTokenizer::cut_at_added(const AddedTrie& trie, std::string_view text, Encoding& out, Rest&& rest) const {
  if (trie.empty()) return rest(text);
  const UnicodeClasses& classes = pretokenizer_->classes();
  size_t done = 0, from = 0, begin = 0, end = 0;
  int32_t index = 0;
  while (!out.full() && trie.find(text, from, index, begin, end)) {
    from = end;
    const AddedToken& token = added_[static_cast<size_t>(index)];
    if (token.lstrip) {
      while (begin > done) {
        size_t start = begin - 1;
        while (start > done && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
        if (classes.of(decode_valid(text.data() + start).value) != kClassSpace) break;
        begin = start;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const CodePoint c = decode_valid(text.data() + end);
        if (classes.of(c.value) != kClassSpace) break;
        end += c.len;
      }
    }
    if (begin > done) INGOT_TRY(rest(text.substr(done, begin - done)));
    out.ids.push_back(token.id);
    done = end;
  }
  if (!out.full() && done < text.size()) return rest(text.substr(done));
  return {};
}

Result<> BpeTokenizer::no_token_for(std::string_view word) const {
  return fail("the text holds byte 0x{:02x}, for which the vocabulary has no token", model_->missing_byte(word));
}

Result<std::vector<int32_t>> BpeTokenizer::encode(std::string_view text, size_t max_tokens) const {
  if (const size_t at = find_invalid_utf8(text); at != kValidUtf8) return fail("the text is not UTF-8 at byte {}", at);
  Encoding out{{}, max_tokens};
  out.ids.reserve(std::min(text.size() / 3 + 8, max_tokens == SIZE_MAX ? SIZE_MAX : max_tokens + 1));
  INGOT_TRY(cut_at_added(raw_trie_, text, out, [&](std::string_view part) { return encode_raw(part, out); }));
  if (out.full()) return fail("the text has more than {} tokens", max_tokens);
  return std::move(out.ids);
}

Result<> BpeTokenizer::encode_raw(std::string_view text, Encoding& out) const {
  if (!nfc_ || is_nfc(text)) return encode_normalized(text, out);
  std::string composed;
  append_nfc(text, composed);
  return encode_normalized(composed, out);
}

Result<> BpeTokenizer::encode_normalized(std::string_view text, Encoding& out) const {
  return cut_at_added(normalized_trie_, text, out, [&](std::string_view part) { return encode_plain(part, out); });
}

Result<> BpeTokenizer::encode_plain(std::string_view text, Encoding& out) const {
  if (text.empty()) return {};
  if (const KnownPattern pattern = pretokenizer_->whole_pattern(); pattern != KnownPattern::kNone) {
    std::string_view refused;
    PretokenizerScan(pretokenizer_->classes(), text).run(pattern, [&](std::string_view word) {
      if (!model_->encode_word(word, out.ids)) refused = word;
      return refused.empty() && !out.full();
    });
    return refused.empty() ? Result<>() : no_token_for(refused);
  }
  std::vector<std::string_view> words;
  std::vector<std::string> storage;
  INGOT_TRY(pretokenizer_->split(text, words, storage));
  for (const std::string_view word : words) {
    if (!model_->encode_word(word, out.ids)) return no_token_for(word);
    if (out.full()) break;
  }
  return {};
}

std::string_view BpeTokenizer::token_bytes(int32_t id) const {
  if (const AddedToken* token = added(id)) return token->bytes;
  return id >= 0 && id < model_->vocab_size() ? model_->bytes(id) : std::string_view();
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes.append(token_bytes(id));
  }
  append_replacing(bytes, true, text);
  return text;
}

std::optional<int32_t> BpeTokenizer::token_to_id(std::string_view token) const {
  if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
  if (const int32_t id = model_->find(token); id != BpeModel::kNoToken) return id;
  return std::nullopt;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  INGOT_ASSIGN(const FileMap map, FileMap::open(tokenizer_json));
  const std::string_view file(reinterpret_cast<const char*>(map.bytes().data()), map.size());
  if (const size_t at = find_invalid_utf8(file); at != kValidUtf8) return fail("{}: not UTF-8 at byte {}", tokenizer_json.string(), at);
  return BpeTokenizer::read(file, tokenizer_json.string());
}

}  // namespace ingot::text
