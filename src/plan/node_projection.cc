#include "plan/node_projection.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace ingot::plan {
namespace {

constexpr double kOutputTokens = 1000;  // of a request
constexpr double kMessageBytes = 2;     // of a number: bf16, as the published times have it

struct CollectiveRow {
  double bytes;
  double us[3];  // of 2, 4 and 8 ranks
};
// Anchors section 4.4, H200, the least of sglang, TRT-LLM and vLLM; 12 KB is one token.
constexpr CollectiveRow kAllReduce[] = {{12 * 1024.0, {2.6, 2.9, 3.5}},          {64 * 1024.0, {3.1, 4.2, 6.4}},
                                        {256 * 1024.0, {4.3, 7.0, 11.1}},        {1024 * 1024.0, {9.1, 14.6, 18.1}},
                                        {4 * 1024 * 1024.0, {29.5, 43.0, 48.0}}, {64 * 1024 * 1024.0, {464.0, 609.0, 562.0}}};

double collectives_ms(const RankMeasurements& rank, int64_t layers, int64_t rows) {
  return 2 * static_cast<double>(layers) * all_reduce_us(rank.tp, static_cast<double>(rows * rank.hidden_size) * kMessageBytes) / 1000;
}

// Of a speculation round: the verified rows, the same rows of the MTP layer, and the chain of drafts.
double round_ms(const MeasuredBatch& b) { return b.step_ms + b.extend_ms + (kDrafts - 1) * b.draft_ms; }
double round_collectives_ms(const RankMeasurements& rank, const MeasuredBatch& b) {
  return collectives_ms(rank, rank.layers, b.rows) + collectives_ms(rank, 1, b.rows) + (kDrafts - 1) * collectives_ms(rank, 1, b.sequences);
}

}  // namespace

double all_reduce_us(int ranks, double bytes) {
  if (ranks <= 1 || bytes <= 0) return 0;
  const size_t column = ranks <= 2 ? 0 : ranks <= 4 ? 1 : 2;
  const auto* above =
      std::find_if(std::begin(kAllReduce), std::end(kAllReduce), [&](const CollectiveRow& row) { return row.bytes >= bytes; });
  if (above == std::begin(kAllReduce)) return above->us[column];
  if (above == std::end(kAllReduce)) {
    const CollectiveRow& last = *std::prev(above);
    return last.us[column] * bytes / last.bytes;
  }
  const CollectiveRow& below = *std::prev(above);
  const double part = (bytes - below.bytes) / (above->bytes - below.bytes);
  return below.us[column] + part * (above->us[column] - below.us[column]);
}

NodeProjection project_node(const RankMeasurements& rank) {
  NodeProjection out;
  out.tp = rank.tp;
  out.replicas = kNodeGpus / rank.tp;
  if (rank.single.rows > 0) {
    SingleStream& single = out.single.emplace_back();
    single.iteration_ms = round_ms(rank.single);
    single.collective_ms = round_collectives_ms(rank, rank.single);
    for (size_t i = 0; i < kAcceptance.size(); ++i) {
      single.tokens_per_second[i] = 1000 * kAcceptance[i] / (single.iteration_ms + single.collective_ms);
      single.tokens_per_second_if_hidden[i] = 1000 * kAcceptance[i] / single.iteration_ms;
    }
  }
  for (const MeasuredBatch& b : rank.batches) {
    BatchDecode& decode = out.decode.emplace_back();
    decode.sequences = b.sequences;
    decode.speculation = b.rows > b.sequences;
    decode.iteration_ms = decode.speculation ? round_ms(b) : b.step_ms;
    decode.collective_ms = decode.speculation ? round_collectives_ms(rank, b) : collectives_ms(rank, rank.layers, b.rows);
    const double tokens = 1000.0 * out.replicas * static_cast<double>(b.sequences) * (decode.speculation ? kAcceptance.back() : 1.0);
    decode.node_tokens_per_second = tokens / (decode.iteration_ms + decode.collective_ms);
    decode.node_tokens_per_second_if_hidden = tokens / decode.iteration_ms;
  }
  const auto best = std::max_element(out.decode.begin(), out.decode.end(), [](const BatchDecode& a, const BatchDecode& b) {
    return a.node_tokens_per_second < b.node_tokens_per_second;
  });
  if (rank.prefill_ms > 0 && best != out.decode.end()) {
    Requests& requests = out.requests.emplace_back();
    requests.sequences = best->sequences;
    requests.prefill_ms = rank.prefill_ms;
    requests.prefill_collective_ms = collectives_ms(rank, rank.layers, rank.prefill_rows);
    // On its replica, which has a part of the node's tokens a second.
    const auto decode_ms = [&](double node_tokens) { return 1000 * kOutputTokens / (node_tokens / out.replicas); };
    requests.decode_ms = decode_ms(best->node_tokens_per_second);
    requests.per_second = 1000.0 * out.replicas / (requests.prefill_ms + requests.prefill_collective_ms + requests.decode_ms);
    requests.per_second_if_hidden = 1000.0 * out.replicas / (requests.prefill_ms + decode_ms(best->node_tokens_per_second_if_hidden));
  }
  out.assumptions = {
      fmt::format("{} GPUs as TP{}{}: every rank takes the time of the one that was measured (rank 0, the one that keeps the residual)",
                  kNodeGpus, rank.tp, out.replicas > 1 ? fmt::format(" x DP{}, requests spread evenly", out.replicas) : ""),
      fmt::format(
          "collectives: two all-reduces a layer of rows x {} bf16 numbers at the published times on H200 (anchors 4.4), one after the "
          "other with the kernels; \"if hidden\": none of their time shows. The forward pass as it stands would send f32, twice the "
          "bytes. Gathering logits is not counted",
          rank.hidden_size),
      "GPU time of graph replays alone: no sampling, no scheduling, no copies between host and GPU",
      fmt::format(
          "speculation: a round is one pass over 6 rows a sequence, the MTP layer over the same rows, and {} passes of the MTP layer "
          "over one row; every MTP pass runs its own indexer (index sharing would save some); acceptance {}, {}, {} is that of 3, 4, "
          "5 drafts, measured by others on code at temperature 1, while the round's time is that of {} drafts",
          kDrafts - 1, kAcceptance[0], kAcceptance[1], kAcceptance[2], kDrafts),
      "routing as measured (random weights); real routing is more skewed, and rows of one sequence share experts",
      fmt::format(
          "requests: 8192 uncached tokens on 12288 cached, {} output tokens, prefill and decode take turns on the same GPUs without "
          "disturbing each other; the decode batch is full all the time",
          kOutputTokens),
      "throughput at saturation, no limit on TTFT"};
  return out;
}

const std::vector<PublishedFigure>& published_figures() {
  static const std::vector<PublishedFigure> figures = {
      {"single stream 10k/1.5k, 8x MI355X, MXFP4, MTP 5-1-6", "213 tok/s (14.1-16.9 ms a round at acceptance 3.0-3.61)",
       "Wafer article, anchors 2 and 6.3"},
      {"single stream, 8x H200, FP8, MTP 5-1-6", "18.1 ms a round", "sglang cookbook, anchors 3"},
      {"single stream, 8x B200, FP8, MTP 5-1-6", "13.75 ms a round", "sglang cookbook, anchors 3"},
      {"single stream 16k, 8x B200, GLM-5.1 FP8, MTP 3", "451 tok/s at acceptance 3.2 (7.10 ms a round)", "TileRT, anchors 3"},
      {"bound of a round, H200 TP8 / TP4, fp8 attention", "3.90 / 6.34 ms (769-926 / 473-570 tok/s)", "derived, anchors 6.3"},
      {"decode, H200 TP8, 32 sequences, 6 rows each", "16.7 ms, 6929 tok/s a node at acceptance 3.61", "derived bound, anchors 6.4"},
      {"decode, H200 TP8, 32 sequences, 1 row each", "10.1 ms, 3179 tok/s a node", "derived bound, anchors 6.4"},
      {"20k/1k/60 % cached, 8x MI355X, TP4 x DP2", "2.4 requests/s, 2626 tok/s a node", "Wafer article, anchors 2"},
      {"20k/1k/60 % cached, 8x B200", "3.0 requests/s, 3192 tok/s a node", "Wafer article, anchors 2"},
      {"20k/1k/60 % cached, H200 with Marlin, TP8 / TP4 x DP2", "2.3 / 2.4 requests/s with collectives hidden",
       "composed of published kernels, anchors 6.5"},
      {"20k/1k/60 % cached, H200 if the experts ran at 790 TFLOP/s, TP8", "4.6 hidden, 3.6 exposed requests/s", "derived, anchors 6.5"}};
  return figures;
}

}  // namespace ingot::plan
