#include "apps/bench_model.h"

#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/json.h"
#include "base/rng.h"
#include "model/glm.h"
#include "tensor/checkpoint.h"

namespace ingot::apps {
namespace {

using model::Glm;
using model::KvCache;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Stat {
  double median = 0, min = 0, max = 0;
};
Stat stat_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 2], v.front(), v.back()};
}

// Resident memory of this process now, in bytes.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

// ---- the machine's roofs ----

// Bytes per second of all threads reading 256 MiB, more than any cache in reach; the best of some passes.
double read_roof(ThreadPool& pool) {
  const int64_t count = int64_t{256} << 20;
  std::vector<uint8_t> memory(static_cast<size_t>(count), 1);
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int pass = 0; pass < 5; ++pass) {
    const double start = seconds();
    pool.parallel_for(count, count / (4 * pool.num_threads()), [&](int64_t begin, int64_t end) {
      __m256i sum[4] = {};
      for (int64_t i = begin; i + 128 <= end; i += 128)
        for (int j = 0; j < 4; ++j)
          sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(memory.data() + i + 32 * j)));
      const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
      sink += static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
    });
    best = std::max(best, static_cast<double>(count) / (seconds() - start));
  }
  return sink.load() == 0 ? 0 : best;
}

// f32 multiply-add operations per second (two flops each) with 12 independent sums in registers on every thread.
double flop_roof(ThreadPool& pool) {
  constexpr int64_t kSteps = 2'000'000;
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double start = seconds();
    pool.parallel_for(pool.num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        __m256 sum[12];
        for (int j = 0; j < 12; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
        __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
        for (int64_t i = 0; i < kSteps; ++i) {
          asm volatile("" : "+x"(a), "+x"(b));  // the compiler may not see that all steps are alike
#pragma GCC unroll 12
          for (int j = 0; j < 12; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
        }
        for (int j = 0; j < 12; ++j) asm volatile("" : : "x"(sum[j]));
      }
    });
    best = std::max(best, static_cast<double>(pool.num_threads()) * kSteps * 12 * 16 / (seconds() - start));
  }
  return best;
}

// ---- what a step must do, counted from the config alone ----

struct Work {
  double flops = 0;  // two a multiply-add
  double bytes = 0;  // weights once, cached keys once a token
};

// One step of `tokens` tokens whose queries see `context` positions each; `logit_rows` of them want logits. Routing is taken
// to be uniform.
Work step_work(const spec::ModelConfig& c, double tokens, double context, double logit_rows, double weight_bytes,
               tensor::LatentFormat cache_format) {
  const auto d = [](int64_t v) { return static_cast<double>(v); };
  const double hidden = d(c.hidden_size), heads = d(c.num_attention_heads), index_width = d(c.index_n_heads * c.index_head_dim);
  const bool sparse = context > d(c.index_topk);
  const double keys = std::min(context, d(c.index_topk));
  const double expert = 3 * hidden * d(c.moe_intermediate_size);
  const double experts = d(std::max<int64_t>(1, c.n_routed_experts)), chosen = d(c.num_experts_per_tok);
  const double distinct_experts = experts * (1 - std::pow(1 - chosen / experts, tokens));
  double every = 0;   // weights that each token multiplies
  double routed = 0;  // the same, of routed experts
  double loaded = 0;  // weights of routed experts that the step reads
  double attention_flops = 0, cache = 0;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    every += hidden * d(c.q_lora_rank) + d(c.q_lora_rank) * heads * d(c.qk_head_dim()) + hidden * d(c.latent_dim()) +
             d(c.kv_lora_rank) * heads * d(c.qk_nope_head_dim + c.v_head_dim) + heads * d(c.v_head_dim) * hidden;
    attention_flops += 2 * heads * (d(c.latent_dim()) + d(c.kv_lora_rank)) * keys;
    cache += keys * d(KvCache::latent_bytes(c, cache_format));
    if (c.has_indexer(i)) {
      every += hidden * d(c.index_head_dim);
      if (sparse) {
        every += d(c.q_lora_rank) * index_width + hidden * d(c.index_n_heads);
        attention_flops += 2 * index_width * context;
        cache += d(c.index_head_dim) * context * d(static_cast<int64_t>(tensor::dtype_bytes(KvCache::index_dtype(cache_format))));
      }
    }
    if (c.is_moe(i)) {
      every += hidden * experts + d(c.n_shared_experts) * expert;
      routed += chosen * expert;
      loaded += distinct_experts * expert;
    } else {
      every += 3 * hidden * d(c.intermediate_size);
    }
  }
  const double head = hidden * d(c.vocab_size);
  return {tokens * (2 * (every + routed) + attention_flops) + logit_rows * 2 * head,
          (every + loaded + (logit_rows > 0 ? head : 0)) * weight_bytes + tokens * cache};
}

// Stored bytes a parameter, over all tensors: scales count as bytes, not as parameters.
double mean_weight_bytes(const tensor::Checkpoint& checkpoint) {
  double bytes = 0, parameters = 0;
  for (const tensor::TensorInfo& t : checkpoint.tensors()) {
    bytes += static_cast<double>(t.bytes);
    const bool scale = t.name.ends_with(".weight_scale") || t.name.ends_with(".weight_scale_inv");
    if (!scale) parameters += static_cast<double>(t.elements()) * (t.dtype == tensor::DType::u8 ? 2 : 1);
  }
  return parameters > 0 ? bytes / parameters : 0;
}

// ---- the model ----

// Feeds random tokens to sequences with pages of their own.
class Driver {
 public:
  static constexpr int64_t kPageSize = 64;

  Driver(Glm& glm, ThreadPool& pool, KvCache& cache, int64_t max_len)
      : glm_(glm), stream_{&pool}, cache_(cache), max_pages_((max_len + kPageSize - 1) / kPageSize) {
    table_.resize(static_cast<size_t>(cache.options().num_pages));
    std::iota(table_.begin(), table_.end(), 0);
  }
  static int64_t pages(int64_t seqs, int64_t max_len) { return seqs * ((max_len + kPageSize - 1) / kPageSize); }

  // Positions [begin, begin + count) of sequences [first_seq, first_seq + seqs); logits of the last row of each sequence when asked.
  void step(int32_t first_seq, int32_t seqs, int64_t begin, int64_t count, bool want_logits) {
    ids_.clear(), positions_.clear(), slots_.clear(), seq_of_token_.clear(), logit_rows_.clear();
    for (int32_t s = first_seq; s < first_seq + seqs; ++s) {
      for (int64_t p = begin; p < begin + count; ++p) {
        ids_.push_back(static_cast<int32_t>(rng_.below(static_cast<uint64_t>(glm_.config().vocab_size))));
        positions_.push_back(static_cast<int32_t>(p));
        slots_.push_back(static_cast<int32_t>(table_[static_cast<size_t>(s * max_pages_ + p / kPageSize)] * kPageSize + p % kPageSize));
        seq_of_token_.push_back(s);
      }
      if (want_logits) logit_rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
    }
    logits_.resize(logit_rows_.size() * static_cast<size_t>(glm_.config().vocab_size));
    const auto done =
        glm_.forward(stream_, {ids_, positions_, slots_, seq_of_token_, table_, max_pages_, logit_rows_}, cache_, {logits_, {}});
    INGOT_CHECK(done.has_value(), "a step on the CPU failed: {}", done.error().text());
  }

  // Seconds of a whole prompt in chunks.
  double prefill(int32_t seq, int64_t len, int64_t chunk) {
    const double start = seconds();
    for (int64_t at = 0; at < len; at += chunk) step(seq, 1, at, std::min(chunk, len - at), at + chunk >= len);
    return seconds() - start;
  }

 private:
  Glm& glm_;
  gpu::Stream stream_;
  KvCache& cache_;
  int64_t max_pages_;
  Rng rng_{1};
  std::vector<int32_t> table_, ids_, positions_, slots_, seq_of_token_, logit_rows_;
  std::vector<float> logits_;
};

struct Line {
  std::string what;
  Stat tokens_per_s;
  double bytes_per_s, flops_per_s;  // at the median
};

void print_report(const BenchModelOptions& options, double load_seconds, int64_t resident, const std::vector<Line>& lines, double read,
                  double flop, int threads) {
  if (options.json) {
    Json out = {{"model", options.model},       {"threads", threads},           {"kv_dtype", options.kv_dtype},
                {"chunk", options.chunk},       {"load_seconds", load_seconds}, {"read_roof_bytes_per_s", read},
                {"fma_roof_flops_per_s", flop}, {"resident_bytes", resident}};
    for (const Line& line : lines)
      out["results"].push_back(
          {{"what", line.what},
           {"tokens_per_s", {{"median", line.tokens_per_s.median}, {"min", line.tokens_per_s.min}, {"max", line.tokens_per_s.max}}},
           {"bytes_per_s", line.bytes_per_s},
           {"flops_per_s", line.flops_per_s}});
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{}  ({} threads, cache {}, chunks of {}, {} runs)\n", options.model, threads, options.kv_dtype, options.chunk, options.runs);
  fmt::print("load {:.1f} ms   resident {:.1f} MB   roofs: read {:.1f} GB/s, f32 FMA {:.1f} GFLOP/s\n", load_seconds * 1e3,
             static_cast<double>(resident) / 1e6, read / 1e9, flop / 1e9);
  fmt::print("{:<24}{:>10}{:>10}{:>10}   {:>18}{:>24}\n", "", "tok/s", "min", "max", "GB/s (of roof)", "GFLOP/s (of roof)");
  for (const Line& line : lines)
    fmt::print("{:<24}{:>10.0f}{:>10.0f}{:>10.0f}   {:>10.1f} ({:>3.0f} %){:>16.1f} ({:>3.0f} %)\n", line.what, line.tokens_per_s.median,
               line.tokens_per_s.min, line.tokens_per_s.max, line.bytes_per_s / 1e9, 100 * line.bytes_per_s / read, line.flops_per_s / 1e9,
               100 * line.flops_per_s / flop);
}

}  // namespace

int run_bench_model(const BenchModelOptions& options) {
  constexpr int64_t kDecodeContext = 256;  // tokens a sequence has when its decode measurement begins
  const auto format = tensor::latent_format_of(options.kv_dtype);
  if (!format) {
    fmt::print(stderr, "--kv-cache-dtype {}: use bf16, fp8_e4m3, fp8_ds_mla or f32\n", options.kv_dtype);
    return 2;
  }
  if (options.prompt_len < 1 || options.decode_len < 1 || options.chunk < 1 || options.runs < 1 || options.batches.empty() ||
      *std::min_element(options.batches.begin(), options.batches.end()) < 1) {
    fmt::print(stderr, "prompt length, decode length, chunk, runs and batch sizes must be positive\n");
    return 2;
  }
  const double load_start = seconds();
  auto loaded = Glm::load(options.model);
  const double load_seconds = seconds() - load_start;
  if (!loaded) {
    fmt::print(stderr, "{}\n", loaded.error().text());
    return 1;
  }
  Glm& glm = **loaded;
  const spec::ModelConfig& config = glm.config();
  const int64_t decode_end = kDecodeContext + options.decode_len, max_len = std::max<int64_t>(options.prompt_len, decode_end);
  if (max_len > config.max_position_embeddings) {
    fmt::print(stderr, "{} positions are asked for, the model has {}\n", max_len, config.max_position_embeddings);
    return 2;
  }
  auto checkpoint = tensor::Checkpoint::open(options.model);
  if (!checkpoint) {
    fmt::print(stderr, "{}\n", checkpoint.error().text());
    return 1;
  }
  const double weight_bytes = mean_weight_bytes(*checkpoint);
  ThreadPool pool(options.threads);
  const int max_batch = *std::max_element(options.batches.begin(), options.batches.end());
  auto cache = KvCache::create(config, {*format, Driver::pages(max_batch, max_len), Driver::kPageSize});
  if (!cache) {
    fmt::print(stderr, "{}\n", cache.error().text());
    return 1;
  }
  Driver driver(glm, pool, *cache, max_len);
  driver.prefill(0, std::min<int64_t>(options.chunk, options.prompt_len), options.chunk);  // pages of the file come in, scratch grows

  std::vector<Line> lines;
  const auto measure = [&](std::string what, double tokens, const Work& work, const std::function<double()>& run) {
    std::vector<double> rates;
    for (int r = 0; r < options.runs; ++r) rates.push_back(tokens / run());
    const Stat stat = stat_of(rates);
    const double time = tokens / stat.median;
    lines.push_back({std::move(what), stat, work.bytes / time, work.flops / time});
  };
  Work prefill_work;
  for (int64_t at = 0; at < options.prompt_len; at += options.chunk) {
    const int64_t count = std::min<int64_t>(options.chunk, options.prompt_len - at);
    const Work step = step_work(config, static_cast<double>(count), static_cast<double>(at) + static_cast<double>(count) / 2,
                                at + count == options.prompt_len ? 1 : 0, weight_bytes, *format);
    prefill_work.flops += step.flops;
    prefill_work.bytes += step.bytes;
  }
  measure(fmt::format("prefill {}", options.prompt_len), options.prompt_len, prefill_work,
          [&] { return driver.prefill(0, options.prompt_len, options.chunk); });
  for (const int batch : options.batches) {
    for (int32_t s = 0; s < batch; ++s) driver.prefill(s, kDecodeContext, options.chunk);
    Work work = step_work(config, batch, static_cast<double>(kDecodeContext) + options.decode_len / 2.0, batch, weight_bytes, *format);
    work.flops *= options.decode_len;
    work.bytes *= options.decode_len;
    measure(fmt::format("decode, {} sequences", batch), static_cast<double>(batch) * options.decode_len, work, [&] {
      const double start = seconds();
      for (int64_t p = kDecodeContext; p < decode_end; ++p) driver.step(0, batch, p, 1, true);
      return seconds() - start;
    });
  }
  const int64_t resident = resident_bytes();  // before the roofs take memory of their own
  print_report(options, load_seconds, resident, lines, read_roof(pool), flop_roof(pool), pool.num_threads());
  return 0;
}

}  // namespace ingot::apps
