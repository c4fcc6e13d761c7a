// Weights as the wide products read them: a warp's 16 rows, 128 numbers of K at a time, from the checkpoint's bytes through the warp's own
// slots in shared memory to bf16 fragments. One struct a format. Seen by nvcc alone.
//
// A warp has eight `first` rows and eight `second` rows: lane l = 4 g + t multiplies first row g (fragment words 0 and 2) and second row g
// (words 1 and 3), and of each its numbers 32 t .. 32 t + 31 of the 128, as wide_position() says. Rows are fetched by whichever lanes
// make a fetch whole sectors, so between a fetch and its use there is a warp barrier.
#pragma once

#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/wide_matmul.h"

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

SM90_FN uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
// 16 bytes of a weight's row to shared memory, the rest of its line to L2: the next chunk's.
SM90_FN void copy_weight_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// The rows of the weight that a warp works on. Rows that do not exist are fetched as zeros.
struct WarpRows {
  int64_t base, second;  // the first of the first rows, and of the second rows, which may be of another view
  int pair_step;         // rows from first row g to g + 2
  int odd_step;          // rows from an even g to g + 1
  const WeightView* first_view;
  const WeightView* second_view;

  SM90_FN int64_t first_row(int g) const { return base + g / 2 * pair_step + g % 2 * odd_step; }
  SM90_FN int64_t second_row(int g) const { return second + g / 2 * pair_step + g % 2 * odd_step; }
};

// The weight rows of a warp in tile `pair` of 128. Gated: eight rows of the gate and the same of the other weight, those which are 16
// bytes of y in wide order. Else 16 rows in a row, in an order that makes a lane's results neighbours.
SM90_FN WarpRows warp_rows(const WideMatmulParams& p, int expert, int pair, int warp) {
  WarpRows r;
  r.first_view = p.weights == nullptr ? &p.weight : p.weights + expert;
  r.second_view = r.first_view;
  const int64_t sixteen = static_cast<int64_t>(pair) * 8 + warp;
  if (p.output == WideOutput::gated) {
    r.second_view = p.weights == nullptr ? &p.up_weight : p.up_weights + expert;
    const int in_chunk = static_cast<int>(sixteen % 16);  // 8 numbers: step in_chunk / 2, half in_chunk % 2
    r.base = sixteen / 16 * kWideChunk + 8 * (in_chunk / 4) + 2 * (in_chunk / 2 % 2) + in_chunk % 2;
    r.second = r.base;
    r.pair_step = 32;
    r.odd_step = 4;
  } else {
    r.base = sixteen * 16;
    const bool f32 = p.output != WideOutput::bf16;
    r.second = r.base + (f32 ? 8 : 2);
    r.pair_step = f32 ? 2 : 4;
    r.odd_step = 1;
  }
  return r;
}

// Fetches `kPieces` pieces of 16 bytes of each row and chunk. Instruction i moves piece lane % kPieces of row lane / kPieces + i * kRows.
// Little state: the matrix instruction leaves few registers.
template <int kPieces>
struct RowFetch {
  static constexpr int kRows = 32 / kPieces;      // rows an instruction
  static constexpr int kEach = 8 / kRows;         // instructions for eight rows
  static constexpr int kNumbers = 128 / kPieces;  // numbers in a piece
  const uint8_t* first;                           // this lane's piece of its first of the first rows, in the next chunk
  const uint8_t* second;
  uint32_t valid;  // bit i: the first rows' instruction i has a row; bit 8 + i: the second's

  SM90_FN void start(const WideMatmulParams& p, const WarpRows& rows, int lane) {
    const int row = lane / kPieces, piece = lane % kPieces;
    const int64_t pitch = p.k * kPieces / 8;  // kPieces * 16 bytes for 128 numbers
    first = rows.first_view->data + rows.first_row(row) * pitch + piece * 16;
    second = rows.second_view->data + rows.second_row(row) * pitch + piece * 16;
    valid = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      valid |= (rows.first_row(row + i * kRows) < p.n ? 1u : 0u) << i | (rows.second_row(row + i * kRows) < p.n ? 1u : 0u) << (8 + i);
    }
  }
  // `left`: numbers of K from this chunk on. place(row, piece): byte offset in the slot of a piece of row 0..15.
  template <class Place>
  SM90_FN void next(const WideMatmulParams& p, uint32_t slot, int left, int lane, Place place) {
    const int row = lane / kPieces, piece = lane % kPieces;
    const int rows_on = kRows / 2 * (p.output == WideOutput::gated ? 32 : p.output == WideOutput::bf16 ? 4 : 2);
    const int64_t step = kEach == 1 ? 0 : rows_on * (p.k * kPieces / 8);
    const bool inside = left > piece * kNumbers;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = row + i * kRows;
      const bool a = inside && (valid >> i & 1u) != 0, b = inside && (valid >> (8 + i) & 1u) != 0;
      copy_weight_16(slot + place(r, piece), a ? static_cast<const void*>(first + i * step) : p.x, a);  // or nothing is read
      copy_weight_16(slot + place(r + 8, piece), b ? static_cast<const void*>(second + i * step) : p.x, b);
    }
    first += kPieces * 16;
    second += kPieces * 16;
  }
};

struct WideMxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::mxfp4;
  static constexpr bool kBlockScales = false;
  static constexpr uint32_t kScales = 16 * 64;  // where a slot's scales begin

  struct Fetch {
    RowFetch<4> rows;
    const uint8_t* scales;  // of row lane % 16, in the next chunk; null where the row does not exist

    SM90_FN void start(const WideMatmulParams& p, const WarpRows& r, int lane) {
      rows.start(p, r, lane);
      const bool upper = (lane & 8) != 0;
      const int64_t row = upper ? r.second_row(lane % 8) : r.first_row(lane % 8);
      scales = row < p.n ? (upper ? r.second_view : r.first_view)->scale + row * (p.k / 32) : nullptr;
    }
    SM90_FN void next(const WideMatmulParams& p, uint32_t slot, int left, int lane) {
      rows.next(p, slot, left, lane, [](int row, int piece) { return static_cast<uint32_t>(row * 64 + piece * 16); });
      if (lane < 16) {
        const uint32_t to = slot + kScales + static_cast<uint32_t>(lane) * 4;
        if (scales == nullptr) {
          store_shared(to, 0u);
        } else if (left >= 128 && (reinterpret_cast<uint64_t>(scales) & 3) == 0) {
          copy_async_4(to, scales);
        } else {
          uint32_t word = 0;
          for (int i = 0; i < 4; ++i) {
            if (32 * i < left) word |= static_cast<uint32_t>(scales[i]) << (8 * i);
          }
          store_shared(to, word);
        }
      }
      if (scales != nullptr) scales += 4;
    }
  };

  uint4 first, second;                   // 32 numbers each
  uint32_t first_factor, second_factor;  // bf16 pairs, which also make up for the exponent's place
  bool large;                            // a factor of some lane does not fit: 2^(scale - 1) with scale > 128

  SM90_FN void load(uint32_t slot, int lane) {
    first = load_shared_16(slot + static_cast<uint32_t>(lane) * 16);
    second = load_shared_16(slot + 512 + static_cast<uint32_t>(lane) * 16);
    const uint32_t first_scale = load_shared_byte(slot + kScales + static_cast<uint32_t>(lane));
    const uint32_t second_scale = load_shared_byte(slot + kScales + 32 + static_cast<uint32_t>(lane));
    first_factor = factor(first_scale);
    second_factor = factor(second_scale);
    large = __any_sync(0xffffffffu, (first_scale > 128) | (second_scale > 128));
  }
  // A number's bits are put where bf16 has its sign, the low end of its exponent and the top of its fraction: 2^-126 of its value.
  SM90_FN static uint32_t factor(uint32_t scale) { return min(scale + 126, 254u) * 0x00800080u; }
  // What is left above: 2^(scale - 128), or NaN for NaN.
  SM90_FN static uint32_t rest(uint32_t scale) { return scale == 255 ? 0x7fc07fc0u : max(scale, 128u) * 0x00800080u - 0x00800080u; }
  template <int i>
  SM90_FN static uint32_t pair(uint32_t word, uint32_t factor) {  // numbers i and i + 4 of eight
    const uint32_t at = i < 2 ? word : word >> 8;
    const uint32_t codes = at & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
    const uint32_t bits = codes * (i % 2 == 0 ? 0x1040u : 0x0104u);  // sign to 15, the rest to 8..6
    return mul_bf16x2(bits & 0x81c081c0u, factor);
  }
  // Four steps of 16: numbers 16 half .. 16 half + 15 of each lane's 32.
  SM90_FN void unpack(int half, uint32_t (&a)[16], uint32_t slot, int lane) const {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t x = half == 0 ? (w == 0 ? first.x : first.y) : (w == 0 ? first.z : first.w);
      const uint32_t y = half == 0 ? (w == 0 ? second.x : second.y) : (w == 0 ? second.z : second.w);
      a[8 * w + 0] = pair<0>(x, first_factor);
      a[8 * w + 1] = pair<0>(y, second_factor);
      a[8 * w + 2] = pair<1>(x, first_factor);
      a[8 * w + 3] = pair<1>(y, second_factor);
      a[8 * w + 4] = pair<2>(x, first_factor);
      a[8 * w + 5] = pair<2>(y, second_factor);
      a[8 * w + 6] = pair<3>(x, first_factor);
      a[8 * w + 7] = pair<3>(y, second_factor);
    }
    if (large) {
      const uint32_t x = rest(load_shared_byte(slot + kScales + static_cast<uint32_t>(lane)));
      const uint32_t y = rest(load_shared_byte(slot + kScales + 32 + static_cast<uint32_t>(lane)));
#pragma unroll
      for (int i = 0; i < 16; ++i) a[i] = mul_bf16x2(a[i], i % 2 == 0 ? x : y);
    }
  }
};

struct WideFp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8_block;
  static constexpr bool kBlockScales = true;

  // Rows lie 128 bytes apart; pieces are exchanged by row so that eight lanes' reads meet different banks.
  SM90_FN static uint32_t place(int row, int piece) { return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 1)) * 16)); }

  struct Fetch {
    RowFetch<8> rows;
    SM90_FN void start(const WideMatmulParams& p, const WarpRows& r, int lane) { rows.start(p, r, lane); }
    SM90_FN void next(const WideMatmulParams& p, uint32_t slot, int left, int lane) { rows.next(p, slot, left, lane, place); }
  };

  SM90_FN void load(uint32_t, int) {}
  template <int i>
  SM90_FN static uint32_t pair(uint32_t low, uint32_t high) {  // number i of each word
    const uint32_t tops = permute_bytes(low, high, i << 4 | i | (4 + i) << 12 | (4 + i) << 8);
    return mul_bf16x2((tops & 0x80008000u) | (tops >> 4 & 0x07f007f0u), 0x7b807b80u);  // 2^120
  }
  SM90_FN void unpack(int half, uint32_t (&a)[16], uint32_t slot, int lane) const {
    const int g = lane / 4, t = lane % 4;
    const uint4 first = load_shared_16(slot + place(g, 2 * t + half));
    const uint4 second = load_shared_16(slot + place(g + 8, 2 * t + half));
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t x0 = w == 0 ? first.x : first.z, x1 = w == 0 ? first.y : first.w;
      const uint32_t y0 = w == 0 ? second.x : second.z, y1 = w == 0 ? second.y : second.w;
      a[8 * w + 0] = pair<0>(x0, x1);
      a[8 * w + 1] = pair<0>(y0, y1);
      a[8 * w + 2] = pair<1>(x0, x1);
      a[8 * w + 3] = pair<1>(y0, y1);
      a[8 * w + 4] = pair<2>(x0, x1);
      a[8 * w + 5] = pair<2>(y0, y1);
      a[8 * w + 6] = pair<3>(x0, x1);
      a[8 * w + 7] = pair<3>(y0, y1);
    }
  }
};

struct WideBf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kBlockScales = false;

  // Rows lie 256 bytes apart. Lane t reads pieces 4 t + j of rows g: this order sends the eight lanes of two rows to different banks.
  SM90_FN static uint32_t place(int row, int piece) {
    return static_cast<uint32_t>(row * 256 + ((piece ^ (piece >> 2 & 3) ^ ((row & 1) << 2)) * 16));
  }

  struct Fetch {
    RowFetch<16> rows;
    SM90_FN void start(const WideMatmulParams& p, const WarpRows& r, int lane) { rows.start(p, r, lane); }
    SM90_FN void next(const WideMatmulParams& p, uint32_t slot, int left, int lane) { rows.next(p, slot, left, lane, place); }
  };

  SM90_FN void load(uint32_t, int) {}
  SM90_FN void unpack(int half, uint32_t (&a)[16], uint32_t slot, int lane) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint4 x = load_shared_16(slot + place(g, 4 * t + 2 * half + w));
      const uint4 y = load_shared_16(slot + place(g + 8, 4 * t + 2 * half + w));
      a[8 * w + 0] = permute_bytes(x.x, x.z, 0x5410);
      a[8 * w + 1] = permute_bytes(y.x, y.z, 0x5410);
      a[8 * w + 2] = permute_bytes(x.x, x.z, 0x7632);
      a[8 * w + 3] = permute_bytes(y.x, y.z, 0x7632);
      a[8 * w + 4] = permute_bytes(x.y, x.w, 0x5410);
      a[8 * w + 5] = permute_bytes(y.y, y.w, 0x5410);
      a[8 * w + 6] = permute_bytes(x.y, x.w, 0x7632);
      a[8 * w + 7] = permute_bytes(y.y, y.w, 0x7632);
    }
  }
};

}  // namespace ingot::kernels::sm90

#endif
