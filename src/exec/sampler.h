// The die: from one row of logits to one token. Pure in (logits, params, counter): neighbours in the batch, preemption and the number of
// draws others made cannot be seen. Owns scratch memory, so one object a thread. Called by the runners.
//
// Order of the filters: temperature, top_k, top_p over what top_k left (renormalised), min_p relative to the likeliest token. That is
// sglang's order (srt/layers/sampler.py: probabilities with temperature, then top_k and top_p renormalisation, then min_p); vLLM puts
// min_p before top_k and top_p. Equal logits are ordered by id, the smaller first. Weights and sums are doubles.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sched/request.h"

namespace ingot::exec {

// Below this temperature a draw is the argmax.
inline constexpr float kGreedyTemperature = 1e-5f;

struct Draw {
  int32_t token_id = -1;
  sched::TokenLogprob logprob;  // filled when params.top_logprobs >= 0
};

class Sampler {
 public:
  // `logits`: (vocab_size). `counter`: the index of the token in the completion. Errors: a NaN or +inf logit, naming the token id, or a row
  // that is -inf throughout. -inf alone is a token that cannot be drawn.
  Result<Draw> sample(std::span<const float> logits, const sched::SamplingParams& params, int64_t counter);

  // The parts of sample(), for verification (exec/verify.h). `max` is what max_logit() gave for these logits.

  // Whether draw() is the likeliest token.
  static bool is_greedy(const sched::SamplingParams& params) { return params.temperature < kGreedyTemperature || params.top_k == 1; }
  // The largest logit. Errors as those of sample().
  static Result<float> max_logit(std::span<const float> logits);
  // What is wrong with a row of vocab_size logits: bad_id is the first that is NaN or +inf; -1: there is none, all are -inf.
  static tl::unexpected<Error> refusal(int64_t bad_id, float bad_logit, size_t vocab_size);
  // The likeliest token, the smaller id of a tie.
  static int32_t likeliest(std::span<const float> logits, float max);
  // The token at `uniform` in [0, 1) of the distribution.
  int32_t draw(std::span<const float> logits, float max, const sched::SamplingParams& params, double uniform);
  // What draw() draws from: probabilities (vocab_size), whose sum is 1. params must not be greedy.
  void distribution(std::span<const float> logits, float max, const sched::SamplingParams& params, std::span<double> probabilities);
  // Of a token and of the num_top likeliest.
  sched::TokenLogprob logprob(std::span<const float> logits, float max, int32_t token_id, int64_t num_top);

 private:
  struct Candidate {
    double weight;  // exp((logit - max) / temperature)
    int32_t id;
  };

  // What the filters leave: all of weights_, or candidates_ in the order of ids; and the sum of their weights.
  struct Kept {
    bool all = false;
    double total = 0;
  };

  Kept filter(std::span<const float> logits, float max, const sched::SamplingParams& params);
  // weights_[i] = exp((logits[i] - max) / temperature); block_sums_ holds their sums. Returns the whole sum.
  double fill_weights(std::span<const float> logits, float max, double temperature);
  // The `count` likeliest ids into top_ids_, unordered.
  void select_top(std::span<const float> logits, int64_t count);
  // Weights of at least `floor` into candidates_, in the order of ids.
  void gather(double floor);
  // Cuts candidates_, which are in the order of ids, to the smallest likeliest set that holds `mass`.
  void cut_to_mass(double mass);

  std::vector<double> weights_;
  std::vector<double> block_sums_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> ranked_;
  std::vector<double> bin_mass_;
  std::vector<int32_t> top_ids_;
};

}  // namespace ingot::exec
