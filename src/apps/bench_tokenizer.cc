#include "apps/bench_tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/file_map.h"
#include "base/log.h"
#include "text/tokenizer.h"

namespace ingot::apps {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int run_bench_tokenizer(const BenchTokenizerOptions& options) {
  const auto load_start = std::chrono::steady_clock::now();
  const auto tokenizer = text::Tokenizer::load(options.tokenizer);
  if (!tokenizer) return log_error("{}", tokenizer.error().text()), 1;
  const double load_s = seconds_since(load_start);
  const auto text = read_file(options.text_file, kMaxTextBytes);
  if (!text) return log_error("{}", text.error().text()), 1;
  if (options.runs < 1) return log_error("--runs {} is not at least 1", options.runs), 1;

  std::vector<int32_t> ids;
  std::vector<double> rates;
  for (int run = 0; run < options.runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    auto encoded = (*tokenizer)->encode(*text);
    const double seconds = seconds_since(start);
    if (!encoded) return log_error("{}: {}", options.text_file, encoded.error().text()), 1;
    ids = std::move(*encoded);
    rates.push_back(static_cast<double>(text->size()) / 1e6 / seconds);
  }
  std::sort(rates.begin(), rates.end());
  const double median = rates[rates.size() / 2];
  fmt::print("load {:.3f} s; {} bytes, {} tokens; {} runs: median {:.2f} MB/s (min {:.2f}, max {:.2f}), {:.0f} tokens/s\n", load_s,
             text->size(), ids.size(), rates.size(), median, rates.front(), rates.back(),
             text->empty() ? 0.0 : median * 1e6 * static_cast<double>(ids.size()) / static_cast<double>(text->size()));
  if (!options.ids_out.empty()) {
    std::ofstream out(options.ids_out, std::ios::binary);
    out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
    out.close();
    if (!out) return log_error("{}: cannot write", options.ids_out), 1;
  }
  return 0;
}

}  // namespace ingot::apps
