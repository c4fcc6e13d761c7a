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
constexpr int64_t kMinTaskN = 48;       // weight rows a task takes at least
constexpr int64_t kInlineWork = 30000;  // multiply-adds (about 1 us) under which waking the pool costs more than it gains

struct Task {
  int64_t product;  // which of the products of the call
  const WeightView* w;
  int64_t n_begin, n_end;       // rows of w
  int64_t m_begin, m_end;       // rows of x and y
  int64_t part = 0, parts = 1;  // of these rows of w, as dot_stream cuts them
};

// Whether so few rows are multiplied that the weights are read as they lie in memory.
bool streams(const WeightView& w, int64_t rows) {
  return rows <= kStreamRows && (w.format == WeightFormat::f32 || w.format == WeightFormat::bf16);
}

template <class RowOfX, class RowOfY>
void run_task(const Task& t, const RowOfX& x, const RowOfY& y, Write first_write) {
  const WeightView& w = *t.w;
  const int64_t rows = t.m_end - t.m_begin;
  const bool is_f32 = w.format == WeightFormat::f32;
  const bool stream = streams(w, rows);
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
        dot_stream(x_row, as_f32, w.cols, rows, count, depth, y_row, write, t.part, t.parts);
      } else if (stream) {
        dot_stream(x_row, as_bf16, w.cols, rows, count, depth, y_row, write, t.part, t.parts);
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

// The tasks of one call. A task is a share of the whole call's multiply-adds that leaves enough tasks for balance, but not so many
// that handing them out shows. The pool gives neighbouring tasks to the same thread. The vector keeps its size between calls.
class TaskList {
 public:
  TaskList(std::vector<Task>& tasks, int64_t work, int threads, bool single)
      : tasks_(tasks), share_(std::max<int64_t>(1, work / (4 * threads))), threads_(threads), single_(single) {
    tasks_.clear();
  }
  // All of w for the rows [m_begin, m_end) of a product.
  void add(int64_t product, const WeightView& w, int64_t m_begin, int64_t m_end) {
    for (int64_t m = m_begin; m < m_end; m += kChunkM) {
      const int64_t end = std::min(m_end, m + kChunkM);
      const int64_t parts = std::clamp<int64_t>((end - m) * w.rows * w.cols / share_, 1, std::max<int64_t>(1, w.rows / kMinTaskN));
      // Of a single product each thread has a block of its own, and the tasks fall evenly on them. Several even each other out.
      const int64_t blocks = single_ && parts >= threads_ ? threads_ : 1;
      if (streams(w, end - m)) {
        cut(w.rows, blocks, [&](int64_t n, int64_t n_end) {
          const int64_t slices = std::max<int64_t>(1, parts / blocks);
          for (int64_t i = 0; i < slices; ++i) tasks_.push_back({product, &w, n, n_end, m, end, i, slices});
        });
      } else {
        cut(w.rows, parts / blocks * blocks, [&](int64_t n, int64_t n_end) { tasks_.push_back({product, &w, n, n_end, m, end}); });
      }
    }
  }

 private:
  // Calls f(begin, end) for so many pieces of `rows` rows of w, of whole eights where possible.
  template <class F>
  static void cut(int64_t rows, int64_t pieces, const F& f) {
    const int64_t step = ((rows + pieces - 1) / pieces + 7) / 8 * 8;
    for (int64_t n = 0; n < rows; n += step) f(n, std::min(rows, n + step));
  }

  std::vector<Task>& tasks_;
  int64_t share_;
  int64_t threads_;
  bool single_;
};

// Calls body(task) for all of `tasks`, on the pool when there is enough to do. `tasks` may be thread_local: it is not named in the loop.
template <class Body>
void run_tasks(ThreadPool& pool, const std::vector<Task>& tasks, int64_t work, const Body& body) {
  const Task* list = tasks.data();
  const auto count = static_cast<int64_t>(tasks.size());
  const auto run = [&body, list](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(list[i]);
  };
  if (work < kInlineWork) return run(0, count);
  pool.parallel_for(count, 1, run);
}

}  // namespace

void matmul(ThreadPool& pool, std::span<const MatmulParams> products) {
  thread_local std::vector<Task> tasks;
  int64_t work = 0;
  for (const MatmulParams& p : products) work += p.rows * p.w.rows * p.w.cols;
  TaskList list(tasks, work, pool.num_threads(), products.size() == 1);
  for (size_t i = 0; i < products.size(); ++i) list.add(static_cast<int64_t>(i), products[i].w, 0, products[i].rows);
  run_tasks(pool, tasks, work, [products](const Task& t) {
    const MatmulParams& p = products[static_cast<size_t>(t.product)];
    const auto x = [&](int64_t m) { return p.x + m * p.x_stride; };
    const auto y = [&](int64_t m) { return p.y + m * p.y_stride; };
    run_task(t, x, y, p.accumulate ? Write::add : Write::replace);
  });
}

void grouped_matmul(ThreadPool& pool, std::span<const GroupedMatmulParams> products) {
  thread_local std::vector<Task> tasks;
  int64_t work = 0;
  for (const GroupedMatmulParams& p : products) work += p.num_rows * p.n * p.weights[0].cols;
  TaskList list(tasks, work, pool.num_threads(), false);
  // By expert: what the products of an expert give is then in the cache of one core for whoever goes on with these rows.
  for (int64_t e = 0; e < products[0].num_experts; ++e) {
    for (size_t i = 0; i < products.size(); ++i) {
      const GroupedMatmulParams& p = products[i];
      list.add(static_cast<int64_t>(i), p.weights[e], p.offsets[e], p.offsets[e + 1]);
    }
  }
  run_tasks(pool, tasks, work, [products](const Task& t) {
    const GroupedMatmulParams& p = products[static_cast<size_t>(t.product)];
    const auto x = [&](int64_t i) { return p.x + (p.order ? p.order[i] / p.rows_per_source : i) * p.x_stride; };
    const auto y = [&](int64_t i) { return p.y + i * p.y_stride; };
    run_task(t, x, y, Write::replace);
  });
}

void matmul_transposed(ThreadPool& pool, std::span<const MatmulTransposedParams> products) {
  constexpr int64_t kBlockK = 64;  // output columns at once; also a multiple of the mxfp4 group
  thread_local std::vector<Task> tasks;
  tasks.clear();
  int64_t work = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const MatmulTransposedParams& p = products[i];
    work += p.rows * p.w.rows * p.w.cols;
    for (int64_t m = 0; m < p.rows; m += kChunkM) {
      for (int64_t k = 0; k < p.w.cols; k += kBlockK)  // here n counts the columns of w
        tasks.push_back({static_cast<int64_t>(i), &p.w, k, std::min(p.w.cols, k + kBlockK), m, std::min(p.rows, m + kChunkM)});
    }
  }
  run_tasks(pool, tasks, work, [products](const Task& t) {
    const MatmulTransposedParams& p = products[static_cast<size_t>(t.product)];
    const int64_t rows = t.m_end - t.m_begin, k0 = t.n_begin, cols = t.n_end - t.n_begin;
    const auto x = [&](int64_t m) { return p.x + (t.m_begin + m) * p.x_stride; };
    const auto y = [&](int64_t m) { return p.y + (t.m_begin + m) * p.y_stride + k0; };
    if (p.w.format == WeightFormat::f32) {
      axpy_rows(x, reinterpret_cast<const float*>(p.w.data) + k0, p.w.cols, rows, p.w.rows, cols, y, Write::replace);
    } else if (p.w.format == WeightFormat::bf16 && rows <= kStreamRows) {
      axpy_rows(x, reinterpret_cast<const uint16_t*>(p.w.data) + k0, p.w.cols, rows, p.w.rows, cols, y, Write::replace);
    } else {
      float* block = scratch(Scratch::weights, p.w.rows * kBlockK);
      unpack_weight(p.w, 0, p.w.rows, k0, cols, block, cols);
      axpy_rows(x, block, cols, rows, p.w.rows, cols, y, Write::replace);
    }
  });
}

}  // namespace ingot::kernels::native
