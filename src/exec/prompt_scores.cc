#include "exec/prompt_scores.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/verify.h"

namespace ingot::exec {
namespace {

using sched::BatchItem;
using sched::BatchPlan;
using sched::ScoredTokens;
using sched::TokenLogprob;

constexpr size_t kPiece = model::Glm::kHeadRows;

tl::unexpected<Error> name(const BatchItem& item, int32_t index, const Error& error) {
  return fail("request {}, position {} of its prompt: {}", item.request, item.start + item.first_scored + index + 1, error.text());
}

}  // namespace

Result<TokenLogprob> score(Sampler& sampler, const BatchItem& item, int32_t index, std::span<const float> logits) {
  const Result<float> max = Sampler::max_logit(logits);
  if (!max) return name(item, index, max.error());
  return sampler.logprob(logits, *max, item.scored_token(index), item.sampling->prompt_logprobs);
}

bool PromptScores::start(const BatchPlan& plan, const std::vector<Draft>& drafts) {
  rows_.clear();
  batch_rows_.clear();
  int32_t batch_row = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    for (int32_t index = 0; index < item.num_scored; ++index) {
      rows_.push_back({i, index});
      batch_rows_.push_back(batch_row + item.first_scored + index);
    }
    batch_row += static_cast<int32_t>(item.token_ids.size()) + drafts[i].size();
  }
  return !rows_.empty();
}

template <class Visit>
Result<> PromptScores::each_piece(Visit visit) const {
  for (size_t first = 0; first < rows_.size(); first += kPiece) INGOT_TRY(visit(first, std::min(rows_.size() - first, kPiece)));
  return {};
}

void PromptScores::add(const BatchPlan& plan, const Row& row, TokenLogprob logprob, std::vector<ScoredTokens>& to) {
  if (row.index == 0) to.push_back({plan.items[row.item].request, {}});
  to.back().logprobs.push_back(std::move(logprob));
}

Result<std::vector<ScoredTokens>> PromptScores::run(gpu::Stream& stream, model::Glm& glm, const BatchPlan& plan,
                                                    std::span<const float> hidden) {
  const auto width = static_cast<size_t>(glm.config().hidden_size), vocab_size = static_cast<size_t>(glm.config().vocab_size);
  std::vector<ScoredTokens> scored;
  const Result<> done = each_piece([&](size_t first, size_t count) -> Result<> {
    hidden_.clear();
    for (size_t i = first; i < first + count; ++i) {
      const auto row = hidden.subspan(static_cast<size_t>(batch_rows_[i]) * width, width);
      hidden_.insert(hidden_.end(), row.begin(), row.end());
    }
    logits_.resize(count * vocab_size);
    INGOT_TRY(glm.head(stream, hidden_, logits_));
    for (size_t i = 0; i < count; ++i) {
      const Row& row = rows_[first + i];
      const auto logits = std::span<const float>(logits_).subspan(i * vocab_size, vocab_size);
      INGOT_ASSIGN(auto logprob, score(sampler_, plan.items[row.item], row.index, logits));
      add(plan, row, std::move(logprob), scored);
    }
    return {};
  });
  if (!done) return forward_error(done.error());
  return scored;
}

Result<> PromptScores::queue(gpu::Stream& stream, model::Glm& glm, const BatchPlan& plan) {
  const auto vocab_size = static_cast<int32_t>(glm.config().vocab_size);
  draws_.clear();
  changes_.clear();
  max_top_ = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const BatchItem& item = plan.items[rows_[i].item];
    // The token is given, not drawn: nothing is likelier under this bias, and its own logit is kept from before.
    const auto place = static_cast<int32_t>(i % kPiece);
    kernels::DrawRow& row = draws_.emplace_back();
    row.kind = kernels::DrawKind::greedy;
    row.num_top = std::min(item.sampling->prompt_logprobs, vocab_size);
    row.first_change = row.first_before = place;
    row.num_changes = 1;
    changes_.push_back({item.scored_token(rows_[i].index), -1, std::numeric_limits<float>::max()});
    max_top_ = std::max(max_top_, static_cast<size_t>(row.num_top));
  }
  results_.resize(rows_.size());
  top_.resize(rows_.size() * max_top_);
  return each_piece([&](size_t first, size_t count) {
    model::QueuedHead job;
    job.rows = std::span(batch_rows_).subspan(first, count);
    job.draw.rows = std::span(draws_).subspan(first, count);
    job.draw.changes = std::span(changes_).subspan(first, count);
    job.draw.max_top = static_cast<int64_t>(max_top_);
    job.draw.results = std::span(results_).subspan(first, count);
    job.draw.top = std::span(top_).subspan(first * max_top_, count * max_top_);
    return glm.queue_head(stream, job);
  });
}

Result<std::vector<ScoredTokens>> PromptScores::take(const BatchPlan& plan, int64_t vocab_size) const {
  std::vector<ScoredTokens> scored;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const BatchItem& item = plan.items[rows_[i].item];
    kernels::SampledRow result = results_[i];
    if (result.raw.likeliest < 0) {
      const auto refused = Sampler::refusal(result.raw.bad_id, result.raw.bad_logit, static_cast<size_t>(vocab_size));
      return name(item, rows_[i].index, refused.value());
    }
    // A token of logit -inf, which no bias brings back.
    if (result.token_id != item.scored_token(rows_[i].index)) result.logit = -std::numeric_limits<float>::infinity();
    const auto top = std::span<const kernels::LikelyToken>(top_).subspan(i * max_top_, static_cast<size_t>(draws_[i].num_top));
    add(plan, rows_[i], Verifier::logprob_of({&result, top}), scored);
  }
  return scored;
}

}  // namespace ingot::exec
