// Matrix products. A task is a block of weight rows times a chunk of x rows: the block is widened to f32 once when enough rows
// share it, else the tile widens it on the fly. Either way an element is summed in the same order (tile.h).
#include <vector>

#include "kernels/native/cpu/native.h"
#include "kernels/native/cpu/tile.h"
#include "kernels/native/cpu/unpack.h"

namespace ingot::kernels::native {
namespace {

using tensor::WeightFormat;

constexpr int64_t kBlockN = 12;         // weight rows widened at once: 12 x kDotBlock f32 = 24 KB, in L1
constexpr int64_t kChunkM = 128;        // rows of x a task takes
constexpr int64_t kStreamRows = 3;      // up to here the weights are read once, straight into the tile
constexpr int64_t kMinTaskN = 48;       // weight rows a task takes at least
constexpr int64_t kInlineWork = 30000;  // multiply-adds (about 1 us) under which waking the pool costs more than it gains

struct Task {
  const WeightView* w;
  int64_t n_begin, n_end;  // rows of w
  int64_t m_begin, m_end;  // rows of x and y
};

template <class RowOfX, class RowOfY>
void run_task(const Task& t, const RowOfX& x, const RowOfY& y, Write first_write) {
  const WeightView& w = *t.w;
  const int64_t rows = t.m_end - t.m_begin;
  const bool is_f32 = w.format == WeightFormat::f32, is_bf16 = w.format == WeightFormat::bf16;
  const bool stream = rows <= kStreamRows && (is_f32 || is_bf16);
  const int64_t step = stream ? t.n_end - t.n_begin : kBlockN;
  for (int64_t n = t.n_begin; n < t.n_end; n += step) {
    const int64_t count = std::min(step, t.n_end - n);
    for (int64_t k = 0; k < w.cols; k += kDotBlock) {
      const int64_t depth = std::min(kDotBlock, w.cols - k);
      const Write write = k == 0 ? first_write : Write::add;
      const auto x_row = [&](int64_t m) { return x(t.m_begin + m) + k; };
      const auto y_row = [&](int64_t m) { return y(t.m_begin + m) + n; };
      const auto* as_f32 = reinterpret_cast<const float*>(w.data) + n * w.cols + k;
      const auto* as_bf16 = reinterpret_cast<const uint16_t*>(w.data) + n * w.cols + k;
      if (stream && is_f32) {
        dot_stream(x_row, as_f32, w.cols, rows, count, depth, y_row, write);
      } else if (stream) {
        dot_stream(x_row, as_bf16, w.cols, rows, count, depth, y_row, write);
      } else if (is_f32) {
        dot_rows(x_row, as_f32, w.cols, rows, count, depth, y_row, write);
      } else {
        float* block = scratch(Scratch::weights, kBlockN * kDotBlock);
        unpack_weight(w, n, count, k, depth, block, depth);
        dot_rows(x_row, block, depth, rows, count, depth, y_row, write);
      }
    }
  }
}

// Weight rows a task takes: enough tasks for balance, not so many that handing them out shows; a multiple of the tile width.
// `others` is the number of tasks there are apart from the cut along n.
int64_t rows_per_task(int64_t n, int64_t others, int threads) {
  const int64_t tasks_wanted = std::max<int64_t>(1, 4 * threads / std::max<int64_t>(1, others));
  return std::max(kMinTaskN, (n + tasks_wanted - 1) / tasks_wanted / 8 * 8);
}

}  // namespace

void matmul(ThreadPool& pool, const MatmulParams& p) {
  const int64_t n = p.w.rows;
  if (p.rows == 0 || n == 0) return;
  const Write write = p.accumulate ? Write::add : Write::replace;
  const auto x = [&](int64_t m) { return p.x + m * p.x_stride; };
  const auto y = [&](int64_t m) { return p.y + m * p.y_stride; };
  if (p.rows * n * p.w.cols < kInlineWork) {
    run_task({&p.w, 0, n, 0, p.rows}, x, y, write);
    return;
  }
  const int64_t m_chunks = (p.rows + kChunkM - 1) / kChunkM;
  const int64_t n_step = rows_per_task(n, m_chunks, pool.num_threads());
  const int64_t n_tasks = (n + n_step - 1) / n_step;
  pool.parallel_for(m_chunks * n_tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m = i / n_tasks * kChunkM, nb = i % n_tasks * n_step;
      run_task({&p.w, nb, std::min(n, nb + n_step), m, std::min(p.rows, m + kChunkM)}, x, y, write);
    }
  });
}

void grouped_matmul(ThreadPool& pool, const GroupedMatmulParams& p) {
  if (p.num_rows == 0 || p.n == 0) return;
  const auto x = [&](int64_t i) { return p.x + (p.order ? p.order[i] / p.rows_per_source : i) * p.x_stride; };
  const auto y = [&](int64_t i) { return p.y + i * p.y_stride; };
  thread_local std::vector<Task> tasks;
  tasks.clear();
  int64_t chunks = 0;
  for (int64_t e = 0; e < p.num_experts; ++e) chunks += (p.offsets[e + 1] - p.offsets[e] + kChunkM - 1) / kChunkM;
  const int64_t n_step = rows_per_task(p.n, chunks, pool.num_threads());
  for (int64_t e = 0; e < p.num_experts; ++e) {
    for (int64_t m = p.offsets[e]; m < p.offsets[e + 1]; m += kChunkM) {
      const int64_t m_end = std::min<int64_t>(p.offsets[e + 1], m + kChunkM);
      for (int64_t n = 0; n < p.n; n += n_step) tasks.push_back({&p.weights[e], n, std::min(p.n, n + n_step), m, m_end});
    }
  }
  const Task* list = tasks.data();  // the workers must not look at their own thread_local
  const auto run = [&, list](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_task(list[i], x, y, Write::replace);
  };
  if (p.num_rows * p.n * p.weights[0].cols < kInlineWork) return run(0, static_cast<int64_t>(tasks.size()));
  pool.parallel_for(static_cast<int64_t>(tasks.size()), 1, run);
}

void matmul_transposed(ThreadPool& pool, const MatmulTransposedParams& p) {
  constexpr int64_t kBlockK = 64;  // output columns at once; also a multiple of the mxfp4 group
  const int64_t blocks = (p.w.cols + kBlockK - 1) / kBlockK;
  const int64_t chunks = (p.rows + kChunkM - 1) / kChunkM;
  if (p.rows == 0) return;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m0 = i / blocks * kChunkM, k0 = i % blocks * kBlockK;
      const int64_t rows = std::min(kChunkM, p.rows - m0), cols = std::min(kBlockK, p.w.cols - k0);
      const auto x = [&](int64_t m) { return p.x + (m0 + m) * p.x_stride; };
      const auto y = [&](int64_t m) { return p.y + (m0 + m) * p.y_stride + k0; };
      if (p.w.format == WeightFormat::f32) {
        axpy_rows(x, reinterpret_cast<const float*>(p.w.data) + k0, p.w.cols, rows, p.w.rows, cols, y, Write::replace);
      } else if (p.w.format == WeightFormat::bf16 && rows <= kStreamRows) {
        axpy_rows(x, reinterpret_cast<const uint16_t*>(p.w.data) + k0, p.w.cols, rows, p.w.rows, cols, y, Write::replace);
      } else {
        float* block = scratch(Scratch::weights, p.w.rows * kBlockK);
        unpack_weight(p.w, 0, p.w.rows, k0, cols, block, cols);
        axpy_rows(x, block, cols, rows, p.w.rows, cols, y, Write::replace);
      }
    }
  };
  if (p.rows * p.w.rows * p.w.cols < kInlineWork) return run(0, chunks * blocks);
  pool.parallel_for(chunks * blocks, 1, run);
}

}  // namespace ingot::kernels::native
