// Drives a Glm over one or more sequences with paged caches of its own, in any chunks, for tests of the forward pass. On a GPU a Capture
// stays empty: only the CPU can be looked into.
// A sequence's pages are dealt in a seeded random order from one pool, so no test can pass by taking pages in order.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "model/glm.h"

namespace ingot::test_support {

// Keeps, for one sequence's positions in `rows`, the residual stream after each layer and the lists of each full layer.
struct Capture final : model::ForwardProbe {
  std::set<int32_t> rows;                                           // positions to keep
  std::map<int64_t, std::map<int32_t, std::vector<float>>> hidden;  // [layer][position]
  std::map<int64_t, std::map<int32_t, std::vector<int32_t>>> lists;
  std::vector<int32_t> positions;  // of the batch in work, set by GlmRun
  std::vector<int32_t> seqs;
  int32_t seq = 0;  // the sequence that is looked at

  void after_layer(int64_t layer, std::span<const float> stream) override { keep(hidden[layer], stream); }
  void after_index(int64_t layer, std::span<const int32_t> indices) override { keep(lists[layer], indices); }

 private:
  template <class T>
  void keep(std::map<int32_t, std::vector<T>>& into, std::span<const T> rows_of_batch) {
    const size_t width = rows_of_batch.size() / positions.size();
    for (size_t t = 0; t < positions.size(); ++t) {
      if (seqs[t] != seq || !rows.contains(positions[t])) continue;
      const auto row = rows_of_batch.subspan(t * width, width);
      into[positions[t]].assign(row.begin(), row.end());
    }
  }
};

// Some tokens of one sequence, to be run in the next batch.
struct Piece {
  int32_t seq;
  std::span<const int32_t> tokens;
};

class GlmRun {
 public:
  struct Options {
    tensor::LatentFormat format = tensor::LatentFormat::f32;
    int64_t page_size = 64;
    int64_t max_len = 4096;  // of a sequence
    int32_t num_seqs = 1;
    uint64_t page_seed = 1;
    int threads = 2;
  };

  GlmRun(model::Glm& glm, const Options& options)
      : glm_(glm),
        pool_(options.threads),
        stream_{&pool_},
        max_pages_((options.max_len + options.page_size - 1) / options.page_size),
        page_size_(options.page_size),
        lengths_(static_cast<size_t>(options.num_seqs)) {
    const int64_t pages = max_pages_ * options.num_seqs + 3;
    auto cache = model::KvCache::create(glm.config(), {options.format, pages, options.page_size}, glm.device());
    INGOT_CHECK(cache.has_value(), "{}", cache.error().text());
    cache_ = std::make_unique<model::KvCache>(std::move(*cache));
    std::vector<int32_t> numbers(static_cast<size_t>(pages));
    std::iota(numbers.begin(), numbers.end(), 0);
    Rng rng(options.page_seed);
    for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[rng.below(i)]);
    page_table_.assign(numbers.begin(), numbers.begin() + max_pages_ * options.num_seqs);
  }

  // Runs the pieces as one batch; each continues its sequence. Returns the logits (vocab each) of the last `logits_per_piece`
  // tokens of every piece, fewer when a piece is shorter.
  std::vector<std::vector<float>> step(const std::vector<Piece>& pieces, int64_t logits_per_piece, Capture* capture = nullptr) {
    std::vector<int32_t> tokens, positions, slots, seqs, logit_rows;
    for (const Piece& piece : pieces) {
      for (size_t i = 0; i < piece.tokens.size(); ++i) {
        const int64_t position = lengths_[static_cast<size_t>(piece.seq)]++;
        if (i + static_cast<size_t>(logits_per_piece) >= piece.tokens.size()) logit_rows.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(piece.tokens[i]);
        positions.push_back(static_cast<int32_t>(position));
        const int32_t page = page_table_[static_cast<size_t>(piece.seq * max_pages_ + position / page_size_)];
        slots.push_back(static_cast<int32_t>(page * page_size_ + position % page_size_));
        seqs.push_back(piece.seq);
      }
    }
    if (capture) capture->positions = positions, capture->seqs = seqs;
    const auto vocab = static_cast<size_t>(glm_.config().vocab_size);
    std::vector<float> logits(logit_rows.size() * vocab);
    hidden_.resize(tokens.size() * static_cast<size_t>(glm_.config().hidden_size));
    model::ForwardBatch batch;
    batch.token_ids = tokens;
    batch.positions = positions;
    batch.slots = slots;
    batch.seq_of_token = seqs;
    batch.page_table = page_table_;
    batch.max_pages = max_pages_;
    batch.logit_rows = logit_rows;
    must(glm_.forward(stream_, batch, *cache_, {logits, hidden_}, glm_.device() ? nullptr : capture));
    std::vector<std::vector<float>> rows;
    for (size_t r = 0; r < logit_rows.size(); ++r) rows.emplace_back(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
    return rows;
  }

  // (rows, hidden_size) of the last step, after the final norm.
  const std::vector<float>& hidden() const { return hidden_; }

  struct MtpRows {
    int32_t seq = 0;
    int64_t first_position = 0;
    std::span<const int32_t> next_tokens;
    std::span<const float> hidden;  // (rows, hidden_size)
    std::span<const int32_t> list;  // for a single row; empty: the layer's own
  };
  struct MtpRow {
    std::vector<float> logits, hidden;
    std::vector<int32_t> list;
  };
  // Runs the MTP layer over rows of one sequence; what came out of the last one.
  MtpRow mtp(const MtpRows& rows, Capture* capture = nullptr) {
    const auto count = static_cast<int64_t>(rows.next_tokens.size());
    std::vector<int32_t> positions, slots, seqs(static_cast<size_t>(count), rows.seq), logit_rows{static_cast<int32_t>(count - 1)};
    for (int64_t position = rows.first_position; position < rows.first_position + count; ++position) {
      const int32_t page = page_table_[static_cast<size_t>(rows.seq * max_pages_ + position / page_size_)];
      positions.push_back(static_cast<int32_t>(position));
      slots.push_back(static_cast<int32_t>(page * page_size_ + position % page_size_));
    }
    if (capture) capture->positions = positions, capture->seqs = seqs;
    MtpRow out;
    out.logits.resize(static_cast<size_t>(glm_.config().vocab_size));
    out.hidden.resize(static_cast<size_t>(glm_.config().hidden_size));
    out.list.resize(static_cast<size_t>(glm_.config().index_topk));
    model::MtpBatch batch;
    batch.rows = {rows.next_tokens, positions, slots, seqs, page_table_, max_pages_, logit_rows};
    batch.hidden = rows.hidden;
    batch.lists = rows.list;
    batch.list_width = static_cast<int64_t>(rows.list.size());
    const bool own_list = rows.list.empty();
    must(glm_.forward_mtp(stream_, batch, *cache_, {out.logits, out.hidden, own_list ? std::span<int32_t>(out.list) : std::span<int32_t>()},
                          glm_.device() ? nullptr : capture));
    return out;
  }

  // Feeds `tokens` to sequence `seq` in chunks and returns the logits of the last `num_logits` positions.
  std::vector<std::vector<float>> prefill(std::span<const int32_t> tokens, size_t chunk, int64_t num_logits, Capture* capture = nullptr,
                                          int32_t seq = 0) {
    std::vector<std::vector<float>> all;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const size_t count = std::min(chunk, tokens.size() - at);
      // Only rows among the last num_logits of the whole prompt are asked for.
      const auto wanted = static_cast<int64_t>(at + count) - (static_cast<int64_t>(tokens.size()) - num_logits);
      auto rows = step({{seq, tokens.subspan(at, count)}}, std::clamp<int64_t>(wanted, 0, static_cast<int64_t>(count)), capture);
      for (auto& row : rows) all.push_back(std::move(row));
    }
    return all;
  }

 private:
  static void must(const Result<>& result) { INGOT_CHECK(result.has_value(), "{}", result.error().text()); }

  model::Glm& glm_;
  ThreadPool pool_;
  gpu::Stream stream_;
  int64_t max_pages_, page_size_;
  std::vector<int64_t> lengths_;
  std::vector<float> hidden_;
  std::unique_ptr<model::KvCache> cache_;
  std::vector<int32_t> page_table_;
};

// max |a - b| / max |b|
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  INGOT_CHECK(a.size() == b.size(), "{} and {} numbers", a.size(), b.size());
  double diff = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= diff)) diff = d;  // NaN sticks
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return diff / scale;
}

inline int32_t argmax(std::span<const float> v) { return static_cast<int32_t>(std::max_element(v.begin(), v.end()) - v.begin()); }

}  // namespace ingot::test_support
