#include "text/bpe_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <queue>

#include "base/json.h"
#include "base/rng.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

// Ids may have holes, but not so many that a small file asks for a large table.
constexpr int64_t kMaxHoles = 65536;
constexpr size_t kShortWord = 48;  // below this, rescanning the word beats a heap

// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the other 68 get code points from 256 up, in order.
const std::array<uint16_t, 512>& byte_of_code_point() {
  static const std::array<uint16_t, 512> table = [] {
    std::array<uint16_t, 512> t;
    t.fill(0xffff);
    uint16_t next = 256;
    for (uint16_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      t[printable ? b : next++] = b;
    }
    return t;
  }();
  return table;
}

uint64_t hash_bytes(std::string_view text) {
  uint64_t h = text.size() * 0x9e3779b97f4a7c15ULL;
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    h = mix64(h ^ word);
  }
  uint64_t tail = 0;
  if (i < text.size()) std::memcpy(&tail, text.data() + i, text.size() - i);
  return mix64(h ^ tail);
}

uint64_t pair_key(int32_t a, int32_t b) { return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b); }
uint64_t pair_hash(uint64_t pair) {
  const uint64_t h = pair * 0x9e3779b97f4a7c15ULL;
  return h ^ h >> 32;
}

size_t table_size(size_t entries) {
  size_t size = 16;
  while (size < entries * 2) size *= 2;
  return size;
}

// The last encoding of short words, per thread: most of any text is a few thousand words. 2 MiB a thread that tokenizes.
struct WordCache {
  static constexpr size_t kSlots = 1 << 15;
  static constexpr size_t kMaxBytes = 24;
  static constexpr size_t kMaxIds = 8;
  struct alignas(64) Slot {
    char word[kMaxBytes];
    uint8_t len = 0;  // 0: empty
    uint8_t num_ids = 0;
    int32_t ids[kMaxIds];
  };
  uint64_t owner = 0;
  std::vector<Slot> slots;
};
thread_local WordCache word_cache;

}  // namespace

std::string byte_level_bytes(std::string_view spelling) {
  const auto& table = byte_of_code_point();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint c = decode_valid(spelling.data() + at);
    if (c.value >= table.size() || table[c.value] == 0xffff) return std::string(spelling);
    bytes.push_back(static_cast<char>(table[c.value]));
    at += c.len;
  }
  return bytes;
}

Result<std::unique_ptr<const BpeModel>> BpeModel::read(BpeJsonReader& reader, std::string_view what) {
  std::unique_ptr<BpeModel> model(new BpeModel);
  std::string_view merges;
  bool has_vocab = false, has_type = false, has_unk = false;
  const auto member = [&](std::string_view key_view) -> Result<> {
    const std::string key(key_view);
    const std::string place = "model." + key;
    if (key == "vocab") {
      if (has_vocab) return fail("{}: model: vocab comes twice", what);
      has_vocab = true;
      return model->read_vocab(reader, what);
    }
    INGOT_ASSIGN(const std::string_view raw, reader.raw_value(place));
    if (key == "merges") {
      merges = raw;
      return {};
    }
    INGOT_ASSIGN(const Json value, parse_json(raw, fmt::format("{}: {}", what, place)));
    const bool unset = value.is_null() || value == "" || value == false || (value.is_number() && value.get<double>() == 0.0);
    if (key == "type") {
      has_type = true;
      if (value != "BPE") return fail_hint("only BPE is supported", "{}: model: type {} is unsupported", what, value.dump());
    } else if (key == "ignore_merges") {
      if (!value.is_boolean() && !value.is_null()) return fail("{}: {} is not true or false", what, place);
      model->ignore_merges_ = value == true;
    } else if (key == "unk_token") {
      has_unk = !unset;
    } else if (key == "dropout" || key == "continuing_subword_prefix" || key == "end_of_word_suffix" || key == "byte_fallback") {
      if (!unset) return fail("{}: {} = {} is unsupported for byte-level BPE", what, place, value.dump());
    }
    return {};
  };
  INGOT_TRY(reader.object("model", member));
  // Files of the first format have no type; they are told by their merges.
  if (!has_type && merges.empty()) return fail_hint("only BPE is supported", "{}: model: has no type and no merges", what);
  if (!has_vocab) return fail("{}: model: has no vocab", what);
  if (merges.empty()) return fail("{}: model: has no merges", what);

  const auto& table = byte_of_code_point();
  model->byte_ids_.fill(kNoToken);
  for (uint32_t c = 0; c < table.size(); ++c) {
    if (table[c] == 0xffff) continue;
    std::string spelling;
    append_code_point(c, spelling);
    model->byte_ids_[table[c]] = model->find(spelling);
  }
  if (has_unk && std::count(model->byte_ids_.begin(), model->byte_ids_.end(), kNoToken) > 0) {
    return fail("{}: model.unk_token is set and some bytes have no token: unknown tokens are unsupported", what);
  }
  BpeJsonReader merge_reader(merges, what);
  INGOT_TRY(model->read_merges(merge_reader, what));
  model->index_merges();
  static std::atomic<uint64_t> next_serial{1};
  model->serial_ = next_serial.fetch_add(1);
  return std::unique_ptr<const BpeModel>(std::move(model));
}

BpeModel::Extent BpeModel::store(std::string_view text) {
  const Extent extent{static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_.append(text);
  return extent;
}

Result<> BpeModel::read_vocab(BpeJsonReader& reader, std::string_view what) {
  struct Entry {
    Extent spelling;
    int64_t id;
  };
  std::vector<Entry> entries;
  int64_t largest = -1;
  std::string scratch;
  INGOT_TRY(reader.object("model.vocab", [&](std::string_view token) -> Result<> {
    const Extent spelling = store(token);
    INGOT_ASSIGN(const int64_t id, reader.integer("model.vocab"));
    if (id < 0 || id > INT32_MAX) return fail("{}: model.vocab: id {} of token \"{}\" is out of range", what, id, token);
    if (token.empty()) return fail("{}: model.vocab: id {} is an empty token", what, id);
    entries.push_back({spelling, id});
    largest = std::max(largest, id);
    // Half of the room of 32-bit extents; the bytes are stored beside the spellings.
    if (arena_.size() > (1u << 30)) return fail("{}: model.vocab: more than 1 GiB of tokens", what);
    return {};
  }));
  if (entries.empty()) return fail("{}: model.vocab is empty", what);
  if (largest >= static_cast<int64_t>(entries.size()) + kMaxHoles) {
    return fail("{}: model.vocab: id {} is far beyond the {} tokens", what, largest, entries.size());
  }
  spellings_.resize(static_cast<size_t>(largest) + 1);
  bytes_.resize(spellings_.size());
  index_.assign(table_size(entries.size()), kNoToken);
  for (const Entry& entry : entries) {
    const auto id = static_cast<size_t>(entry.id);
    const std::string spelling(view(entry.spelling));
    if (spellings_[id].len != 0)
      return fail("{}: model.vocab: tokens \"{}\" and \"{}\" share id {}", what, view(spellings_[id]), spelling, id);
    size_t slot = hash_bytes(spelling) & (index_.size() - 1);
    for (; index_[slot] != kNoToken; slot = (slot + 1) & (index_.size() - 1)) {
      if (this->spelling(index_[slot]) == spelling) return fail("{}: model.vocab: token \"{}\" comes twice", what, spelling);
    }
    index_[slot] = static_cast<int32_t>(id);
    spellings_[id] = entry.spelling;
    bytes_[id] = store(byte_level_bytes(spelling));
  }
  return {};
}

int32_t BpeModel::find(std::string_view text) const {
  for (size_t slot = hash_bytes(text) & (index_.size() - 1); index_[slot] != kNoToken; slot = (slot + 1) & (index_.size() - 1)) {
    if (spelling(index_[slot]) == text) return index_[slot];
  }
  return kNoToken;
}

Result<> BpeModel::read_merges(BpeJsonReader& reader, std::string_view what) {
  std::string scratch, scratch2;
  return reader.array("model.merges", [&]() -> Result<> {
    if (reader.peek() == '"') {
      INGOT_ASSIGN(const std::string_view line, reader.string("model.merges", scratch));
      if (line.starts_with("#version")) return {};
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return fail("{}: model.merges: \"{}\" is not two tokens with a space between", what, line);
      }
      return add_merge(line.substr(0, space), line.substr(space + 1), what);
    }
    INGOT_TRY(reader.expect('[', "model.merges"));
    INGOT_ASSIGN(const std::string_view a, reader.string("model.merges", scratch));
    INGOT_TRY(reader.expect(',', "model.merges"));
    INGOT_ASSIGN(const std::string_view b, reader.string("model.merges", scratch2));
    INGOT_TRY(reader.expect(']', "model.merges"));
    return add_merge(a, b, what);
  });
}

Result<> BpeModel::add_merge(std::string_view a, std::string_view b, std::string_view what) {
  std::string joined(a);
  joined += b;
  const int32_t id_a = find(a), id_b = find(b), id = find(joined);
  const auto missing = id_a == kNoToken ? a : id_b == kNoToken ? b : std::string_view(joined);
  if (id_a == kNoToken || id_b == kNoToken || id == kNoToken) {
    return fail("{}: model.merges: merge {} (\"{}\" \"{}\"): token \"{}\" is not in the vocabulary", what, pending_merges_.size(), a, b,
                missing);
  }
  pending_merges_.push_back({pair_key(id_a, id_b), static_cast<int32_t>(pending_merges_.size()), id});
  return {};
}

void BpeModel::index_merges() {
  merges_.assign(table_size(pending_merges_.size()), MergeSlot{});
  for (const MergeSlot& merge : pending_merges_) {
    size_t slot = pair_hash(merge.pair) & (merges_.size() - 1);
    while (merges_[slot].pair != ~0ULL && merges_[slot].pair != merge.pair) slot = (slot + 1) & (merges_.size() - 1);
    merges_[slot] = merge;  // of a pair that comes twice the last counts, as in Hugging Face
  }
  pending_merges_ = {};
}

const BpeModel::MergeSlot* BpeModel::merge(int32_t a, int32_t b) const {
  const uint64_t pair = pair_key(a, b);
  for (size_t slot = pair_hash(pair) & (merges_.size() - 1);; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == ~0ULL) return nullptr;
  }
}

int BpeModel::missing_byte(std::string_view word) const {
  for (const char c : word) {
    if (byte_ids_[static_cast<unsigned char>(c)] == kNoToken) return static_cast<unsigned char>(c);
  }
  return -1;
}

bool BpeModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > WordCache::kMaxBytes) return merge_word(word, ids);
  WordCache& cache = word_cache;
  if (cache.owner != serial_) {
    cache.slots.assign(WordCache::kSlots, {});
    cache.owner = serial_;
  }
  WordCache::Slot& slot = cache.slots[hash_bytes(word) & (WordCache::kSlots - 1)];
  if (slot.len == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }
  const size_t before = ids.size();
  if (!merge_word(word, ids)) return false;
  const size_t num_ids = ids.size() - before;
  if (num_ids <= WordCache::kMaxIds) {
    std::memcpy(slot.word, word.data(), word.size());
    slot.len = static_cast<uint8_t>(word.size());
    slot.num_ids = static_cast<uint8_t>(num_ids);
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), slot.ids);
  }
  return true;
}

bool BpeModel::merge_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    std::string spelled;
    static const std::array<uint16_t, 256> code_points = [] {
      std::array<uint16_t, 256> t{};
      for (uint16_t c = 0; c < 512; ++c) {
        if (byte_of_code_point()[c] != 0xffff) t[byte_of_code_point()[c]] = c;
      }
      return t;
    }();
    for (const char c : word) append_code_point(code_points[static_cast<unsigned char>(c)], spelled);
    if (const int32_t id = find(spelled); id != kNoToken) {
      ids.push_back(id);
      return true;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id == kNoToken) return false;
    symbols.push_back(id);
  }
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return true;
}

// Finds the best pair by looking at all of them; ranks are kept, so that a merge asks the table for two pairs only.
void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  size_t count = symbols.size();
  const MergeSlot* pairs[kShortWord];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merge(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = count;
    int32_t best_rank = INT32_MAX;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] != nullptr && pairs[i]->rank < best_rank) {
        best_rank = pairs[i]->rank;
        best = i;
      }
    }
    if (best == count) break;
    symbols[best] = pairs[best]->id;
    for (size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < count; ++i) pairs[i] = pairs[i + 1];
    --count;
    if (best > 0) pairs[best - 1] = merge(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merge(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

// A heap of (rank, place) over a linked list: n log n, so that a megabyte of one letter is no attack.
void BpeModel::merge_long(std::vector<int32_t>& symbols) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> before(count), after(count);
  std::vector<const MergeSlot*> pairs(count, nullptr);
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap;
  const auto look = [&](uint32_t i) {
    pairs[i] = after[i] == kNone ? nullptr : merge(symbols[i], symbols[after[i]]);
    if (pairs[i] != nullptr) heap.push(static_cast<uint64_t>(pairs[i]->rank) << 32 | i);
  };
  for (uint32_t i = 0; i < count; ++i) {
    before[i] = i == 0 ? kNone : i - 1;
    after[i] = i + 1 == count ? kNone : i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) look(i);
  while (!heap.empty()) {
    const auto i = static_cast<uint32_t>(heap.top());
    const auto rank = static_cast<int32_t>(heap.top() >> 32);
    heap.pop();
    if (pairs[i] == nullptr || pairs[i]->rank != rank) continue;  // an older entry of this place
    const uint32_t gone = after[i];
    symbols[i] = pairs[i]->id;
    pairs[gone] = nullptr;
    after[i] = after[gone];
    if (after[i] != kNone) before[after[i]] = i;
    look(i);
    if (before[i] != kNone) look(before[i]);
  }
  size_t out = 0;
  for (uint32_t i = 0; i != kNone; i = after[i]) symbols[out++] = symbols[i];
  symbols.resize(out);
}

}  // namespace ingot::text
