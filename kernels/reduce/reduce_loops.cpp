// SPDX-License-Identifier: Apache-2.0
// The driver of the reduce family's CPU loops. Long reductions are cut into chunks that depend on
// the shape alone, so the thread count does not change a bit. Types are erased: results are moved
// as bytes, and their zero is made of zero bytes.
#include "tessera/kernels/reduce/reduce_loops_impl.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tessera {
namespace {

using Axes = std::array<ReduceAxis, kMaxRank>;

// The order of reduction is free, so the densest axis comes last.
void insert_by_stride(Axes& axes, int& count, const ReduceAxis& a) {
  int i = count++;
  for (; i > 0 && axes[static_cast<size_t>(i - 1)].stride < a.stride; --i)
    axes[static_cast<size_t>(i)] = axes[static_cast<size_t>(i - 1)];
  axes[static_cast<size_t>(i)] = a;
}

void append(Axes& axes, int& count, const ReduceAxis& a) {
  if (count > 0) {
    ReduceAxis& last = axes[static_cast<size_t>(count - 1)];
    if (last.stride == a.stride * a.size && last.out == a.out * a.size) {
      last = {last.size * a.size, a.stride, a.out};
      return;
    }
  }
  axes[static_cast<size_t>(count++)] = a;
}

ReduceAxis take(Axes& axes, int& count, int at) {
  const ReduceAxis a = axes[static_cast<size_t>(at)];
  for (int i = at + 1; i < count; ++i)
    axes[static_cast<size_t>(i - 1)] = axes[static_cast<size_t>(i)];
  --count;
  return a;
}

}  // namespace

ReducePlan::ReducePlan(const Tensor& x, uint32_t dims) {
  int64_t out = 1;
  std::array<int64_t, kMaxRank> out_strides{};
  for (int d = x.rank() - 1; d >= 0; --d) {
    if (dims >> d & 1) continue;
    out_strides[static_cast<size_t>(d)] = out;
    out *= x.shape()[d];
  }
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] == 1) continue;
    const ReduceAxis a{x.shape()[d], x.strides()[d], out_strides[static_cast<size_t>(d)]};
    if (dims >> d & 1) insert_by_stride(reduced, reduced_count, a);
    else append(kept, kept_count, a);
  }
  for (int i = 0, n = std::exchange(reduced_count, 0); i < n; ++i)
    append(reduced, reduced_count, reduced[static_cast<size_t>(i)]);
  choose_inner();
  for (int i = 0; i < kept_count; ++i) kept_size *= kept[static_cast<size_t>(i)].size;
  for (int i = 0; i < reduced_count; ++i) reduced_size *= reduced[static_cast<size_t>(i)].size;
}

void ReducePlan::choose_inner() {
  // An expanded axis (stride 0) reads one element over and over: the last choice.
  const auto sparsity = [](const ReduceAxis& a) { return a.stride == 0 ? INT64_MAX : a.stride; };
  const auto densest = [&](const Axes& axes, int count) {
    int best = -1;
    for (int i = 0; i < count; ++i) {
      if (best < 0 ||
          sparsity(axes[static_cast<size_t>(i)]) <= sparsity(axes[static_cast<size_t>(best)]))
        best = i;
    }
    return best;
  };
  const int k = densest(kept, kept_count), r = densest(reduced, reduced_count);
  if (k < 0 && r < 0) return;
  // A short dense axis loses to a long one of the other kind: the loop's start would cost more
  // than its strides.
  if (k < 0 || r < 0) {
    inner_kept = r < 0;
  } else {
    const int64_t long_enough = 16;
    const ReduceAxis &a = kept[static_cast<size_t>(k)], &b = reduced[static_cast<size_t>(r)];
    inner_kept = sparsity(a) < sparsity(b);
    if (inner_kept && a.size < long_enough && b.size >= 4 * long_enough) inner_kept = false;
    else if (!inner_kept && b.size < long_enough && a.size >= 4 * long_enough) inner_kept = true;
  }
  inner = inner_kept ? take(kept, kept_count, k) : take(reduced, reduced_count, r);
}

namespace detail {
namespace {

constexpr int64_t kColumns = 1024;   // outputs at once where the inner axis is kept
constexpr int64_t kResults = 256;    // results that are stored in one go
constexpr int64_t kResultBytes = 8;  // at most

struct Driver {
  const ReduceKernel& kernel;
  const std::byte* shift;
  ReduceStore store;
  const void* erased;

  [[nodiscard]] const std::byte* shift_of(int64_t o) const {
    alignas(kResultBytes) static constexpr std::byte kZero[kResultBytes]{};
    return shift ? shift + o * kernel.result : kZero;
  }
  // Results that lie densely, of outputs `step` apart, to `partial` or to the output.
  void put(std::byte* partial, int64_t o, int64_t step, const std::byte* results, int64_t n) const {
    const int64_t run = step == 1 ? n : 1;
    for (int64_t j = 0; j < n; j += run) {
      const std::byte* from = results + j * kernel.result;
      if (partial)
        std::memcpy(partial + (o + j * step) * kernel.result, from,
                    static_cast<size_t>(run * kernel.result));
      else store(erased, o + j * step, from, run);
    }
  }

  // Outputs without an element.
  void nothing(int64_t outputs) const {
    alignas(64) std::byte results[kResults * kResultBytes];
    kernel.identity(results, kResults);
    for (int64_t o = 0; o < outputs; o += kResults)
      store(erased, o, results, std::min(kResults, outputs - o));
  }

  // Partial results of several chunks, (chunks, outputs): joined in order and stored.
  void join_chunks(const std::byte* partial, int64_t chunks, int64_t outputs) const {
    parallel_for(
        outputs, std::max<int64_t>(1, kReduceChunk / chunks), [&](int64_t begin, int64_t end) {
          alignas(64) std::byte acc[kColumns * kResultBytes];
          for (int64_t o = begin; o < end; o += kColumns) {
            const int64_t n = std::min(kColumns, end - o);
            std::memcpy(acc, partial + o * kernel.result, static_cast<size_t>(n * kernel.result));
            for (int64_t c = 1; c < chunks; ++c)
              kernel.join(acc, partial + (c * outputs + o) * kernel.result, n);
            store(erased, o, acc, n);
          }
        });
  }

  // A block of `columns` outputs along the kept inner axis, joined over `count` rows.
  void columns(const ReduceAxis& inner, const std::byte* base, ReduceWalk& row, int64_t count,
               int64_t out, int64_t columns, std::byte* partial) const {
    alignas(64) std::byte acc[kColumns * kResultBytes];
    alignas(64) std::byte by[kColumns * kResultBytes];
    kernel.identity(acc, columns);
    std::memset(by, 0, static_cast<size_t>(columns * kernel.result));
    const int64_t run = inner.out == 1 ? columns : 1;
    for (int64_t j = 0; shift && j < columns; j += run)
      std::memcpy(by + j * kernel.result, shift_of(out + j * inner.out),
                  static_cast<size_t>(run * kernel.result));
    for (int64_t r = 0; r < count;) {
      const int take = count - r >= 4 ? 4 : 1;
      std::array<const void*, 4> p{};
      for (int i = 0; i < take; ++i, row.next())
        p[static_cast<size_t>(i)] = base + row.offset * kernel.item;
      (take == 4 ? kernel.four_rows : kernel.one_row)(acc, p, columns, inner.stride, by);
      r += take;
    }
    put(partial, out, inner.out, acc, columns);
  }
};

}  // namespace

void reduce_all(const Tensor& x, uint32_t dims, const ReduceKernel& kernel, const void* shift,
                ReduceStore store, const void* erased) {
  const Driver driver{kernel, static_cast<const std::byte*>(shift), store, erased};
  int64_t outputs = 1;
  for (int d = 0; d < x.rank(); ++d) outputs *= dims >> d & 1 ? 1 : x.shape()[d];
  if (x.numel() == 0) return driver.nothing(outputs);
  const ReducePlan plan(x, dims);
  const std::byte* from =
      static_cast<const std::byte*>(x.raw_data());  // bools are reduced as bytes
  const int64_t n = plan.inner.size, stride = plan.inner.stride, rows = plan.reduced_size;
  // A chunk is a range of rows, or of the inner axis where it is the only reduced one.
  const bool cut_inner = !plan.inner_kept && rows == 1;
  const int64_t length = cut_inner ? n : rows;
  const int64_t width = plan.inner_kept ? std::min(n, kColumns) : (cut_inner ? 1 : n);
  const int64_t per_chunk = std::max<int64_t>(plan.inner_kept ? 64 : 1, kReduceChunk / width);
  const int64_t chunks = (length + per_chunk - 1) / per_chunk;
  Tensor buffer;
  std::byte* partial = nullptr;
  if (chunks > 1) {
    buffer = empty({chunks, outputs}, kernel.dtype);
    partial = static_cast<std::byte*>(buffer.raw_data());
  }
  if (!plan.inner_kept && chunks == 1) {  // the kept axes are walked in the outputs' order
    parallel_for(plan.kept_size, std::max<int64_t>(1, kReduceChunk / 2 / (rows * n)),
                 [&](int64_t begin, int64_t end) {
                   alignas(64) std::byte results[kResults * kResultBytes];
                   ReduceWalk at(plan.kept, plan.kept_count, begin);
                   for (int64_t first = begin; first < end; first += kResults) {
                     const int64_t count = std::min(kResults, end - first);
                     for (int64_t k = 0; k < count; ++k, at.next()) {
                       ReduceWalk row(plan.reduced, plan.reduced_count, 0);
                       kernel.run(from + at.offset * kernel.item, row, rows, n, stride,
                                  driver.shift_of(first + k), results + k * kernel.result);
                     }
                     store(erased, first, results, count);
                   }
                 });
    return;
  }
  const int64_t blocks = plan.inner_kept ? (n + kColumns - 1) / kColumns : 1;
  const int64_t work = std::min(length, per_chunk) * width;
  parallel_for(
      plan.kept_size * blocks * chunks, std::max<int64_t>(1, kReduceChunk / 2 / work),
      [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t chunk = task % chunks, block = task / chunks % blocks;
          const int64_t first = chunk * per_chunk, count = std::min(length - first, per_chunk);
          const ReduceWalk at(plan.kept, plan.kept_count, task / chunks / blocks);
          ReduceWalk row(plan.reduced, plan.reduced_count, cut_inner ? 0 : first);
          std::byte* part = partial ? partial + chunk * outputs * kernel.result : nullptr;
          if (plan.inner_kept) {
            const int64_t column = block * kColumns;
            driver.columns(plan.inner, from + (at.offset + column * stride) * kernel.item, row,
                           count, at.out + column * plan.inner.out, std::min(n - column, kColumns),
                           part);
          } else {
            const int64_t start = cut_inner ? first * stride : 0;
            alignas(kResultBytes) std::byte result[kResultBytes];
            kernel.run(from + (at.offset + start) * kernel.item, row, cut_inner ? 1 : count,
                       cut_inner ? count : n, stride, driver.shift_of(at.out), result);
            driver.put(part, at.out, 1, result, 1);
          }
        }
      });
  if (partial) driver.join_chunks(partial, chunks, outputs);
}

}  // namespace detail
}  // namespace tessera
