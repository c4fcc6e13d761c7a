// Verification: which drafts hold, and the token after them. Used by every runner, so that all of them accept by the same rules. Owns
// scratch memory: one object a thread.
//
// The rules (lossless: the tokens have the distribution that they have without drafts):
//   the same draw   the token is drawn as without drafts (exec/sampler.h: pure in logits, parameters and counter); a draft holds when it is
//                   that token. With drafts that are not random this is the rejection rule "accept d with probability p(d), else draw from
//                   p without d": what is drawn on a miss is p given that it is not d. And it gives the very tokens of a run without
//                   drafts, greedy or seeded. The default.
//   rejection       for drafts drawn from a known distribution q: accept d when u * q(d) < p(d), else draw from max(p - q, 0), renormalised
//                   (Leviathan et al. 2023, arXiv 2211.17192). Accepts more often when temperatures are high, but the tokens depend on
//                   whether there were drafts: so never for greedy requests, nor for those whose client gave a seed. The drafts, the tests
//                   and the draws after a miss each have a stream of random numbers of their own, all of them pure in (seed, counter).
//
// Before the filters of the sampler come, in this order and at every position, with the tokens accepted before it counted in:
//   repetition_penalty   tokens of prompt or completion: a logit above 0 is divided by it, another multiplied (Keskar et al. 2019, arXiv
//                        1909.05858; Hugging Face's RepetitionPenaltyLogitsProcessor, where the sign decides too)
//   frequency_penalty, presence_penalty   of the completion alone, as OpenAI defines them
//   logit_bias
//   the constraint       a token that it forbids cannot come back
// vLLM has the penalties in this order but adds logit_bias before them (v1/sample/sampler.py); sglang adds it after them, as here
// (srt/sampling/sampling_batch_info.py). The order shows only with a repetition penalty: the bias asked for is then the bias had.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/draft_source.h"
#include "exec/sampler.h"
#include "kernels/params.h"

namespace ingot::exec {

struct VerifyOptions {
  bool rejection_sampling = false;  // use the rejection rule where it is allowed
  // For benchmarks: not 0: ignore what the model says and accept so many tokens a step in the mean, the last one included, of those
  // drafted; at least 1. Which step gets one more than another depends on the length of the completion alone. The output is meaningless.
  // Items with a constraint are verified as ever: forced tokens would break it.
  double forced_acceptance = 0;
};

class Verifier {
 public:
  // The logits (vocab_size) that follow draft `row - 1`, or with row 0 the last known token. Asked in the order in which drafts hold, each
  // once; valid until the next call.
  using LogitRows = std::function<std::span<const float>(size_t row)>;

  // What a GPU drew from the row of the same number, with no draft thrown yet.
  struct DrawnRow {
    const kernels::SampledRow* row = nullptr;
    std::span<const kernels::LikelyToken> top;  // at least as many as the item's top_logprobs
  };
  using DrawnRows = std::function<DrawnRow(size_t row)>;
  // Of a row that wanted logprobs: those of the token and of all of drawn.top.
  static sched::TokenLogprob logprob_of(const DrawnRow& drawn);

  explicit Verifier(const VerifyOptions& options = {});

  // Whether drafts for this item are to be drawn from the source's own distribution, which then belongs into Draft::probabilities.
  bool draws_drafts(const sched::BatchItem& item) const;

  // A draft source's next token: from `logits` (vocab_size), its own, as token number item.num_generated + draft.size() of the completion.
  // The likeliest one, or, when draws_drafts(item), one drawn under the item's sampling parameters, whose distribution is added to
  // draft.probabilities. Penalties and logit_bias apply, as they will in verify(); the constraint does not. `draft` is a chain.
  // A row that is not finite ends the chain: false, and nothing is added.
  bool extend(const sched::BatchItem& item, std::span<const float> logits, Draft& draft);

  // Draws item's tokens: those drafts that hold, from the root on, and the one after them; a stop token id ends them early. Penalties,
  // logit_bias and item.constraint apply at every position. logprobs are those of the model's own logits. item.sample must be set.
  // A constraint (or a bias) that leaves no token ends this request alone: SampledTokens::error says so.
  // Errors: logits that are no numbers, naming request, position and token id.
  Result<sched::SampledTokens> verify(const sched::BatchItem& item, const Draft& draft, const LogitRows& logits);

  // The same when a GPU draws, under what describe() told it, the token of each row as if all drafts before it held: by the rule of the
  // same draw alone, and for items without a constraint. Forced drafts have the logprobs of what they replaced.
  Result<sched::SampledTokens> accept(const sched::BatchItem& item, const Draft& draft, size_t vocab_size, const DrawnRows& rows);

  // How a GPU is to draw token number item.num_generated + depth, after `depth` drafts; and, with its changes, a draft that comes there.
  kernels::DrawRow describe(const sched::BatchItem& item, int32_t depth) const;
  // What penalties and logit_bias change for item, before any draft.
  void add_changes(const sched::BatchItem& item, size_t vocab_size, std::vector<kernels::LogitChange>& to);

 private:
  // A token that a penalty is for.
  struct Seen {
    int32_t token_id = 0;
    int32_t count = 0;  // in the completion; 0: only the prompt has it
  };
  struct Row {
    std::span<const float> logits;
    float max = 0;
  };
  // The token drawn at a position, and the draft that is this token and goes on from here: -1 when there is none.
  struct Step {
    int32_t token_id = -1;
    int32_t draft = -1;
  };

  // Drafts from the root on that hold whatever is drawn.
  int64_t num_forced(const sched::BatchItem& item) const;
  // Appends the token of a step. Whether the next one is wanted.
  static bool append(const sched::BatchItem& item, const Step& step, sched::SampledTokens& to);
  // Fills seen_ for an item.
  void see_context(const sched::BatchItem& item, size_t vocab_size);
  void see(int32_t token_id, int32_t count);
  // `logits` themselves, or, when the item wants them changed, adjusted_ with the penalties and logit_bias.
  std::span<const float> adjust(const sched::BatchItem& item, std::span<const float> logits);
  // What the token of one position is drawn from; `raw` is the model's own row. Errors: as verify(), less request and position.
  Result<Row> restricted_row(const sched::BatchItem& item, const Row& raw);
  // The rejection rule for draft `next` of a chain, at token number `counter` of the completion.
  Step accept_or_redraw(const sched::BatchItem& item, const Draft& draft, int32_t next, const Row& row, uint64_t counter);

  VerifyOptions options_;
  Sampler sampler_;
  std::vector<float> adjusted_;        // (vocab_size)
  std::vector<Seen> seen_;             // the tokens that the penalties of the item at hand are for; empty when it has none
  std::vector<int32_t> seen_at_;       // (vocab_size): where a token is in seen_; -1: nowhere
  std::vector<double> probabilities_;  // (vocab_size)
};

}  // namespace ingot::exec
