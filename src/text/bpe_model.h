// The BPE model of a tokenizer.json: vocabulary, merges, and the merging of one word. Bytes in, ids out; knows nothing of
// pre-tokenizers or added tokens. Built by the tokenizer's loader, then immutable; any thread (the word cache is per thread).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe_json.h"

namespace ingot::text {

// Bytes that ByteLevel's printable spelling stands for ("Ġa" is " a"); a spelling with other characters stands for itself.
std::string byte_level_bytes(std::string_view spelling);

class BpeModel {
 public:
  static constexpr int32_t kNoToken = -1;

  // Reads the value of "model". Errors name `what` and the part: type, option, token, id or merge.
  static Result<std::unique_ptr<const BpeModel>> read(BpeJsonReader& reader, std::string_view what);

  // Appends the ids of one pre-tokenized word, not empty. False: a byte of it has no token (see missing_byte()).
  bool encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  int missing_byte(std::string_view word) const;

  int32_t find(std::string_view spelling) const;
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }  // largest id + 1
  std::string_view spelling(int32_t id) const { return view(spellings_[static_cast<size_t>(id)]); }
  std::string_view bytes(int32_t id) const { return view(bytes_[static_cast<size_t>(id)]); }

 private:
  struct Extent {
    uint32_t begin = 0;
    uint32_t len = 0;
  };
  struct MergeSlot {
    uint64_t pair = ~0ULL;
    int32_t rank = 0;
    int32_t id = 0;
  };
  struct Scratch;

  Result<> read_vocab(BpeJsonReader& reader, std::string_view what);
  Result<> read_merges(BpeJsonReader& reader, std::string_view what);
  Result<> add_merge(std::string_view a, std::string_view b, std::string_view what);
  void index_merges();
  std::string_view view(Extent e) const { return std::string_view(arena_).substr(e.begin, e.len); }
  Extent store(std::string_view text);
  const MergeSlot* merge(int32_t a, int32_t b) const;
  bool merge_word(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  std::string arena_;
  std::vector<Extent> spellings_, bytes_;  // by id
  std::vector<int32_t> index_;             // open addressing over spellings, a power of two
  std::array<int32_t, 256> byte_ids_{};
  std::vector<MergeSlot> pending_merges_;  // by rank, until index_merges()
  std::vector<MergeSlot> merges_;          // open addressing over pairs, a power of two
  bool ignore_merges_ = false;
  uint64_t serial_ = 0;  // tells this model's cached words from those of another
};

}  // namespace ingot::text
