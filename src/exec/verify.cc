#include "exec/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace ingot::exec {
namespace {

using sched::BatchItem;
using sched::SamplingParams;

// Streams of random numbers beside that of the plain draws, which is the seed itself. Counters that no token has.
constexpr uint64_t kDraftStream = ~uint64_t{1};
constexpr uint64_t kAcceptStream = ~uint64_t{2};
constexpr uint64_t kRedrawStream = ~uint64_t{3};

double uniform_of(const SamplingParams& params, uint64_t stream, uint64_t counter) {
  return random_uniform(random_bits(params.seed, stream), counter);
}

bool has_penalty(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
}

// Large penalties must not make an infinity of a logit; -inf, a token that cannot be drawn, stays.
float to_logit(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::isinf(value) ? value : std::clamp(value, -kMax, kMax));
}

// The draft that follows draft `node` (-1: the root) and is `token_id`; -1: there is none.
int32_t find_child(const Draft& draft, int32_t node, int32_t token_id) {
  for (auto i = static_cast<size_t>(node + 1); i < draft.token_ids.size(); ++i) {
    if (draft.parents[i] == node && draft.token_ids[i] == token_id) return static_cast<int32_t>(i);
  }
  return -1;
}

int32_t first_child(const Draft& draft, int32_t node) {
  for (auto i = static_cast<size_t>(node + 1); i < draft.parents.size(); ++i) {
    if (draft.parents[i] == node) return static_cast<int32_t>(i);
  }
  return -1;
}

// The tokens of a step when steps are to have `mean` in the mean. Steps end where the completion is 1 + floor(s * mean) tokens long, s any
// whole number: so the running mean is never off by more than a token. A completion that got off these marks, since less was drafted,
// finds back in steps of floor(mean) or ceil(mean).
int64_t forced_tokens(double mean, int64_t num_generated) {
  const int64_t least = num_generated + static_cast<int64_t>(mean);
  auto step = static_cast<int64_t>(std::ceil(static_cast<double>(least - 1) / mean));
  const auto end = [&] { return 1 + static_cast<int64_t>(static_cast<double>(step) * mean); };
  while (end() < least) ++step;  // when the division was rounded
  return std::min(end() - num_generated, static_cast<int64_t>(std::ceil(mean)));
}

// An error of a row, with the request and the position that it is of.
tl::unexpected<Error> name(const BatchItem& item, int64_t depth, const Error& error) {
  return fail("request {}, position {}: {}", item.request, static_cast<int64_t>(item.context.size()) + depth, error.text());
}

}  // namespace

Verifier::Verifier(const VerifyOptions& options) : options_(options) {
  INGOT_CHECK(options.forced_acceptance == 0 || options.forced_acceptance >= 1);
}

bool Verifier::draws_drafts(const BatchItem& item) const {
  const SamplingParams& params = *item.sampling;
  return options_.rejection_sampling && !params.has_client_seed && !Sampler::is_greedy(params);
}

bool Verifier::extend(const BatchItem& item, std::span<const float> logits, Draft& draft) {
  const SamplingParams& params = *item.sampling;
  see_context(item, logits.size());
  if (has_penalty(params)) {
    for (const int32_t token_id : draft.token_ids) see(token_id, 1);
  }
  const std::span<const float> row = adjust(item, logits);
  const Result<float> max = Sampler::max_logit(row);
  if (!max) return false;
  if (!draws_drafts(item)) {
    draft.append_to_chain(Sampler::likeliest(row, *max));
    return true;
  }
  const uint64_t counter = static_cast<uint64_t>(item.num_generated) + draft.token_ids.size();
  const size_t begin = draft.probabilities.size();
  INGOT_CHECK(begin == draft.token_ids.size() * row.size(), "drafts that were drawn must come with their distributions");
  draft.probabilities.resize(begin + row.size());
  sampler_.distribution(row, *max, params, std::span(draft.probabilities).subspan(begin));
  draft.append_to_chain(sampler_.draw(row, *max, params, uniform_of(params, kDraftStream, counter)));
  return true;
}

Result<sched::SampledTokens> Verifier::verify(const BatchItem& item, const Draft& draft, const LogitRows& logits) {
  INGOT_CHECK(item.sample && item.sampling != nullptr);
  INGOT_CHECK(draft.size() <= item.num_draft && draft.parents.size() == draft.token_ids.size());
  const SamplingParams& params = *item.sampling;
  const bool rejects = !draft.probabilities.empty() && draws_drafts(item);
  const int64_t forced = num_forced(item);
  sched::SampledTokens sampled;
  sampled.request = item.request;
  sampled.num_drafted = draft.size();
  int32_t node = -1;  // the draft that held last
  for (int64_t depth = 0;; ++depth) {
    Row raw{.logits = logits(static_cast<size_t>(node + 1))};
    if (depth == 0) see_context(item, raw.logits.size());
    const Result<float> max = Sampler::max_logit(raw.logits);
    if (!max) return name(item, depth, max.error());
    raw.max = *max;
    const Result<Row> row = restricted_row(item, raw);
    if (!row) {
      sampled.error = name(item, depth, row.error()).value().message;
      return sampled;
    }
    const auto counter = static_cast<uint64_t>(item.num_generated + depth);
    const int32_t next = first_child(draft, node);
    Step step;
    if (depth < forced && next >= 0) {
      step = {.token_id = draft.token_ids[static_cast<size_t>(next)], .draft = next};
    } else if (rejects && next >= 0) {
      step = accept_or_redraw(item, draft, next, *row, counter);
    } else {
      step.token_id = sampler_.draw(row->logits, row->max, params, random_uniform(params.seed, counter));
      // When drafts are to be forced, one too many must not hold by chance.
      if (forced == 0) step.draft = find_child(draft, node, step.token_id);
    }
    if (params.top_logprobs >= 0) sampled.logprobs.push_back(sampler_.logprob(raw.logits, raw.max, step.token_id, params.top_logprobs));
    if (!append(item, step, sampled)) return sampled;
    if (has_penalty(params)) see(step.token_id, 1);
    node = step.draft;
  }
}

Result<sched::SampledTokens> Verifier::accept(const BatchItem& item, const Draft& draft, size_t vocab_size, const DrawnRows& rows) {
  INGOT_CHECK(item.sample && item.sampling != nullptr && item.constraint == nullptr && draft.probabilities.empty());
  const int32_t num_top = item.sampling->top_logprobs;
  const int64_t forced = num_forced(item);
  sched::SampledTokens sampled;
  sampled.request = item.request;
  sampled.num_drafted = draft.size();
  int32_t node = -1;
  for (int64_t depth = 0;; ++depth) {
    const DrawnRow drawn = rows(static_cast<size_t>(node + 1));
    const auto refused = [&](const kernels::RowVerdict& verdict) {
      return name(item, depth, Sampler::refusal(verdict.bad_id, verdict.bad_logit, vocab_size).value());
    };
    if (drawn.row->raw.likeliest < 0) return refused(drawn.row->raw);
    if (drawn.row->token_id < 0) {
      sampled.error = refused(drawn.row->adjusted).value().message;
      return sampled;
    }
    const int32_t next = first_child(draft, node);
    Step step{.token_id = drawn.row->token_id};
    if (depth < forced && next >= 0)
      step = {.token_id = draft.token_ids[static_cast<size_t>(next)], .draft = next};
    else if (forced == 0)
      step.draft = find_child(draft, node, step.token_id);
    if (num_top >= 0) {
      sampled.logprobs.push_back(logprob_of({drawn.row, drawn.top.first(std::min(static_cast<size_t>(num_top), vocab_size))}));
    }
    if (!append(item, step, sampled)) return sampled;
    node = step.draft;
  }
}

sched::TokenLogprob Verifier::logprob_of(const DrawnRow& drawn) {
  const double log_total = std::log(drawn.row->total) + drawn.row->max;
  sched::TokenLogprob logprob;
  logprob.logprob = static_cast<float>(drawn.row->logit - log_total);
  for (const kernels::LikelyToken& likely : drawn.top)
    logprob.top.emplace_back(likely.token_id, static_cast<float>(likely.logit - log_total));
  return logprob;
}

int64_t Verifier::num_forced(const BatchItem& item) const {
  if (options_.forced_acceptance == 0 || item.constraint != nullptr) return 0;
  return forced_tokens(options_.forced_acceptance, item.num_generated) - 1;
}

bool Verifier::append(const BatchItem& item, const Step& step, sched::SampledTokens& to) {
  to.token_ids.push_back(step.token_id);
  if (item.constraint != nullptr) item.constraint->on_token(step.token_id);
  // Behind a stop token nothing is wanted, and a constraint has nothing to say.
  const std::vector<int32_t>& stops = item.sampling->stop_token_ids;
  return step.draft >= 0 && std::find(stops.begin(), stops.end(), step.token_id) == stops.end();
}

kernels::DrawRow Verifier::describe(const BatchItem& item, int32_t depth) const {
  const SamplingParams& params = *item.sampling;
  kernels::DrawRow row;
  row.kind = Sampler::is_greedy(params) ? kernels::DrawKind::greedy : kernels::DrawKind::draw;
  row.uniform = random_uniform(params.seed, static_cast<uint64_t>(item.num_generated + depth));
  row.temperature = params.temperature;
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.top_k = params.top_k;
  row.repetition_penalty = params.repetition_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.presence_penalty = params.presence_penalty;
  row.num_top = params.top_logprobs;
  row.num_drafted = has_penalty(params) ? depth : 0;
  return row;
}

void Verifier::add_changes(const BatchItem& item, size_t vocab_size, std::vector<kernels::LogitChange>& to) {
  see_context(item, vocab_size);
  const size_t first = to.size();
  for (const Seen& seen : seen_) to.push_back({seen.token_id, seen.count, 0.0f});
  for (const auto& [token_id, bias] : item.sampling->logit_bias) {
    const int32_t at = seen_.empty() ? -1 : seen_at_.at(static_cast<size_t>(token_id));
    if (at >= 0)
      to[first + static_cast<size_t>(at)].bias = bias;
    else
      to.push_back({token_id, -1, bias});
  }
}

Verifier::Step Verifier::accept_or_redraw(const BatchItem& item, const Draft& draft, int32_t next, const Row& row, uint64_t counter) {
  const SamplingParams& params = *item.sampling;
  const size_t vocab_size = row.logits.size();
  const auto index = static_cast<size_t>(next);
  INGOT_CHECK(draft.probabilities.size() == draft.token_ids.size() * vocab_size && draft.parents[index] == next - 1,
              "drafts with distributions are a chain");
  probabilities_.resize(vocab_size);
  sampler_.distribution(row.logits, row.max, params, probabilities_);
  const std::span<const double> drafted = std::span(draft.probabilities).subspan(index * vocab_size, vocab_size);
  const auto token = static_cast<size_t>(draft.token_ids[index]);
  INGOT_CHECK(drafted[token] > 0, "a draft cannot have been drawn from a distribution that lacks it");
  if (uniform_of(params, kAcceptStream, counter) * drafted[token] < probabilities_[token])
    return {.token_id = draft.token_ids[index], .draft = next};
  double total = 0;
  for (size_t i = 0; i < vocab_size; ++i) {
    probabilities_[i] = std::max(probabilities_[i] - drafted[i], 0.0);
    total += probabilities_[i];
  }
  const double uniform = uniform_of(params, kRedrawStream, counter);
  const double target = uniform * total;
  double sum = 0;
  int32_t last = -1;
  for (size_t i = 0; i < vocab_size; ++i) {
    if (probabilities_[i] <= 0) continue;
    last = static_cast<int32_t>(i);
    sum += probabilities_[i];
    if (sum > target) break;
  }
  // Nothing is left when the two distributions are equal up to rounding: then a draw from either is right.
  return {.token_id = last >= 0 ? last : sampler_.draw(row.logits, row.max, params, uniform), .draft = -1};
}

void Verifier::see_context(const BatchItem& item, size_t vocab_size) {
  for (const Seen& seen : seen_) seen_at_[static_cast<size_t>(seen.token_id)] = -1;
  seen_.clear();
  if (!has_penalty(*item.sampling)) return;
  seen_at_.resize(vocab_size, -1);
  INGOT_CHECK(item.num_generated >= 0 && static_cast<size_t>(item.num_generated) <= item.context.size());
  const size_t prompt_len = item.context.size() - static_cast<size_t>(item.num_generated);
  if (item.sampling->repetition_penalty != 1.0f) {
    for (const int32_t token_id : item.context.first(prompt_len)) see(token_id, 0);
  }
  for (const int32_t token_id : item.context.subspan(prompt_len)) see(token_id, 1);
}

void Verifier::see(int32_t token_id, int32_t count) {
  int32_t& at = seen_at_.at(static_cast<size_t>(token_id));
  if (at < 0) {
    at = static_cast<int32_t>(seen_.size());
    seen_.push_back({.token_id = token_id, .count = 0});
  }
  seen_[static_cast<size_t>(at)].count += count;
}

std::span<const float> Verifier::adjust(const BatchItem& item, std::span<const float> logits) {
  const SamplingParams& params = *item.sampling;
  if (seen_.empty() && params.logit_bias.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const Seen& seen : seen_) {
    float& logit = adjusted_[static_cast<size_t>(seen.token_id)];
    double value = logit;
    const double repetition = params.repetition_penalty;
    value = value > 0 ? value / repetition : value * repetition;
    value -= static_cast<double>(params.frequency_penalty) * seen.count;
    if (seen.count > 0) value -= params.presence_penalty;
    logit = to_logit(value);
  }
  for (const auto& [token_id, bias] : params.logit_bias) {
    float& logit = adjusted_.at(static_cast<size_t>(token_id));
    logit = to_logit(static_cast<double>(logit) + bias);
  }
  return adjusted_;
}

Result<Verifier::Row> Verifier::restricted_row(const BatchItem& item, const Row& raw) {
  Row row{.logits = adjust(item, raw.logits)};
  if (item.constraint != nullptr) {
    if (row.logits.data() == raw.logits.data()) adjusted_.assign(raw.logits.begin(), raw.logits.end());
    item.constraint->restrict(adjusted_);
    row.logits = adjusted_;
  } else if (row.logits.data() == raw.logits.data()) {
    return raw;
  }
  const Result<float> max = Sampler::max_logit(row.logits);
  if (!max) {
    if (item.constraint != nullptr) return fail("its constraint leaves no token to draw: {}", max.error().text());
    return forward_error(max.error());
  }
  row.max = *max;
  return row;
}

}  // namespace ingot::exec
