// Second-order rounding of one weight to MXFP4: the error that rounding makes in one column is taken up by the columns not rounded yet, in
// the directions that the linear's true inputs have (the optimal brain surgeon's update in the order of columns; E. Frantar et al.,
// "GPTQ", 2022), with the scale of each block of 32 tried out, and then coordinate descent over the codes. Pure functions of their
// arguments: the bytes do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/stream.h"
#include "tensor/quantize.h"

namespace ingot::quant {

struct GptqOptions {
  // Added to the diagonal of the moments as a share of its mean: directions that the data hardly shows are not free to move.
  double damping = 0.01;
  // Passes of coordinate descent. Two bring what ten do (demo model, KL to bf16 0.0148 and 0.0149 nats; none: 0.0158).
  int passes = 2;
};

// Sums over the tokens that reach a linear. x: the input as the quantised model so far makes it; x0: as the source model makes it.
// Rows are gathered and added in blocks, so call finish() before reading the sums.
class InputMoments {
 public:
  // output_rows: of the residual's sum; 0 when residuals are not given.
  InputMoments(int64_t cols, int64_t output_rows);

  // One token: x, x0 (cols), and residual (output_rows) or null: what the output is to make up beyond the source's own W x0.
  // weight >= 0: how much the token counts.
  void add(gpu::Stream& stream, const float* x, const float* x0, const float* residual, float weight);
  void finish(gpu::Stream& stream);
  // this += factor * other, both finished; for columns alone (no residual).
  void mix(const InputMoments& other, float factor);

  int64_t cols() const { return cols_; }
  int64_t output_rows() const { return output_rows_; }
  double weight() const { return weight_; }                      // sum of the weights
  int64_t tokens() const { return tokens_; }                     // that counted
  std::span<const float> second() const { return second_; }      // (cols, cols): sum of w x x^T
  std::span<const float> cross() const { return cross_; }        // (cols, cols): sum of w (x0 - x) x^T
  std::span<const float> residual() const { return residual_; }  // (output_rows, cols): sum of w r x^T

  // Bytes that an object takes.
  static int64_t bytes(int64_t cols, int64_t output_rows);

 private:
  static constexpr int64_t kBlock = 256;  // tokens added at once

  int64_t cols_, output_rows_;
  std::vector<float> second_, cross_, residual_;
  // Of the tokens gathered, times sqrt(weight): (kBlock, cols) twice and (kBlock, output_rows).
  std::vector<float> x_, difference_, wanted_;
  int64_t gathered_ = 0, tokens_ = 0;
  double weight_ = 0;
};

// The factored moments of one input, for every weight that sees it. Memory: 16 bytes a pair of columns while it is made, 8 afterwards.
class GptqSolver {
 public:
  // second: (cols, cols), symmetric. cols: a multiple of 32. Where no data came (all zero) it becomes the identity, and quantize() rounds
  // each weight for itself. Errors: sums that are not finite or cannot be factored.
  static Result<GptqSolver> create(std::span<const float> second, int64_t cols, const GptqOptions& options, gpu::Stream& stream);

  // values: (rows, cols), the weight W. shift: (rows, cols) or empty, the sum of w (y - W x) x^T, with y the output that is wanted: the
  // target becomes the (damped) least squares solution for y, then is rounded.
  tensor::PackedWeight quantize(std::span<const float> values, std::span<const float> shift, int64_t rows, gpu::Stream& stream) const;

 private:
  GptqSolver() = default;
  bool factor(gpu::Stream& stream);
  void round_rows(float* target, int64_t rows, uint8_t* codes, uint8_t* scales) const;

  int64_t cols_ = 0;
  int passes_ = 0;
  float scale_ = 1;             // the moments here are the sums times this
  std::vector<int32_t> order_;  // (cols / 32): blocks by falling energy; everything below is in this order
  std::vector<float> moments_;  // (cols, cols), damped
  std::vector<float> inverse_;  // (cols, cols) upper triangular U, moments^-1 = U^T U
};

}  // namespace ingot::quant
