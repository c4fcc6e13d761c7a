// The product of one item of weights (a chunk of K of 16 rows, or of several times 16) with x, for the stream kernels: both lie in shared
// memory, weights as they are in the checkpoint, x in bf16 laid out as the B operands of m16n8k16. Weights are the A operand.
//
// The order of K inside a chunk is the same for both operands and follows the bytes: a lane has 16 neighbouring bytes of its row (a piece),
// every 8 numbers of which (a slot) feed two instructions, so neither operand is ever shuffled.
#pragma once

#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/stream_matmul.h"
#include "kernels/native/sm90/stream_ptx.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// ---- formats: in a chunk a lane has kPieces of 16 bytes of a row, each of kSlotsOfPiece slots

struct StreamMxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::mxfp4;
  static constexpr int kPieces = 1, kSlotsOfPiece = 4;
  static constexpr bool kScaleWords = true, kChunkScales = false;
  // Numbers of a word of eight go into pairs (i, i + 4): both are found by one shift and mask.
  static constexpr int kPairStep = 4;
};

struct StreamFp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8_block;
  static constexpr int kPieces = 2, kSlotsOfPiece = 2;
  static constexpr bool kScaleWords = true, kChunkScales = true;
  static constexpr int kPairStep = 1;
};

struct StreamBf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr int kPieces = 2, kSlotsOfPiece = 1;
  static constexpr bool kScaleWords = false, kChunkScales = false;
  static constexpr int kPairStep = 1;
};

SM90_FN uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Copies the e8m0 scales of a row and chunk that may lie anywhere, or end with K within their word.
SM90_FN void copy_scale_bytes(const uint8_t* from, int k, int chunk, uint32_t to) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    if (chunk * 4 + i < k / 32) word |= static_cast<uint32_t>(from[i]) << (i * 8);
  }
  store_shared(to, word);
}
// The word of scales of a row and chunk, which is at `from`: four e8m0, or a float.
template <class F>
SM90_FN void copy_scales(const uint8_t* from, int k, int chunk, uint32_t to) {
  if (F::kChunkScales || (k % 128 == 0 && reinterpret_cast<uint64_t>(from) % 4 == 0))
    copy_async_4(to, from);
  else
    copy_scale_bytes(from, k, chunk, to);
}

// kTiles tiles of 16 rows of weights by kColumns groups of eight rows of x. `from` and `x` are the lane's addresses of the item's first
// piece and of the chunk's first slot; slots of x are kColumns * 512 bytes each, a group's 512 together. `acc` may have more groups.
template <class F, int kTiles, int kColumns>
struct StreamMultiply {
  static constexpr int kSlots = F::kPieces * F::kSlotsOfPiece;

  template <int kGroups>
  SM90_FN static void run(uint32_t from, uint32_t x, uint32_t scale, int lane, float (&acc)[kTiles][kGroups][4]) {
    static_assert(kColumns <= kGroups);
    if constexpr (F::kFormat == WeightFormat::mxfp4) {
      uint32_t e8m0[kTiles][2];
      uint32_t largest = 0;
      for (int m = 0; m < kTiles; ++m) {
        for (int half = 0; half < 2; ++half) {
          e8m0[m][half] = load_shared_byte(scale + static_cast<uint32_t>((m * 2 + half) * 32 + lane));  // row g, block t
          largest = largest > e8m0[m][half] ? largest : e8m0[m][half];
        }
      }
      if (__any_sync(kAllLanes, largest > kMxfp4OneFactor))
        run_mxfp4<true>(from, x, e8m0, acc);
      else
        run_mxfp4<false>(from, x, e8m0, acc);
    } else if constexpr (F::kFormat == WeightFormat::fp8_block) {
      float part[kTiles][kColumns][4] = {};
      for (int i = 0; i < F::kPieces; ++i) {
        uint4 w[kTiles][2];
        load_pieces(from, i, w);
        for (int s = 0; s < F::kSlotsOfPiece; ++s) {
          uint32_t a[kTiles][2][4];
          for (int m = 0; m < kTiles; ++m) {
            for (int j = 0; j < 2; ++j) {
              const uint32_t low = word_of(w[m][0], s * 2 + j), high = word_of(w[m][1], s * 2 + j);
              a[m][j][0] = bf16_of_e4m3(static_cast<uint16_t>(low)), a[m][j][1] = bf16_of_e4m3(static_cast<uint16_t>(high));
              a[m][j][2] = bf16_of_e4m3(static_cast<uint16_t>(low >> 16)), a[m][j][3] = bf16_of_e4m3(static_cast<uint16_t>(high >> 16));
            }
          }
          slot(x, i * F::kSlotsOfPiece + s, a, part);
        }
      }
      for (int m = 0; m < kTiles; ++m) {
        for (int half = 0; half < 2; ++half) {
          const float s = load_shared_float(scale + static_cast<uint32_t>(((m * 2 + half) * 8 + lane / 4) * 4));
          for (int c = 0; c < kColumns; ++c) {
            for (int e = half * 2; e < half * 2 + 2; ++e) acc[m][c][e] = fmaf(s, part[m][c][e], acc[m][c][e]);
          }
        }
      }
    } else {
      for (int i = 0; i < F::kPieces; ++i) {
        uint4 w[kTiles][2];
        load_pieces(from, i, w);
        uint32_t a[kTiles][2][4];
        for (int m = 0; m < kTiles; ++m) {
          a[m][0][0] = w[m][0].x, a[m][0][1] = w[m][1].x, a[m][0][2] = w[m][0].y, a[m][0][3] = w[m][1].y;
          a[m][1][0] = w[m][0].z, a[m][1][1] = w[m][1].z, a[m][1][2] = w[m][0].w, a[m][1][3] = w[m][1].w;
        }
        slot(x, i, a, acc);
      }
    }
  }

 private:
  // The two instructions of a slot, for all tiles and columns.
  template <int kGroups>
  SM90_FN static void slot(uint32_t x, int s, const uint32_t (&a)[kTiles][2][4], float (&acc)[kTiles][kGroups][4]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint4 b = load_shared_16(x + static_cast<uint32_t>((s * kColumns + c) * 512));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma_bf16(acc[m][c], a[m][0], b.x, b.y);
        mma_bf16(acc[m][c], a[m][1], b.z, b.w);
      }
    }
  }

  SM90_FN static void load_pieces(uint32_t from, int i, uint4 (&w)[kTiles][2]) {
    for (int m = 0; m < kTiles; ++m) {
      for (int half = 0; half < 2; ++half)
        w[m][half] = load_shared_16(from + static_cast<uint32_t>(((m * 2 + half) * F::kPieces + i) * 512));
    }
  }

  template <bool kLarge, int kGroups>
  SM90_FN static void run_mxfp4(uint32_t from, uint32_t x, const uint32_t (&e8m0)[kTiles][2], float (&acc)[kTiles][kGroups][4]) {
    uint4 w[kTiles][2];
    uint32_t factor[kTiles][2], more[kTiles][2];
    load_pieces(from, 0, w);
    for (int m = 0; m < kTiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        factor[m][half] = kLarge ? mxfp4_first_factor(e8m0[m][half]) : mxfp4_factor(e8m0[m][half]);
        more[m][half] = kLarge ? mxfp4_second_factor(e8m0[m][half]) : 0;
      }
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      uint32_t a[kTiles][2][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t pairs[4];
          codes_of_mxfp4(word_of(w[m][half], s), pairs);
          for (int i = 0; i < 4; ++i) {
            pairs[i] = mul_bf16x2(pairs[i], factor[m][half]);
            if (kLarge) pairs[i] = mul_bf16x2(pairs[i], more[m][half]);
            a[m][i / 2][i % 2 * 2 + half] = pairs[i];
          }
        }
      }
      slot(x, s, a, acc);
    }
  }
};

}  // namespace ingot::kernels::sm90

#endif
