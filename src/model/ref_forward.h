// The forward pass once more, in double, with plain loops over whole sequences and no cache: what the model means. Tests only.
// Written from the same specification (sections 3.1 to 3.6) as forward.cc, in the expanded form, sharing no code with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "spec/model_config.h"

namespace ingot::model::ref {

using Vec = std::vector<double>;
using Rows = std::vector<Vec>;

class Reference {
 public:
  // `values`: every parameter by its checkpoint name, dequantised.
  Reference(const spec::ModelConfig& config, const std::map<std::string, std::vector<float>>& values) : c_(config), values_(values) {}

  // Logits of every position. lists()[layer][t] afterwards: the positions chosen for t, ascending, on full layers.
  Rows run(std::span<const int32_t> tokens) {
    const auto& embed = get("model.embed_tokens.weight");
    Rows h;
    for (const int32_t id : tokens) {
      const auto row = embed.begin() + id * c_.hidden_size;
      h.emplace_back(row, row + c_.hidden_size);
    }
    std::vector<std::vector<int32_t>> chosen;
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const std::string base = "model.layers." + std::to_string(i) + ".";
      Rows x = normed(h, base + "input_layernorm.weight");
      Rows attended = attention(base + "self_attn.", x, c_.has_indexer(i), chosen);
      if (c_.has_indexer(i)) lists_[i] = chosen;
      for (size_t t = 0; t < h.size(); ++t) add(h[t], attended[t]);
      x = normed(h, base + "post_attention_layernorm.weight");
      for (size_t t = 0; t < h.size(); ++t) add(h[t], c_.is_moe(i) ? moe(base + "mlp.", x[t]) : mlp(base + "mlp.", x[t]));
    }
    hidden_ = normed(h, "model.norm.weight");
    Rows logits;
    for (const Vec& row : hidden_) logits.push_back(times("lm_head", row));
    return logits;
  }
  // Of the last run, after the final norm.
  const Rows& hidden() const { return hidden_; }

  struct Drafts {
    std::vector<int32_t> tokens;
    Rows logits;
    std::vector<int32_t> list;  // the positions that the first draft's row chose
  };
  // Section 4.1 to 4.3: greedy drafts for the tokens of the last run followed by `next`. `share`: the drafted rows attend to what the first
  // draft's row chose and to each other; else each chooses anew.
  Drafts draft(std::span<const int32_t> tokens, int32_t next, int64_t count, bool share) {
    const int64_t layer = c_.num_hidden_layers;
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    const auto own = [&](const std::string& name, const std::string& main) { return values_.contains(base + name) ? base + name : main; };
    const auto& embed = get(own("embed_tokens.weight", "model.embed_tokens.weight"));
    std::string head = own("shared_head.head.weight", "lm_head.weight");
    head.resize(head.size() - 7);
    std::vector<int32_t> following(tokens.begin() + 1, tokens.end());
    following.push_back(next);
    Rows state = hidden_;
    Drafts out;
    for (int64_t step = 0; step < count; ++step) {
      Rows h;
      for (size_t t = 0; t < following.size(); ++t) {
        const auto row = embed.begin() + following[t] * c_.hidden_size;
        Vec pair = rms(Vec(row, row + c_.hidden_size), base + "enorm.weight");
        const Vec second = rms(state[t], base + "hnorm.weight");
        pair.insert(pair.end(), second.begin(), second.end());
        h.push_back(times(base + "eh_proj", pair));
      }
      std::vector<std::vector<int32_t>> chosen;
      const Rows attended = attention(base + "self_attn.", normed(h, base + "input_layernorm.weight"), true, chosen,
                                      share ? static_cast<int64_t>(tokens.size()) : -1);
      for (size_t t = 0; t < h.size(); ++t) add(h[t], attended[t]);
      const Rows x = normed(h, base + "post_attention_layernorm.weight");
      for (size_t t = 0; t < h.size(); ++t) add(h[t], moe(base + "mlp.", x[t]));
      const Vec g = rms(h.back(), base + "shared_head.norm.weight");
      if (step == 0) out.list = chosen.back();
      out.logits.push_back(times(head, g));
      out.tokens.push_back(
          static_cast<int32_t>(std::max_element(out.logits.back().begin(), out.logits.back().end()) - out.logits.back().begin()));
      state.push_back(g);
      following.push_back(out.tokens.back());
    }
    return out;
  }
  const std::map<int64_t, std::vector<std::vector<int32_t>>>& lists() const { return lists_; }

 private:
  const std::vector<float>& get(const std::string& name) const {
    const auto it = values_.find(name);
    INGOT_CHECK(it != values_.end(), "the reference has no {}", name);
    return it->second;
  }
  Vec times(const std::string& module, const Vec& x) const {
    const auto& w = get(module + ".weight");
    Vec y(w.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
    return y;
  }
  static void add(Vec& a, const Vec& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  }
  Vec rms(const Vec& x, const std::string& weight) const {
    const auto& w = get(weight);
    double sum = 0;
    for (const double v : x) sum += v * v;
    Vec y(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= w[i] / std::sqrt(sum / static_cast<double>(x.size()) + c_.rms_norm_eps);
    return y;
  }
  Rows normed(const Rows& x, const std::string& weight) const {
    Rows y;
    for (const Vec& row : x) y.push_back(rms(row, weight));
    return y;
  }
  void rotate(Vec& x, int64_t offset, int64_t position, bool interleave) const {
    const int64_t half = c_.qk_rope_head_dim / 2;
    for (int64_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(position) * std::pow(c_.rope_theta, -static_cast<double>(j) / static_cast<double>(half));
      double& a = x[static_cast<size_t>(offset + (interleave ? 2 * j : j))];
      double& b = x[static_cast<size_t>(offset + (interleave ? 2 * j + 1 : j + half))];
      const double a0 = a, b0 = b;
      a = a0 * std::cos(angle) - b0 * std::sin(angle);
      b = a0 * std::sin(angle) + b0 * std::cos(angle);
    }
  }
  static Vec part(const Vec& x, int64_t begin, int64_t count) { return Vec(x.begin() + begin, x.begin() + begin + count); }
  static double dot(const Vec& a, const Vec& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

  // Rows from `shared_from` on (not -1) take the list of the row before it and the positions since, not their own.
  Rows attention(const std::string& base, const Rows& x, bool full, std::vector<std::vector<int32_t>>& chosen,
                 int64_t shared_from = -1) const {
    const int64_t nope = c_.qk_nope_head_dim, rope = c_.qk_rope_head_dim, v_dim = c_.v_head_dim, head_rows = nope + v_dim;
    Rows q_latent, q, k_pe, expanded;
    for (size_t t = 0; t < x.size(); ++t) {
      const auto position = static_cast<int64_t>(t);
      q_latent.push_back(rms(times(base + "q_a_proj", x[t]), base + "q_a_layernorm.weight"));
      q.push_back(times(base + "q_b_proj", q_latent[t]));
      for (int64_t h = 0; h < c_.num_attention_heads; ++h) rotate(q[t], h * (nope + rope) + nope, position, c_.rope_interleave);
      const Vec kv = times(base + "kv_a_proj_with_mqa", x[t]);
      k_pe.push_back(part(kv, c_.kv_lora_rank, rope));
      rotate(k_pe[t], 0, position, c_.rope_interleave);
      expanded.push_back(times(base + "kv_b_proj", rms(part(kv, 0, c_.kv_lora_rank), base + "kv_a_layernorm.weight")));
    }
    if (full) chosen = choose(base + "indexer.", x, q_latent);
    for (size_t t = static_cast<size_t>(shared_from); shared_from >= 0 && t < x.size(); ++t) {
      chosen[t] = chosen[t - 1];
      chosen[t].push_back(static_cast<int32_t>(t));
    }
    Rows out;
    for (size_t t = 0; t < x.size(); ++t) {
      Vec heads;
      for (int64_t h = 0; h < c_.num_attention_heads; ++h) {
        const Vec q_nope = part(q[t], h * (nope + rope), nope), q_pe = part(q[t], h * (nope + rope) + nope, rope);
        Vec weight;
        double sum = 0;
        for (const int32_t s : chosen[t]) {
          const auto& keys = expanded[static_cast<size_t>(s)];
          const double score = dot(q_nope, part(keys, h * head_rows, nope)) + dot(q_pe, k_pe[static_cast<size_t>(s)]);
          weight.push_back(std::exp(score / std::sqrt(static_cast<double>(nope + rope))));
          sum += weight.back();
        }
        Vec value(static_cast<size_t>(v_dim));
        for (size_t i = 0; i < weight.size(); ++i) {
          const Vec v = part(expanded[static_cast<size_t>(chosen[t][i])], h * head_rows + nope, v_dim);
          for (size_t d = 0; d < value.size(); ++d) value[d] += weight[i] / sum * v[d];
        }
        heads.insert(heads.end(), value.begin(), value.end());
      }
      out.push_back(times(base + "o_proj", heads));
    }
    return out;
  }

  std::vector<std::vector<int32_t>> choose(const std::string& base, const Rows& x, const Rows& q_latent) const {
    const int64_t dim = c_.index_head_dim;
    Rows keys;
    std::vector<std::vector<int32_t>> lists;
    const auto& norm_weight = get(base + "k_norm.weight");
    const auto& norm_bias = get(base + "k_norm.bias");
    for (size_t t = 0; t < x.size(); ++t) {
      const auto position = static_cast<int64_t>(t);
      Vec key = times(base + "wk", x[t]);
      const double mean = std::accumulate(key.begin(), key.end(), 0.0) / static_cast<double>(dim);
      double variance = 0;
      for (const double v : key) variance += (v - mean) * (v - mean) / static_cast<double>(dim);
      for (size_t i = 0; i < key.size(); ++i) key[i] = (key[i] - mean) / std::sqrt(variance + 1e-6) * norm_weight[i] + norm_bias[i];
      rotate(key, 0, position, c_.indexer_rope_interleave);
      keys.push_back(key);

      Vec q = times(base + "wq_b", q_latent[t]);
      const Vec weights = times(base + "weights_proj", x[t]);
      Vec score(t + 1);
      for (int64_t h = 0; h < c_.index_n_heads; ++h) {
        Vec head = part(q, h * dim, dim);
        rotate(head, 0, position, c_.indexer_rope_interleave);
        for (size_t s = 0; s <= t; ++s) score[s] += weights[static_cast<size_t>(h)] * std::max(0.0, dot(head, keys[s]));
      }
      std::vector<int32_t> order(t + 1);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]; });
      order.resize(std::min(order.size(), static_cast<size_t>(c_.index_topk)));
      std::sort(order.begin(), order.end());
      lists.push_back(order);
    }
    return lists;
  }

  Vec mlp(const std::string& base, const Vec& x) const {
    Vec gate = times(base + "gate_proj", x);
    const Vec up = times(base + "up_proj", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return times(base + "down_proj", gate);
  }
  Vec moe(const std::string& base, const Vec& x) const {
    Vec score = times(base + "gate", x);
    for (double& s : score) s = 1 / (1 + std::exp(-s));
    const auto& bias = get(base + "gate.e_score_correction_bias");
    std::vector<size_t> order(score.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score[a] + bias[a] > score[b] + bias[b]; });
    order.resize(static_cast<size_t>(c_.num_experts_per_tok));
    double sum = 0;
    for (const size_t e : order) sum += score[e];
    Vec y(x.size());
    for (const size_t e : order) {
      const Vec out = mlp(base + "experts." + std::to_string(e) + ".", x);
      const double weight = (c_.norm_topk_prob ? score[e] / (sum + 1e-20) : score[e]) * c_.routed_scaling_factor;
      for (size_t i = 0; i < y.size(); ++i) y[i] += weight * out[i];
    }
    if (c_.n_shared_experts > 0) add(y, mlp(base + "shared_experts.", x));
    return y;
  }

  const spec::ModelConfig& c_;
  const std::map<std::string, std::vector<float>>& values_;
  std::map<int64_t, std::vector<std::vector<int32_t>>> lists_;
  Rows hidden_;
};

}  // namespace ingot::model::ref
