// The wide products (wide_matmul.h). A block is four warps that fetch rows of x and two warpgroups that multiply, each 64 weight rows by
// a tile of x's rows. Blocks stay for the whole product and take the items (tile of x, pairs of weight tiles) in turn.
//
// x goes through a ring of slots, 64 numbers of K each, guarded by full/empty barriers. Weights go through slots of each warp's own, filled
// by the warp itself some chunks ahead, so the warpgroups are tied together by x alone: while one writes its results, the other multiplies.
#include "kernels/native/sm90/wide_matmul.h"

#include "kernels/native/sm90/ptx.h"
#include "kernels/native/sm90/wide_formats.h"
#include "kernels/native/sm90/wide_wgmma.h"

namespace ingot::kernels::sm90 {
namespace {

using Params = WideMatmulParams;

constexpr int kProducers = 128;  // threads; the multiplying warpgroups come after them
constexpr int kThreads = 384;
constexpr int kConsumerWarps = 8;

// Arrives when all copies that this thread has asked for so far are done; the barrier counts on it from the start.
SM90_FN void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
SM90_FN uint32_t transpose_8x8(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}
// The compiler takes no read of c from before here to after it, or back: the matrix unit writes c behind its back.
template <int kCount>
SM90_FN void pin(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// The widths of one kernel.
template <int... kWidths>
struct Tiles {
  // The smallest width of at least `rows`.
  SM90_FN static int width(int rows) {
    int best = 0;
    ((best = rows <= kWidths ? kWidths : best), ...);
    return best;
  }
  // body.operator()<width>() for each of the widths, which are in descending order.
  template <class Body>
  SM90_FN static void each(Body body) {
    (body.template operator()<kWidths>(), ...);
  }
};

// Offsets in shared memory; addresses are recomputed rather than kept, for registers are scarce.
template <class Format_, class Widths_, bool kFew>
struct Kernel {
  using Format = Format_;
  using Widths = Widths_;
  static constexpr int kDepth = wide_depth(Format::kFormat, kFew);
  static constexpr int kSlotBytes = wide_slot_bytes(Format::kFormat);
  static constexpr WideShared kAt = wide_shared(Format::kFormat, kFew);
  static constexpr uint32_t kWarpBytes = kDepth * kSlotBytes;
};

SM90_FN uint32_t shared_start() {
  extern __shared__ uint8_t dynamic[];
  return (shared_address(dynamic) + 1023) & ~1023u;
}
SM90_FN int get(uint32_t address) { return static_cast<int>(load_shared_word(address)); }
SM90_FN void set(uint32_t address, int v) { store_shared(address, static_cast<uint32_t>(v)); }
SM90_FN uint32_t word(int index) { return static_cast<uint32_t>(index) * 4; }

SM90_FN int begin_of(const Params& p, int expert) { return p.offsets == nullptr ? 0 : p.offsets[expert]; }
SM90_FN int rows_of(const Params& p, int expert) {
  return p.offsets == nullptr ? static_cast<int>(p.num_rows) : p.offsets[expert + 1] - p.offsets[expert];
}

// All threads: the order of the experts, those with the widest tiles first, so that what is left at the end is small. An expert's
// tiles are all of one width, the smallest that needs no tile more than the largest would.
template <class K>
SM90_FN void order_tiles(const Params& p, uint32_t shared) {
  const int count = static_cast<int>(p.num_experts), most = p.tiling.max_tile;
  const uint32_t keys = shared + K::kAt.key;
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kThreads) {
    const int rows = rows_of(p, e), tiles = (rows + most - 1) / most;
    set(keys + word(e), tiles == 0 ? 0 : K::Widths::width((rows + tiles - 1) / tiles) << 20 | tiles);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kThreads) {
    const int key = get(keys + word(e)), width = key >> 20;
    int place = 0, first = 0;
#pragma unroll 8
    for (int other = 0; other < count; ++other) {
      const int its = get(keys + word(other)), its_width = its >> 20;
      const bool before = its_width > width || (its_width == width && other < e);
      place += before ? 1 : 0;
      first += before ? its & 0xfffff : 0;
    }
    set(shared + K::kAt.expert + word(place), e);
    set(shared + K::kAt.first_tile + word(place), first);
    if (place == count - 1) set(shared + K::kAt.first_tile + word(count), first + (key & 0xfffff));
  }
  __syncthreads();
}

struct Item {
  int expert, width;  // the matrix instruction's width
  int row, rows;      // of the permuted rows: this tile's, at most width
  int pair, end;      // tiles of 128 weight rows
};

// The block's next item; false when there is none left. The order turns at the end of each round over the blocks: the items get smaller.
template <class K>
SM90_FN bool next_item(const Params& p, uint32_t shared, int& round, Item& item) {
  const int pairs = static_cast<int>(p.output == WideOutput::gated ? wide_cols(p.n) / 64 : (p.n + 127) / 128);
  const int groups = (pairs + p.tiling.pairs_per_item - 1) / p.tiling.pairs_per_item;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int index = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  const uint32_t first_tile = shared + K::kAt.first_tile;
  ++round;
  if (index >= get(first_tile + word(static_cast<int>(p.num_experts))) * groups) return false;
  const int tile = index / groups, group = index % groups;
  int low = 0, high = static_cast<int>(p.num_experts) - 1;  // the last place whose first tile is not after `tile`
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (get(first_tile + word(middle)) <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  item.expert = get(shared + K::kAt.expert + word(low));
  item.width = get(shared + K::kAt.key + word(item.expert)) >> 20;
  const int from = (tile - get(first_tile + word(low))) * item.width;
  item.row = begin_of(p, item.expert) + from;
  item.rows = min(rows_of(p, item.expert) - from, item.width);
  item.pair = group * p.tiling.pairs_per_item;
  item.end = min(item.pair + p.tiling.pairs_per_item, pairs);
  return true;
}

// A place in the ring of x's slots.
struct Ring {
  int slot = 0;
  uint32_t phase = 0;
  SM90_FN void advance(int stages) {
    if (++slot == stages) slot = 0, phase ^= 1;
  }
};

// The fetching warps: x's rows, tile by tile. Eight threads bring 128 bytes of a row; a thread has every 16th row.
template <class K>
SM90_FN void produce(const Params& p, uint32_t shared) {
  int round = 0;
  Ring ring;
  const int lane_row = static_cast<int>(threadIdx.x) / 8, piece = static_cast<int>(threadIdx.x) % 8;
  const uint32_t place = static_cast<uint32_t>(lane_row * 128 + ((piece ^ (lane_row & 7)) * 16));
  const int steps = static_cast<int>(wide_cols(p.k) / 64);
  Item item;
  while (next_item<K>(p, shared, round, item)) {
    // Where the rows begin, in units of 16 bytes from x. The eight threads of a row are one warp's.
    __syncwarp();
    for (int row = lane_row + 16 * piece; row < item.rows; row += 128) {
      uint32_t from = static_cast<uint32_t>(item.row + row);
      if (p.order != nullptr) from = static_cast<uint32_t>(p.order[from]) / static_cast<uint32_t>(p.rows_per_source);
      set(shared + K::kAt.source + word(row), static_cast<int>(from * static_cast<uint32_t>(p.x_stride / 8)));
    }
    __syncwarp();
    const uint32_t source = shared + K::kAt.source + word(lane_row);
    const uint4* x = reinterpret_cast<const uint4*>(p.x) + piece;
    for (int step = 0; step < steps; ++step, x += 8) {
      wait_barrier(shared + K::kAt.empty + static_cast<uint32_t>(ring.slot) * 8, ring.phase ^ 1);
      const uint32_t to = shared + K::kAt.x + static_cast<uint32_t>(ring.slot * p.tiling.max_tile) * 128 + place;
#pragma unroll
      for (int i = 0; i < 16; ++i) {  // rows that do not exist keep what the slot had: each row of x touches its own row of y alone
        if (lane_row + 16 * i < item.rows)
          copy_async_16(to + static_cast<uint32_t>(i) * 2048, x + static_cast<uint32_t>(get(source + word(16 * i))));
      }
      arrive_after_copies(shared + K::kAt.full + static_cast<uint32_t>(ring.slot) * 8);
      ring.advance(p.tiling.stages);
    }
  }
  wait_copies<0>();
}

// A warp's weights, fetched ahead: through the items and their tiles as the products will ask for them. What is needed once a tile is in
// shared memory: 0 the round of the next item, 4 the expert, 8 the pair, 12 the end of the item's pairs.
template <class K>
struct WeightStream {
  typename K::Format::Fetch fetch;
  int left = 0;  // numbers of K that are still to be fetched in the tile; negative: no tile is left

  // Asks for one more chunk, for slot `slot`.
  SM90_FN void next(const Params& p, uint32_t shared, int slot, int warp, int lane) {
    if (left == 0) {
      const uint32_t state = shared + K::kAt.state + static_cast<uint32_t>(warp) * 32;
      int pair = get(state + 8) + 1;
      if (pair >= get(state + 12)) {
        Item item;
        int round = get(state);
        if (next_item<K>(p, shared, round, item)) {
          __syncwarp();
          set(state, round);
          set(state + 4, item.expert);
          set(state + 12, item.end);
          pair = item.pair;
        } else {
          left = -1;
        }
      }
      if (left == 0) {
        __syncwarp();
        set(state + 8, pair);
        __syncwarp();
        fetch.start(p, warp_rows(p, get(state + 4), pair, warp), lane);
        left = static_cast<int>(wide_cols(p.k));
      }
    }
    if (left > 0) {
      const uint32_t to =
          shared + K::kAt.weights + static_cast<uint32_t>(warp) * K::kWarpBytes + static_cast<uint32_t>(slot * K::kSlotBytes);
      fetch.next(p, to, left - static_cast<int>(wide_cols(p.k) - p.k), lane);
      left -= kWideChunk;
    }
    commit_copies();  // one group a chunk, or the count of those under way would be wrong
  }
};

SM90_FN float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// One thread adds to an element, once: the sum has one order. The addition is done by the L2, which nobody waits for.
SM90_FN void put(float* to, float value, bool add) {
  if (add)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
  else
    *to = value;
}

// Writes a warp's part of y. c as Wgmma has it: row l/4 is first row l/4, l/4 + 8 second row l/4; columns are rows of x. Addresses are
// stepped, not computed, for want of registers.
template <int N>
SM90_FN void write(const Params& p, const Item& item, int pair, int warp, int lane, const float (&c)[N / 2]) {
  const int g = lane / 4, t = lane % 4;
  const int64_t sixteen = static_cast<int64_t>(pair) * kConsumerWarps + warp;
  if (p.output == WideOutput::gated) {
    uint16_t* y = static_cast<uint16_t*>(p.y) + (item.row + g) * p.y_stride + sixteen * 8 + 2 * t;
    int left = item.rows - g;
#pragma unroll
    for (int j = 0; j < N / 8; ++j, y += 8 * p.y_stride, left -= 8) {
      const float low = silu(c[4 * j]) * c[4 * j + 2], high = silu(c[4 * j + 1]) * c[4 * j + 3];
      const uint32_t h = transpose_8x8(pack_bf16(low, high));  // row of x 8 j + g, numbers 2 t and 2 t + 1 of the 8
      if (left > 0) *reinterpret_cast<uint32_t*>(y) = h;
    }
  } else if (p.output == WideOutput::bf16) {
    const int64_t n = sixteen * 16 + 4 * t;
    uint16_t* y = static_cast<uint16_t*>(p.y) + (item.row + g) * p.y_stride + n;
    int left = item.rows - g;
    const bool whole = n + 4 <= p.n && ((reinterpret_cast<uint64_t>(p.y) | static_cast<uint64_t>(p.y_stride * 2)) & 7) == 0;
#pragma unroll
    for (int j = 0; j < N / 8; ++j, y += 8 * p.y_stride, left -= 8) {
      const uint32_t low = transpose_8x8(pack_bf16(c[4 * j], c[4 * j + 1]));
      const uint32_t high = transpose_8x8(pack_bf16(c[4 * j + 2], c[4 * j + 3]));
      if (left > 0 && whole) *reinterpret_cast<uint2*>(y) = make_uint2(low, high);
      if (left > 0 && !whole) {
        for (int i = 0; i < 4; ++i) {
          if (n + i < p.n) y[i] = static_cast<uint16_t>((i < 2 ? low : high) >> (i % 2 * 16));
        }
      }
    }
  } else {
    const bool add = p.output == WideOutput::f32_add;
    float* y = static_cast<float*>(p.y) + (item.row + 2 * t) * p.y_stride + sixteen * 16 + g;
    const bool second = sixteen * 16 + g + 8 < p.n;
    int left = sixteen * 16 + g < p.n ? item.rows - 2 * t : 0;
#pragma unroll
    for (int j = 0; j < N / 8; ++j, y += 6 * p.y_stride, left -= 8) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd, y += p.y_stride) {
        if (left <= odd) continue;
        put(y, c[4 * j + odd], add);
        if (second) put(y + 8, c[4 * j + 2 + odd], add);
      }
    }
  }
}

// The block scales of a thread's two rows, one chunk ahead.
struct BlockScales {
  const float* first;
  const float* second;
  float next_first, next_second;

  SM90_FN void start(const Params& p, const WarpRows& r, int g) {
    const int64_t columns = (p.k + 127) / 128;
    first = row(*r.first_view, r.first_row(g), columns);
    second = row(*r.second_view, r.second_row(g), columns);
    next_first = *first;
    next_second = *second;
  }
  SM90_FN void next(bool more, float& first_scale, float& second_scale) {
    first_scale = next_first;
    second_scale = next_second;
    if (more) {
      next_first = *++first;
      next_second = *++second;
    }
  }
  SM90_FN static const float* row(const WeightView& v, int64_t n, int64_t columns) {
    return reinterpret_cast<const float*>(v.scale) + (v.first_row + min(n, v.rows - 1)) / 128 * columns;
  }
};

// One item: a tile of x by some pairs of weight tiles, of which this warpgroup has one each. `slot` is the next of the weights' slots.
template <class K, int N>
SM90_FN void multiply(const Params& p, uint32_t shared, const Item& item, WeightStream<K>& stream, Ring& ring, int& slot, int warp,
                      int lane) {
  using Format = typename K::Format;
  const Ring start = ring;
  for (int pair = item.pair; pair < item.end; ++pair) {
    const bool last = pair == item.end - 1;  // x's slots are free after it
    ring = start;
    float c[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) c[i] = 0.0f;
    float total[Format::kBlockScales ? N / 2 : 1];
    BlockScales scales;
    if constexpr (Format::kBlockScales) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[i] = 0.0f;
      scales.start(p, warp_rows(p, item.expert, pair, warp), lane / 4);
    }
    uint32_t used = 0;  // the barrier of the slot whose products may still be running
    for (int left = static_cast<int>(wide_cols(p.k)); left > 0; left -= kWideChunk) {
      __syncwarp();  // all lanes have read the slot that is filled now
      stream.next(p, shared, slot == 0 ? K::kDepth - 1 : slot - 1, warp, lane);
      wait_copies<K::kDepth - 1>();
      __syncwarp();  // all lanes' copies are there
      const uint32_t from =
          shared + K::kAt.weights + static_cast<uint32_t>(warp) * K::kWarpBytes + static_cast<uint32_t>(slot * K::kSlotBytes);
      slot = slot == K::kDepth - 1 ? 0 : slot + 1;
      Format weights;
      weights.load(from, lane);
      float first_scale = 0.0f, second_scale = 0.0f;
      if constexpr (Format::kBlockScales) scales.next(left > kWideChunk, first_scale, second_scale);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[16];
        weights.unpack(half, a, from, lane);
        wait_barrier(shared + K::kAt.full + static_cast<uint32_t>(ring.slot) * 8, ring.phase);
        fence_proxy();  // x came by plain copies, the matrix unit reads as the copy engine does
        wgmma_fence();
        const uint64_t x = swizzled_rows(shared + K::kAt.x + static_cast<uint32_t>(ring.slot * p.tiling.max_tile) * 128);
#pragma unroll
        for (int step = 0; step < 4; ++step) Wgmma<N>::run(c, a + 4 * step, x + 2 * step, !Format::kBlockScales || half + step > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (last && used != 0 && lane == 0) arrive(used);
        used = shared + K::kAt.empty + static_cast<uint32_t>(ring.slot) * 8;
        ring.advance(p.tiling.stages);
      }
      if constexpr (Format::kBlockScales) {
        wgmma_wait<0>();
        pin(c);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] += (i % 4 < 2 ? first_scale : second_scale) * c[i];
      }
    }
    wgmma_wait<0>();
    pin(c);
    if (last && lane == 0) arrive(used);
    if constexpr (Format::kBlockScales)
      write<N>(p, item, pair, warp, lane, total);
    else
      write<N>(p, item, pair, warp, lane, c);
  }
}

template <class K>
SM90_FN void consume(const Params& p, uint32_t shared) {
  const int warp = static_cast<int>(threadIdx.x - kProducers) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  WeightStream<K> stream;
  if (lane < 8) set(shared + K::kAt.state + static_cast<uint32_t>(warp) * 32 + word(lane), 0);
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < K::kDepth - 1; ++i) stream.next(p, shared, i, warp, lane);
  int round = 0, slot = 0;
  Ring ring;
  Item item;
  bool more = next_item<K>(p, shared, round, item);
  // The items come in this order of widths, and a loop for each costs fewer registers than a switch within one loop.
  K::Widths::each([&]<int N>() {
    while (more && item.width == N) {
      multiply<K, N>(p, shared, item, stream, ring, slot, warp, lane);
      more = next_item<K>(p, shared, round, item);
    }
  });
  wait_copies<0>();
}

template <class K>
SM90_FN void wide_matmul(const Params& p) {
  const uint32_t shared = shared_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.tiling.stages; ++i) {
      init_barrier(shared + K::kAt.full + static_cast<uint32_t>(i) * 8, kProducers);
      init_barrier(shared + K::kAt.empty + static_cast<uint32_t>(i) * 8, kConsumerWarps);
    }
    fence_barrier_init();
  }
  order_tiles<K>(p, shared);  // ends with a block barrier
  // 384 threads of 168 registers; the products need more, the copies less.
  if (threadIdx.x < kProducers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<K>(p, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<K>(p, shared);
  }
}

using Wide = Tiles<256, 224, 192, 160, 144, 128, 96, 64>;
using WideFor2 = Tiles<128, 96, 64>;  // formats that keep two sums
using Few = Tiles<64, 48, 32, 16>;

}  // namespace

#define INGOT_WIDE(NAME, FORMAT, WIDTHS, FEW)                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) ingot_Sm90##NAME(const __grid_constant__ Params p) { \
    start_after_previous();                                                                                      \
    wide_matmul<Kernel<FORMAT, WIDTHS, FEW>>(p);                                                                 \
  }

INGOT_WIDE(WideMatmulMxfp4, WideMxfp4, Wide, false)
INGOT_WIDE(WideMatmulMxfp4Few, WideMxfp4, Few, true)
INGOT_WIDE(WideMatmulFp8, WideFp8, WideFor2, false)
INGOT_WIDE(WideMatmulFp8Few, WideFp8, Few, true)
INGOT_WIDE(WideMatmulBf16, WideBf16, Wide, false)
INGOT_WIDE(WideMatmulBf16Few, WideBf16, Few, true)

#undef INGOT_WIDE

// One thread, 16 bytes of out: the eight numbers of half h of a step of 16.
extern "C" __global__ void __launch_bounds__(256) ingot_Sm90RoundRows(const __grid_constant__ RoundRowsParams p) {
  start_after_previous();
  const int64_t pieces = wide_cols(p.cols) / 8, total = p.rows * pieces;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; i < total; i += static_cast<int64_t>(gridDim.x) * 256) {
    const int64_t row = i / pieces, piece = i % pieces;
    const int step = static_cast<int>(piece % 16 / 2), half = static_cast<int>(piece % 2);
    const int64_t begin = piece / 16 * kWideChunk + step / 2 * 8 + step % 2 * 2 + half;
    const float* x = p.x + row * p.x_stride + begin;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = j / 2 * 32 + j % 2 * 4;
      v[j] = begin + at < p.cols ? x[at] : 0.0f;
    }
    reinterpret_cast<uint4*>(p.out)[i] =
        make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}

// A block sums some tokens' rows, eight columns a thread at a time.
extern "C" __global__ void __launch_bounds__(256) ingot_Sm90CombineRounded(const __grid_constant__ CombineRoundedParams p) {
  start_after_previous();
  const int64_t pieces = p.dim / 8, total = p.num_tokens * pieces;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; i < total; i += static_cast<int64_t>(gridDim.x) * 256) {
    const int64_t token = i / pieces, piece = i % pieces;
    float sum[8] = {};
#pragma unroll 8
    for (int64_t j = 0; j < p.k; ++j) {
      const int64_t row = p.inverse[token * p.k + j];
      const float weight = p.weights[token * p.k + j];
      const uint4 v = load_stream(p.y + row * p.y_stride + piece * 8);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sum[2 * w] += weight * bf16_low(words[w]);
        sum[2 * w + 1] += weight * bf16_high(words[w]);
      }
    }
    float4* out = reinterpret_cast<float4*>(p.out + token * p.out_stride + piece * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 v = make_float4(sum[4 * half], sum[4 * half + 1], sum[4 * half + 2], sum[4 * half + 3]);
      if (p.accumulate) {
        const float4 old = out[half];
        v = make_float4(old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w);
      }
      out[half] = v;
    }
  }
}

}  // namespace ingot::kernels::sm90
