// What a node of eight GPUs would do, from the measured steps of one tensor-parallel rank and published times of collectives: pure
// arithmetic, with every assumption in words. Called by `ingot bench shard --project`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::plan {

inline constexpr int kNodeGpus = 8;
inline constexpr int kDrafts = 5;  // a speculation round: 5 MTP passes, of which the first redoes the verified rows; 6 rows to verify
// Accepted tokens and the bonus one a round, GLM-5.2 with 3, 4 and 5 drafts (anchors section 3, golden acceptance lengths).
inline constexpr std::array<double, 3> kAcceptance = {3.0, 3.33, 3.61};

// Microseconds of one all-reduce of `bytes` among `ranks` H200s of a node in a CUDA graph: the fastest library of anchors section 4.4,
// between its rows by straight lines. 0 for one rank. Above 64 MB the last row's bandwidth goes on.
double all_reduce_us(int ranks, double bytes);

// A step of `sequences` sequences with `rows` rows in all.
struct MeasuredBatch {
  int64_t sequences = 0, rows = 0;
  double step_ms = 0;    // main layers and head
  double extend_ms = 0;  // the MTP layer over the same rows
  double draft_ms = 0;   // the MTP layer over one row a sequence; 0: not measured
};

struct RankMeasurements {
  int tp = 8;
  int64_t layers = 78, hidden_size = 6144;
  MeasuredBatch single;                // one sequence, 6 rows; rows 0: not measured
  std::vector<MeasuredBatch> batches;  // with one row a sequence, or with 6
  double prefill_ms = 0;               // of prefill_rows rows on top of a cached prefix; 0: not measured
  int64_t prefill_rows = 0;
};

struct SingleStream {
  double iteration_ms = 0, collective_ms = 0;           // the first without the second
  std::array<double, 3> tokens_per_second{};            // at kAcceptance, collectives included
  std::array<double, 3> tokens_per_second_if_hidden{};  // without them
};
struct BatchDecode {
  int64_t sequences = 0;  // of a replica
  bool speculation = false;
  double iteration_ms = 0, collective_ms = 0;
  double node_tokens_per_second = 0, node_tokens_per_second_if_hidden = 0;  // at the last of kAcceptance
};
struct Requests {
  int64_t sequences = 0;                                            // of the batch decode that serves them
  double prefill_ms = 0, prefill_collective_ms = 0, decode_ms = 0;  // of a request, on its replica; decode_ms with its collectives
  double per_second = 0, per_second_if_hidden = 0;                  // of the node
};

struct NodeProjection {
  int tp = 0, replicas = 0;
  std::vector<SingleStream> single;  // none or one
  std::vector<BatchDecode> decode;
  std::vector<Requests> requests;  // none or one: with the batch that gives most
  std::vector<std::string> assumptions;
};
NodeProjection project_node(const RankMeasurements& rank);

// What others published, to stand beside it (anchors sections 2, 3 and 6).
struct PublishedFigure {
  std::string_view what, value, source;
};
const std::vector<PublishedFigure>& published_figures();

}  // namespace ingot::plan
