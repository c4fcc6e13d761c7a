// A fraction of the roof that was never reached: bytes or flop of an operation counted wrong. By hand, from spec section 9 and anchors 6.
#include "kernels/op_cost.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

WeightView weight(int64_t rows, int64_t cols, WeightFormat format) { return {nullptr, nullptr, rows, cols, 0, format}; }

TEST(OpCost, WeightsCountTheirScales) {
  // One expert of GLM-5.2 has 37,748,736 weights: 20.05 MB in MXFP4, 37.76 MB in FP8, 75.5 MB in bf16 (spec 9.2).
  const auto expert = [](WeightFormat format) {
    return 2 * weight_bytes(weight(2048, 6144, format)) + weight_bytes(weight(6144, 2048, format));
  };
  EXPECT_EQ(expert(WeightFormat::mxfp4), 37'748'736 * 0.53125);
  EXPECT_EQ(expert(WeightFormat::bf16), 37'748'736 * 2.0);
  EXPECT_EQ(expert(WeightFormat::fp8_block), 37'748'736 + 3 * 16 * 48 * 4.0);
  // kv_a: 576 rows are four and a half blocks.
  EXPECT_EQ(weight_bytes(weight(576, 6144, WeightFormat::fp8_block)), 576 * 6144 + 5 * 48 * 4.0);
}

TEST(OpCost, AProductReadsItsWeightOnceAndItsRowsOnce) {
  MatmulParams p{nullptr, 0, nullptr, 0, weight(6144, 2048, WeightFormat::bf16), 6, false};
  EXPECT_EQ(op_cost(p, {}).bytes, 6144 * 2048 * 2.0 + 6 * 2048 * 4.0 + 6 * 6144 * 4.0);
  EXPECT_EQ(op_cost(p, {}).flop, 2.0 * 6 * 6144 * 2048);
  p.accumulate = true;
  EXPECT_EQ(op_cost(p, {}).bytes, 6144 * 2048 * 2.0 + 6 * 2048 * 4.0 + 2 * 6 * 6144 * 4.0);
  p.rows = 0;
  EXPECT_EQ(op_cost(p, {}).bytes, 0);
}

TEST(OpCost, ExpertsCountThoseThatWereHit) {
  const std::vector<WeightView> experts(256, weight(256, 6144, WeightFormat::mxfp4));
  GatedMatmulParams p{};
  const int32_t order = 0;
  p.order = &order;
  p.rows_per_source = 8;
  p.weights = p.gates = experts.data();
  p.num_rows = 48;
  p.num_experts = 256;
  p.n = 256;
  OpHints hints;
  hints.distinct_experts = 44.4;
  const double each = 256 * 6144 * 0.53125;
  EXPECT_DOUBLE_EQ(op_cost(p, hints).bytes, 44.4 * 2 * each + 6 * 6144 * 4.0 + 48 * 4.0 + 48 * 256 * 4.0);
  EXPECT_DOUBLE_EQ(op_cost(p, hints).flop, 2 * 2.0 * 48 * 256 * 6144 + 4 * 48 * 256);
  // Not more than there are rows, whatever was expected.
  p.num_rows = 8;
  EXPECT_DOUBLE_EQ(op_cost(p, hints).bytes, 8 * 2 * each + 6144 * 4.0 + 8 * 4.0 + 8 * 256 * 4.0);
  // The first matmul of a layer at T = 8192 and the second: 696 GFLOP of anchors 6.2, TP8.
  p.num_rows = 8 * 8192;
  GroupedMatmulParams down{};
  const std::vector<WeightView> downs(256, weight(6144, 256, WeightFormat::mxfp4));
  down.weights = downs.data();
  down.num_rows = p.num_rows;
  down.num_experts = 256;
  down.n = 6144;
  EXPECT_NEAR((op_cost(p, {}).flop + op_cost(down, {}).flop) / 1e9, 619, 1);  // eight of the nine experts a token; the ninth is shared
}

TEST(OpCost, AttentionCountsThePositionsThatAreRead) {
  SparseMlaParams p{};
  const int32_t indices = 0;
  p.indices = &indices;
  p.topk = 2048;
  p.cache_format = LatentFormat::fp8;
  p.num_tokens = 1;
  p.heads = 64;
  p.latent_dim = 512;
  p.rope_dim = 64;
  OpHints hints;
  hints.positions = 20480;
  // 285.2 MFLOP a layer and token (spec 9.3).
  EXPECT_NEAR(op_cost(p, hints).flop / 1e6, 285.2, 0.1);
  EXPECT_DOUBLE_EQ(op_cost(p, hints).bytes, 2048 * 576 + 2048 * 4 + 64 * (576 + 512) * 4.0);
  hints.positions = 100;
  EXPECT_NEAR(op_cost(p, hints).flop, 139264.0 * 100, 1);
}

TEST(OpCost, IndexScoresReadTheKeysOfASequenceOnce) {
  IndexScoresParams p{};
  p.score_stride = 32768;
  p.cache_dtype = DType::bf16;
  p.num_tokens = 12;
  p.heads = 32;
  p.dim = 128;
  OpHints hints;
  hints.positions = 20480;
  hints.rows_per_sequence = 6;
  EXPECT_DOUBLE_EQ(op_cost(p, hints).bytes, 2 * 20480 * 256.0 + 12 * 20480 * 4.0 + 12 * 32 * 129 * 4.0);
  EXPECT_DOUBLE_EQ(op_cost(p, hints).flop, 12 * 20480 * 32 * 129 * 2.0);
}

TEST(OpCost, HeadsCountTheirOwnRows) {
  HeadMatmulParams p{};
  p.w = weight(8 * 448, 512, WeightFormat::bf16);
  p.rows = 2;
  p.heads = 8;
  p.rows_per_head = 448;
  p.n = 192;
  EXPECT_DOUBLE_EQ(op_cost(p, {}).bytes, 8 * 192 * 512 * 2.0 + 2 * 8 * (192 + 512) * 4.0);
  EXPECT_DOUBLE_EQ(op_cost(p, {}).flop, 2.0 * 2 * 8 * 192 * 512);
}

// A table that could not tell q_b from o: two operations of one role were one line.
TEST(OpCost, ShapesSayHowLargeAnOperationIs) {
  const MatmulParams up{nullptr, 0, nullptr, 0, weight(128, 256, WeightFormat::bf16), 6, false};
  const MatmulParams router{nullptr, 0, nullptr, 0, weight(16, 256, WeightFormat::bf16), 6, false};
  EXPECT_EQ(op_cost(up, {}).shape, (gpu::OpShape{6, 128, 256}));
  // Products of one input are one operation with all their outputs.
  const MatmulParams both[] = {router, up};
  const OpCost sum = op_cost(std::span<const MatmulParams>(both), {});
  EXPECT_EQ(sum.shape, (gpu::OpShape{6, 144, 256}));
  EXPECT_EQ(sum.bytes, op_cost(router, {}).bytes + op_cost(up, {}).bytes);
  EXPECT_EQ(sum.flop, 2.0 * 6 * 144 * 256);
  HeadMatmulParams p{};
  p.w = weight(8 * 96, 128, WeightFormat::bf16);
  p.rows = 2;
  p.heads = 8;
  p.rows_per_head = 96;
  p.n = 32;
  p.transposed = true;
  EXPECT_EQ(op_cost(p, {}).shape, (gpu::OpShape{16, 128, 32}));
  SparseMlaParams mla{};
  const int32_t indices = 0;
  mla.indices = &indices;
  mla.topk = 256;
  mla.num_tokens = 3;
  mla.heads = 8;
  OpHints hints;
  hints.positions = 100;
  EXPECT_EQ(op_cost(mla, hints).shape, (gpu::OpShape{3, 8, 100}));
  hints.positions = 4096;
  EXPECT_EQ(op_cost(mla, hints).shape, (gpu::OpShape{3, 8, 256}));
}

}  // namespace
}  // namespace ingot::kernels
