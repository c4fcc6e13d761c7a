// The indexer's scores on wgmma. A tile is 64 keys (M) times up to four rows of 32 heads (N = 128): with the heads as columns a
// thread has eight heads of a (row, key) in its own registers, so that ReLU, weights and most of the sum over heads need no exchange.
//
// Keys are the A operand, in registers. The order of K within a dot product is free as long as q has the same one, so each lane copies
// the 16-byte chunks of its own rows that it will need to a ring in shared memory that no other thread reads: no barrier, no transposition,
// no bank conflict. q is the B operand, in shared memory for as long as the segment lasts.
#include "kernels/native/sm90/indexer.h"
#include "kernels/native/sm90/indexer_wgmma.h"

namespace ingot::kernels::sm90 {

namespace {

constexpr int kWarps = kScoreThreads / 32;
constexpr int kGroupThreads = 128;
constexpr int kHalfBytes = kScoreRows * kScoreHeads * 128;  // of q: numbers 0..63 of all columns, then 64..127
constexpr int kStagedRows = static_cast<int>(kScoreRingBytes / 8);

// Over the block, of the values of the threads before this one; `total` of all. `scratch` holds a value a warp.
template <class T, class Op>
SM90_FN T scan_before(T value, T identity, T* scratch, T& total, Op op) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum = op(other, sum);
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  T before = identity;
  total = identity;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total = op(total, scratch[w]);
  }
  const T left = __shfl_up_sync(~0u, sum, 1);
  return lane == 0 ? before : op(before, left);
}

// The rows of the batch, cut into groups of neighbours of one sequence, and the part of all their tiles that is this block's.
struct Share {
  const int32_t* seqs;
  const int32_t* positions;
  int rows, begin, end;  // this thread looks at rows begin..end
  int run;               // first row of the sequence that row `begin - 1` belongs to
  int64_t cost_before;   // of the groups that begin before `begin`
  int64_t low, high;     // this block has the tiles that start in this interval of the cost
  int before, total;     // segments of this block: before this thread's, and all

  template <class F>
  SM90_FN void each_group(F&& f) const {
    int start = run;
    for (int t = begin; t < end; ++t) {
      const int seq = seqs[t];
      if (t == 0 || seq != seqs[t - 1]) start = t;
      if ((t - start) % kScoreRows != 0) continue;
      int last = positions[t], count = 1;
      while (count < kScoreRows && t + count < rows && seqs[t + count] == seq) last = max(last, positions[t + count++]);
      last = max(last, -1);
      f(ScoreSegment{t, count, 0, (last + kScoreTile) / kScoreTile, last, seq});
    }
  }

  // A tile's cost, in units of about a row's matrix work; reading its keys takes as long as six rows.
  static SM90_FN int tile_cost(int rows) { return max(6, rows); }

  template <class F>
  SM90_FN void each_segment(F&& f) const {
    int64_t at = cost_before;
    each_group([&](ScoreSegment s) {
      const int64_t cost = tile_cost(s.rows), from = at;
      at += cost * s.tile_end;
      if (at <= low || from >= high) return;
      if (low > from) s.tile_begin = static_cast<int>((low - from + cost - 1) / cost);
      if (high < at) s.tile_end = static_cast<int>((high - from + cost - 1) / cost);
      if (s.tile_begin < s.tile_end) f(s);
    });
  }
};

SM90_FN Share find_share(const PagedPositions& where, int rows, int32_t* staged, int64_t* scratch) {
  Share s;
  s.rows = rows;
  s.seqs = where.seq_of_token;
  s.positions = where.positions;
  if (rows <= kStagedRows) {
    for (int t = threadIdx.x; t < rows; t += kScoreThreads) {
      staged[t] = where.seq_of_token[t];
      staged[kStagedRows + t] = where.positions[t];
    }
    __syncthreads();
    s.seqs = staged;
    s.positions = staged + kStagedRows;
  }
  const int each = rows <= kScoreThreads ? 1 : ((rows + kScoreThreads - 1) / kScoreThreads) | 1;  // odd: no bank conflicts
  s.begin = min(static_cast<int>(threadIdx.x) * each, rows);
  s.end = min(s.begin + each, rows);
  int first = 0;
  for (int t = s.begin; t < s.end; ++t) {
    if (t > 0 && s.seqs[t] != s.seqs[t - 1]) first = t;
  }
  int unused;
  s.run = scan_before(first, 0, reinterpret_cast<int*>(scratch), unused, [](int a, int b) { return max(a, b); });
  const auto add = [](auto a, auto b) { return a + b; };
  int64_t cost = 0, all;
  s.each_group([&](const ScoreSegment& g) { cost += static_cast<int64_t>(Share::tile_cost(g.rows)) * g.tile_end; });
  s.cost_before = scan_before(cost, int64_t{0}, scratch, all, add);
  s.low = all * blockIdx.x / gridDim.x;
  s.high = all * (blockIdx.x + 1) / gridDim.x;
  int count = 0;
  s.each_segment([&](const ScoreSegment&) { ++count; });
  s.before = scan_before(count, 0, reinterpret_cast<int*>(scratch), s.total, add);
  return s;
}

// A warpgroup's way through the segments' tiles, some tiles ahead of the work: every second tile of each.
struct KeyReader {
  const IndexScoresParams& p;
  const ScoreSegment* segments;
  int count, segment, tile;
  int32_t page[2];  // page table entries of this lane's two keys of `tile`, read one step early
  uint32_t within[2];
  uint32_t ring;  // this thread's first chunk
  int stage;

  SM90_FN void find() {
    while (segment < count && tile >= segments[segment].tile_end) {
      if (++segment < count) tile = segments[segment].tile_begin + static_cast<int>(threadIdx.x) / kGroupThreads;
    }
    if (segment == count) return;
    const ScoreSegment& s = segments[segment];
    const int32_t* table = p.where.page_table + s.seq * p.where.max_pages;
    const uint32_t size = static_cast<uint32_t>(p.where.page_size);
    const int row = tile * kScoreTile + (threadIdx.x % kGroupThreads) / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t key = static_cast<uint32_t>(min(row + 8 * i, s.last));
      page[i] = table[key / size];
      within[i] = key % size;
    }
  }
  SM90_FN void begin() {
    segment = stage = 0;
    if (count > 0) tile = segments[0].tile_begin + static_cast<int>(threadIdx.x) / kGroupThreads;
    find();
  }
  // Starts the copies of a tile to the ring, as one group whether there is one or not, and turns to the next.
  SM90_FN void fetch() {
    if (segment < count) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const char* from =
            static_cast<const char*>(p.cache) + (page[i] * p.where.page_size + within[i]) * (kScoreDim * 2) + threadIdx.x % 4 * 16;
#pragma unroll
        for (int j = 0; j < 4; ++j) copy_async_16(ring + chunk(stage, 4 * i + j), from + 64 * j);
      }
      tile += 2;
      find();
    }
    commit_copies();
    stage = stage + 1 == kScoreStages ? 0 : stage + 1;
  }
  static SM90_FN uint32_t chunk(int stage, int i) { return static_cast<uint32_t>(((stage * 8 + i) * kScoreThreads) * 16); }
};

// q of the segment as bf16, column 32 r + n of row r being head 8 (n / 2 % 4) + 2 (n / 8) + n % 2: a thread's columns are then eight
// neighbouring heads. Of each 32 numbers of K, numbers 8 c + 4 s + 2 h + b come to step s, column 2 c + 8 h + b of the A operand, which is
// where the lanes' 16-byte chunks of a key have them.
SM90_FN void load_queries(const IndexScoresParams& p, const ScoreSegment& s, char* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float4* q = reinterpret_cast<const float4*>(p.q + static_cast<int64_t>(s.first_row) * kScoreHeads * kScoreDim) + lane;
  const int chunk = lane / 8 * 4 + lane % 2 * 2;
#pragma unroll 8
  for (int line = warp; line < s.rows * kScoreHeads; line += kWarps) {
    const float4 v = q[line * (kScoreDim / 4)];
    const int head = line % kScoreHeads;
    const int column = line / kScoreHeads * kScoreHeads + head % 8 / 2 * 8 + head / 8 * 2 + head % 2;
    char* to = shared + chunk / 8 * kHalfBytes + column * 128 + lane / 2 % 4 * 4;
    *reinterpret_cast<uint32_t*>(to + ((chunk % 8) ^ (column % 8)) * 16) = pack_bf16(v.x, v.y);
    *reinterpret_cast<uint32_t*>(to + ((chunk % 8 + 1) ^ (column % 8)) * 16) = pack_bf16(v.z, v.w);
  }
  float* weights = reinterpret_cast<float*>(shared + kScoreWeightsAt);
  for (int i = threadIdx.x; i < s.rows * kScoreHeads; i += kScoreThreads)
    weights[i] = p.weights[(s.first_row + i / kScoreHeads) * p.weight_stride + i % kScoreHeads];
  int32_t* lasts = reinterpret_cast<int32_t*>(shared + kScoreLastsAt);
  if (threadIdx.x < kScoreRows) lasts[threadIdx.x] = threadIdx.x < s.rows ? p.where.positions[s.first_row + threadIdx.x] : -1;
}

template <int kRows>
SM90_FN void issue(float (&c)[16 * kRows], const uint32_t (&a)[32], uint32_t queries) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) wgmma_step(c, a + 4 * k, swizzled_128(queries + k / 4 * kHalfBytes + k % 4 * 32), k > 0);
  wgmma_commit();
}

SM90_FN float relu(float v) {
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(v));  // a NaN stays one
  return r;
}

// ReLU, weights, the sum over the heads and the store, for kRows rows of the segment from row `first` on.
template <int kRows>
SM90_FN void finish(const IndexScoresParams& p, const char* shared, const float (&c)[16 * kRows], int first, int first_token,
                    int position) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  constexpr int kPairs = (kRows + 1) / 2;
  float mine[2 * kPairs];  // of key g + 8 (t % 2), rows 0..kRows
#pragma unroll
  for (int r = 0; r < 2 * kPairs; ++r) {
    if (r >= kRows) {
      mine[r] = 0.0f;
      continue;
    }
    float w[8];
    const float4* weights = reinterpret_cast<const float4*>(shared + kScoreWeightsAt) + (first + r) * 8 + t * 2;
    *reinterpret_cast<float4*>(w) = weights[0];
    *reinterpret_cast<float4*>(w + 4) = weights[1];
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const float* v = c + (4 * r + h / 2) * 4 + h % 2;
      low = fmaf(w[h], relu(v[0]), low);
      high = fmaf(w[h], relu(v[2]), high);
    }
    const float given = __shfl_xor_sync(~0u, t % 2 == 0 ? high : low, 1);
    mine[r] = (t % 2 == 0 ? low : high) + given;
  }
  // Lanes t and t ^ 2 have the other half of each other's heads: one ends with the first half of the rows, the other with the second.
  const bool second = t >= 2;
  const int key = position + lane / 4 + t % 2 * 8;
  const int32_t* lasts = reinterpret_cast<const int32_t*>(shared + kScoreLastsAt);
#pragma unroll
  for (int r = 0; r < kPairs; ++r) {
    const float given = __shfl_xor_sync(~0u, second ? mine[r] : mine[r + kPairs], 2);
    const float sum = (second ? mine[r + kPairs] : mine[r]) + given;
    const int row = first + r + (second ? kPairs : 0);
    if ((second ? r + kPairs : r) < kRows && key <= lasts[row]) p.scores[(first_token + row) * p.score_stride + key] = sum * p.scale;
  }
}

// This warpgroup's tiles of a segment, in kPasses passes of kEven and kOdd rows by turns: while the matrix units work on one pass, the
// sums of the one before are taken.
template <int kEven, int kOdd, int kPasses>
SM90_FN void score_tiles(const IndexScoresParams& p, const ScoreSegment& s, const char* shared, KeyReader& keys, int& stage) {
  const uint32_t queries = shared_address(shared);
  const char* ring = shared + kScoreRingAt + threadIdx.x * 16;
  float even[16 * kEven], odd[16 * kOdd];
  const auto start = [](int pass) { return pass / 2 * (kEven + kOdd) + pass % 2 * kEven; };
  for (int tile = s.tile_begin + static_cast<int>(threadIdx.x) / kGroupThreads; tile < s.tile_end; tile += 2) {
    uint32_t a[32];
    wait_copies<kScoreStages - 1>();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 low = *reinterpret_cast<const uint4*>(ring + KeyReader::chunk(stage, j));
      const uint4 high = *reinterpret_cast<const uint4*>(ring + KeyReader::chunk(stage, 4 + j));
      const uint32_t both[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) a[8 * j + i] = both[i];
    }
    stage = stage + 1 == kScoreStages ? 0 : stage + 1;
    issue<kEven>(even, a, queries);
    keys.fetch();  // into the place just read: what was read has arrived, since the matrix instructions have it
    const int position = tile * kScoreTile + (threadIdx.x % kGroupThreads) / 32 * 16;
#pragma unroll
    for (int pass = 1; pass <= kPasses; ++pass) {
      const uint32_t next = queries + start(pass) * (kScoreHeads * 128);
      if (pass == kPasses) {
        wgmma_wait<0>();
      } else if (pass % 2 == 1) {
        issue<kOdd>(odd, a, next);
        wgmma_wait<1>();
      } else {
        issue<kEven>(even, a, next);
        wgmma_wait<1>();
      }
      if (pass % 2 == 1) {
        pin(even);
        finish<kEven>(p, shared, even, start(pass - 1), s.first_row, position);
      } else {
        pin(odd);
        finish<kOdd>(p, shared, odd, start(pass - 1), s.first_row, position);
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kScoreThreads, 1) ingot_Sm90IndexScores(const __grid_constant__ Sm90IndexScoresParams params) {
  extern __shared__ __align__(1024) char shared[];
  start_after_previous();
  const IndexScoresParams& p = params.op;
  ScoreSegment* segments = reinterpret_cast<ScoreSegment*>(shared + kScoreSegmentsAt);
  Share share = find_share(p.where, static_cast<int>(p.num_tokens), reinterpret_cast<int32_t*>(shared + kScoreRingAt),
                           reinterpret_cast<int64_t*>(shared + kScoreScanAt));
  for (int listed = 0; listed < share.total; listed += kScoreSegments) {
    const int count = min(kScoreSegments, share.total - listed);
    int place = share.before - listed;
    if (listed > 0) {  // the copies of them are overwritten
      share.seqs = p.where.seq_of_token;
      share.positions = p.where.positions;
    }
    share.each_segment([&](const ScoreSegment& s) {
      if (place >= 0 && place < count) segments[place] = s;
      ++place;
    });
    __syncthreads();  // the list is whole, and nobody looks at the staged rows any more
    KeyReader keys{p, segments, count, 0, 0, {}, {}, shared_address(shared + kScoreRingAt) + threadIdx.x * 16, 0};
    keys.begin();
    for (int i = 0; i < kScoreStages; ++i) keys.fetch();
    int stage = 0;
    for (int i = 0; i < count; ++i) {
      const ScoreSegment s = segments[i];
      load_queries(p, s, shared);
      fence_proxy();
      __syncthreads();
      switch (s.rows) {
        case 1: score_tiles<1, 1, 1>(p, s, shared, keys, stage); break;
        case 2: score_tiles<2, 1, 1>(p, s, shared, keys, stage); break;
        case 3: score_tiles<3, 1, 1>(p, s, shared, keys, stage); break;
        case 4: score_tiles<4, 1, 1>(p, s, shared, keys, stage); break;
        case 5: score_tiles<3, 2, 2>(p, s, shared, keys, stage); break;
        case 6: score_tiles<3, 3, 2>(p, s, shared, keys, stage); break;
        case 7: score_tiles<4, 3, 2>(p, s, shared, keys, stage); break;
        case 8: score_tiles<4, 4, 2>(p, s, shared, keys, stage); break;
        case 9:
        case 10:
        case 11:
        case 12: score_tiles<4, 4, 3>(p, s, shared, keys, stage); break;
        default: score_tiles<4, 4, 4>(p, s, shared, keys, stage); break;
      }
      __syncthreads();  // before q, the weights and the list are written again
    }
    wait_copies<0>();
  }
}

}  // namespace ingot::kernels::sm90
