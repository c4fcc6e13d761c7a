// Calibration: MXFP4 codes and scales chosen by what the model's linears really see, instead of rounding each weight for itself. Texts are
// run through the source and through the quantised model side by side, layer by layer and piece by piece (attention's inputs, its latents,
// its output, the MLP's inputs, its outputs), and each linear is rounded with second-order error feedback (gptq.h) towards what the source
// model computes, on the inputs that the linears quantised before it leave. Same format, same size; no other tensor changes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "quant/calibration_data.h"
#include "quant/corrections.h"
#include "quant/gptq.h"
#include "quant/recipe.h"

namespace ingot::quant {

struct CalibrationProgress {
  int64_t layer = 0, layers = 0;  // of the model, the MTP layer the last
  std::string_view stage;         // "attention inputs", ...; "done" at the end of a layer
  int64_t modules = 0;            // decided so far
  // At "done": root mean square over tokens of |quantised - source| / |source| of the residual stream after the layer.
  double stream_error = 0;
};

struct CalibrationOptions {
  std::filesystem::path data;         // see calibration_data.h
  Tokenize tokenize;                  // for documents given as text
  std::filesystem::path work_folder;  // exists; takes unnamed files, which vanish with the process
  int64_t max_tokens = 65536;         // of the data; twice the number lowers the demo model's KL by a few per cent
  int64_t max_document_tokens = 4096;
  uint64_t seed = 1;                                // chooses documents when there are more than max_tokens
  int threads = 0;                                  // 0: one per processor; the result does not depend on it
  int64_t max_statistics_bytes = int64_t{4} << 30;  // for the sums over experts' inputs; fewer mean more passes over the layer
  GptqOptions gptq;
  std::function<void(const CalibrationProgress&)> progress;  // may be empty
};

// Decides every module that the recipe packs to MXFP4 and the data can reach; others (FP8 blocks) are rounded to nearest, here as in the
// pipeline, so that later layers make up for them. The corrections keep their bytes in the work folder, not in memory.
// Memory beside the mapped source: for one input of K columns 24 K^2 bytes at most (8 of sums, 16 of the factor being made; K = 6144: 0.9
// GB; K = 16384, the o_proj of GLM-5.2: 6.4 GB), max_statistics_bytes for experts, one layer's packed weights, one document's activations.
// Disk: for every token 8 * (hidden + heads * v + index_topk) bytes, and the packed weights.
// Errors: the source, the data (by line), the disk (by path), and moments that are not finite (by module).
Result<std::unique_ptr<Corrections>> calibrate(const std::filesystem::path& source, const Recipe& recipe,
                                               const CalibrationOptions& options);

}  // namespace ingot::quant
