// Matrix instructions as data. Each is a struct that says its shape, how many lanes issue it, which numbers its operands hold and, by
// constexpr functions, which lane holds which element: D (M,N) = A (M,K) * B (K,N) + C (M,N), C and D in f32.
//   a(lane, i)  row and column in A of the i-th number that the lane holds; b() in B, c() in C and D
// A lane holds its numbers packed in 32-bit words, number 0 in the lowest bits of word 0; runs of kRun numbers, starting at multiples of
// kRun, are neighbours along K, so that a lane can load a run at once from operands whose K is contiguous.
//
// mma(g, I{}, c, a, b) issues I: one line of assembly (mma_nvidia.h), one builtin (mma_amd.h), or, in the emulator, the gathered
// fragments multiplied (mma_emulated.h). Every lane of the warp must reach it. A table that is wrong but self-consistent would pass in the
// emulator, so each cites its public source, and MmaProbe (mma_probe.kernel.h) runs on the silicon we have. What has only been emulated:
// all of AMD's.
//
// The order and the inner precision of the K products in one instruction are the hardware's business; the emulator adds them in double and
// rounds once. A kernel's own order of instructions is all it can promise.
#pragma once

#include <cstdint>

#include "gpu/kernel.h"

namespace ingot::gpu {

template <int N>
struct alignas(N % 4 == 0   ? 16
               : N % 2 == 0 ? 8
                            : 4) Words {
  uint32_t v[N];
};

// A lane's part of C and D.
template <int N>
struct Accumulator {
  float v[N];
};

// What a matrix operand may hold.
enum class MatrixNumber : uint8_t {
  bf16,
  e4m3,       // OCP "fn": bias 7, NaN 0x7f and 0xff
  e4m3_fnuz,  // gfx942: bias 8, largest 240, the only NaN 0x80, no minus zero
  e2m1        // OCP
};
constexpr int matrix_number_bits(MatrixNumber n) { return n == MatrixNumber::bf16 ? 16 : n == MatrixNumber::e2m1 ? 4 : 8; }

struct Place {
  int row, col;
};

// ---- NVIDIA, 32 lanes. Layouts: PTX ISA 9.0, "Warp-level matrix fragment for mma.m16n8k16 with floating point type" and "Matrix
// fragments for mma.m16n8k32". A quad of lanes has one row of A, its columns in two halves; C is alike for both.

struct MmaSyncShape {
  static constexpr int lanes = 32, kM = 16, kN = 8;
  static constexpr int kAccumulators = 4;
  static constexpr bool kScaled = false;
  using C = Accumulator<kAccumulators>;
  static constexpr Place c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }
};

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 (sm_80 and later)
struct MmaSyncBf16 : MmaSyncShape {
  static constexpr int kK = 16, kRun = 2, kANumbers = 8, kBNumbers = 4;
  static constexpr MatrixNumber kAType = MatrixNumber::bf16, kBType = MatrixNumber::bf16;
  using A = Words<4>;
  using B = Words<2>;
  static constexpr Place a(int lane, int i) { return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8}; }
  static constexpr Place b(int lane, int i) { return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4}; }
};

// mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 (sm_89 and later)
struct MmaSyncE4m3 : MmaSyncShape {
  static constexpr int kK = 32, kRun = 4, kANumbers = 16, kBNumbers = 8;
  static constexpr MatrixNumber kAType = MatrixNumber::e4m3, kBType = MatrixNumber::e4m3;
  using A = Words<4>;
  using B = Words<2>;
  static constexpr Place a(int lane, int i) { return {lane / 4 + i / 4 % 2 * 8, lane % 4 * 4 + i % 4 + i / 8 * 16}; }
  static constexpr Place b(int lane, int i) { return {lane % 4 * 4 + i % 4 + i / 4 * 16, lane / 4}; }
};

// ---- AMD, 64 lanes, 16 x 16. Layouts of gfx942: AMD's matrix instruction calculator (github.com/ROCm/amd_matrix_instruction_calculator,
// `-a gfx942 -i v_mfma_f32_16x16x16_bf16 -A -M`) and the CDNA3 ISA guide, chapter 7. Lane l has row l % 16 of A (column of B) and the
// l / 16-th stretch of K; C in stretches of four rows.

template <int K, int Run>
struct MfmaShape {
  static constexpr int lanes = 64, kM = 16, kN = 16, kK = K, kRun = Run;
  static constexpr int kANumbers = K / 4, kBNumbers = K / 4, kAccumulators = 4;
  static constexpr bool kScaled = false;
  using C = Accumulator<kAccumulators>;
  // Stretches of Run numbers are dealt to the four groups of 16 lanes in turn.
  static constexpr int along_k(int lane, int i) { return i / Run * (4 * Run) + lane / 16 * Run + i % Run; }
  static constexpr Place a(int lane, int i) { return {lane % 16, along_k(lane, i)}; }
  static constexpr Place b(int lane, int i) { return {along_k(lane, i), lane % 16}; }
  static constexpr Place c(int lane, int i) { return {lane / 16 * 4 + i, lane % 16}; }
};

// v_mfma_f32_16x16x16_bf16 (gfx90a, gfx942, gfx950)
struct MfmaBf16K16 : MfmaShape<16, 4> {
  static constexpr MatrixNumber kAType = MatrixNumber::bf16, kBType = MatrixNumber::bf16;
  using A = Words<2>;
  using B = Words<2>;
};

// v_mfma_f32_16x16x32_bf16 (gfx950). CDNA4 ISA guide, chapter 7; the same rule with eight numbers a lane.
struct MfmaBf16K32 : MfmaShape<32, 8> {
  static constexpr MatrixNumber kAType = MatrixNumber::bf16, kBType = MatrixNumber::bf16;
  using A = Words<4>;
  using B = Words<4>;
};

// v_mfma_f32_16x16x32_fp8_fp8: one name, two formats. gfx942 reads FNUZ and gfx950 OCP, so the format is part of the type and each
// target issues its own alone.
template <MatrixNumber Type>
struct MfmaFp8K32 : MfmaShape<32, 8> {
  static_assert(Type == MatrixNumber::e4m3 || Type == MatrixNumber::e4m3_fnuz);
  static constexpr MatrixNumber kAType = Type, kBType = Type;
  using A = Words<2>;
  using B = Words<2>;
};

// v_mfma_scale_f32_16x16x128_f8f6f4 (gfx950): every 32 numbers along K of a row of A (column of B) have an e8m0 scale. Lane l gives that of
// row l % 16 and block l / 16, whatever numbers it holds itself. Layout: AMD's article "Matrix Core Programming on AMD CDNA3 and CDNA4
// architecture" (rocm.blogs.amd.com/software-tools-optimization/matrix-cores-cdna), sections 5.4 and 5.5, told there for 32x32x64 and
// carried over to 16x16x128: e2m1 in one stretch of 32 a lane, e4m3 in two of 16. Triton deals the scales out by the same rule
// (chooseScaledMfmaScaleLayout). Both operands have one type here: with two, their orders of K would differ, which is right in hardware but
// of no use to us yet.
template <MatrixNumber Type>
struct MfmaScaledK128 : MfmaShape<128, Type == MatrixNumber::e2m1 ? 32 : 16> {
  static_assert(Type == MatrixNumber::e4m3 || Type == MatrixNumber::e2m1);
  static constexpr bool kScaled = true;
  static constexpr int kScaleBlock = 32;
  static constexpr MatrixNumber kAType = Type, kBType = Type;
  using A = Words<32 * matrix_number_bits(Type) / 32>;
  using B = A;
  static constexpr Place a_scale(int lane) { return {lane % 16, lane / 16}; }  // row of A, block along K
  static constexpr Place b_scale(int lane) { return {lane / 16, lane % 16}; }  // block along K, column of B
};

// ---- what every table must satisfy

// Whether the lanes hold each of rows x cols elements once.
template <int Lanes, int Rows, int Cols>
constexpr bool holds_each_once(int count, Place (*place)(int lane, int i)) {
  if (Lanes * count != Rows * Cols) return false;
  bool seen[Rows * Cols] = {};
  for (int lane = 0; lane < Lanes; ++lane) {
    for (int i = 0; i < count; ++i) {
      const Place p = place(lane, i);
      if (p.row < 0 || p.row >= Rows || p.col < 0 || p.col >= Cols || seen[p.row * Cols + p.col]) return false;
      seen[p.row * Cols + p.col] = true;
    }
  }
  return true;
}

// Whether each run of kRun numbers lies along K, for A and for B.
template <class I>
constexpr bool runs_along_k() {
  for (int lane = 0; lane < I::lanes; ++lane) {
    for (int i = 0; i < I::kANumbers; ++i) {
      const Place first = I::a(lane, i / I::kRun * I::kRun), p = I::a(lane, i);
      if (p.row != first.row || p.col != first.col + i % I::kRun) return false;
    }
    for (int i = 0; i < I::kBNumbers; ++i) {
      const Place first = I::b(lane, i / I::kRun * I::kRun), p = I::b(lane, i);
      if (p.col != first.col || p.row != first.row + i % I::kRun) return false;
    }
  }
  return true;
}

template <class I>
constexpr bool is_matrix_instruction() {
  return holds_each_once<I::lanes, I::kM, I::kK>(I::kANumbers, &I::a) && holds_each_once<I::lanes, I::kK, I::kN>(I::kBNumbers, &I::b) &&
         holds_each_once<I::lanes, I::kM, I::kN>(I::kAccumulators, &I::c) && runs_along_k<I>() &&
         sizeof(typename I::A) * 8 == static_cast<unsigned>(I::kANumbers * matrix_number_bits(I::kAType)) &&
         sizeof(typename I::B) * 8 == static_cast<unsigned>(I::kBNumbers * matrix_number_bits(I::kBType));
}
static_assert(is_matrix_instruction<MmaSyncBf16>() && is_matrix_instruction<MmaSyncE4m3>());
static_assert(is_matrix_instruction<MfmaBf16K16>() && is_matrix_instruction<MfmaBf16K32>());
static_assert(is_matrix_instruction<MfmaFp8K32<MatrixNumber::e4m3>>() && is_matrix_instruction<MfmaFp8K32<MatrixNumber::e4m3_fnuz>>());
static_assert(is_matrix_instruction<MfmaScaledK128<MatrixNumber::e4m3>>() && is_matrix_instruction<MfmaScaledK128<MatrixNumber::e2m1>>());

}  // namespace ingot::gpu

#if defined(__CUDACC__)
#include "gpu/mma_nvidia.h"
#elif defined(__HIP__)
#include "gpu/mma_amd.h"
#else
#include "gpu/mma_emulated.h"
#endif

namespace ingot::gpu {

// c += a * b, by one warp.
template <class G, class I>
GPU_FN void mma(G& g, I instruction, typename I::C& c, const typename I::A& a, const typename I::B& b) {
  static_assert(G::lanes == I::lanes && !I::kScaled);
  issue_mma(g, instruction, c, a, b);
}

// The same for an instruction with scales: this lane's byte of A's and of B's, e8m0.
template <class G, class I>
GPU_FN void mma(G& g, I instruction, typename I::C& c, const typename I::A& a, const typename I::B& b, uint8_t a_scale, uint8_t b_scale) {
  static_assert(G::lanes == I::lanes && I::kScaled);
  issue_mma(g, instruction, c, a, b, a_scale, b_scale);
}

}  // namespace ingot::gpu
