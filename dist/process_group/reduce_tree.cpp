// SPDX-License-Identifier: Apache-2.0
// The tree over ranks, one block of elements at a time, with typed loops. Averages are sums,
// divided at the end.
#include "tessera/core/parallel.h"
#include "tessera/dist/process_group/reduce_tree_impl.h"

#include <cstring>
#include <type_traits>

namespace tessera {
namespace {

constexpr int64_t kBlock = 512;      // elements; two blocks of f64 stay in the first cache
constexpr int kLevels = 12;          // 4096 ranks
constexpr int64_t kGrain = 1 << 15;  // elements per piece of work

template <ReduceOp kOp, class C> TESSERA_INLINE C combine(C a, C b) {
  if constexpr (kOp == ReduceOp::sum) {
    if constexpr (std::is_integral_v<C>) {  // wraps
      using U = std::make_unsigned_t<C>;
      return static_cast<C>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  } else {
    const bool first = kOp == ReduceOp::max ? a > b : a < b;
    if constexpr (std::is_floating_point_v<C>) {
      return a != a || first ? a : b;  // a NaN wins, the lower rank's first
    } else {
      return first ? a : b;
    }
  }
}

// The loops over one block, for values of type T that are joined as C. The tree over them is
// compiled once for all.
struct Loops {
  int64_t item, wide;  // bytes of a T and of a C
  void (*load)(void* to, const void* a, int64_t n);
  void (*join_leaves)(void* to, const void* a, const void* b, int64_t n);
  void (*join)(void* to, const void* left, const void* right, int64_t n);
  void (*divide)(void* values, int64_t by, int64_t n);  // null: nothing is left to do
  void (*store)(void* to, const void* values, int64_t n);
};

template <class T, class C> void load(void* to, const void* a, int64_t n) {
  simd([&]() TESSERA_LAMBDA {
    C* __restrict y = static_cast<C*>(to);
    const T* x = static_cast<const T*>(a);
    const int64_t length = n;  // a copy, since y might be written over n as far as g++ knows
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) y[i] = static_cast<C>(x[i]);
  });
}

// `to` is `right` or apart from both.
template <class T, class C, ReduceOp kOp>
void join(void* to, const void* left, const void* right, int64_t n) {
  simd([&]() TESSERA_LAMBDA {
    C* y = static_cast<C*>(to);
    const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
    const int64_t length = n;
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i)
      y[i] = combine<kOp, C>(static_cast<C>(a[i]), static_cast<C>(b[i]));
  });
}

template <class C> void divide(void* values, int64_t by, int64_t n) {
  simd([&]() TESSERA_LAMBDA {
    C* v = static_cast<C*>(values);
    const C divisor = static_cast<C>(by);
    const int64_t length = n;
    for (int64_t i = 0; i < length; ++i) v[i] = v[i] / divisor;
  });
}

template <class T, class C> void store(void* to, const void* values, int64_t n) {
  load<C, T>(to, values, n);
}

template <class T, ReduceOp kOp> constexpr Loops loops_of() {
  using C = compute_t<T>;
  return {sizeof(T),        sizeof(C), &load<T, C>, &join<T, C, kOp>,
          &join<C, C, kOp>, nullptr,   &store<T, C>};
}

template <class T> Loops loops_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::max: return loops_of<T, ReduceOp::max>();
    case ReduceOp::min: return loops_of<T, ReduceOp::min>();
    default: break;
  }
  Loops loops = loops_of<T, ReduceOp::sum>();
  if constexpr (is_floating(dtype_of<T>)) {
    if (op == ReduceOp::avg) loops.divide = &divide<compute_t<T>>;
  }
  return loops;
}

// One block. Blocks of the tree are finished in the order of a binary counter, so that the number
// of buffers is the depth of the tree.
void reduce_block(const Loops& loops, std::span<const void* const> sources,
                  std::span<void* const> outputs, int64_t begin, int64_t length) {
  alignas(64) std::byte memory[(kLevels + 1) * kBlock * sizeof(double)];
  void* level[kLevels + 1];
  for (int l = 0; l <= kLevels; ++l) level[l] = memory + l * kBlock * loops.wide;
  const auto source = [&](int s) {
    return static_cast<const std::byte*>(sources[static_cast<size_t>(s)]) + begin * loops.item;
  };
  const int n = static_cast<int>(sources.size());
  for (int s = 0; s < n; s += 2) {
    void* current = level[0];
    if (s + 1 == n) {
      loops.load(current, source(s), length);
      break;  // the odd leaf waits for the levels above
    }
    loops.join_leaves(current, source(s), source(s + 1), length);
    int l = 1;
    for (int carry = s / 2; carry & 1; carry >>= 1, ++l)
      loops.join(current, level[l], current, length);
    std::swap(level[0], level[l]);
  }
  // What is left are complete trees of falling size: the smallest joins its left neighbour first.
  bool started = n & 1;
  void* sum = level[0];
  for (int l = 1; n >> l; ++l) {
    if (!((n >> l) & 1)) continue;
    if (!started) {
      sum = level[l];
      started = true;
      continue;
    }
    loops.join(sum, level[l], sum, length);
  }
  if (loops.divide) loops.divide(sum, n, length);
  for (void* output : outputs)
    loops.store(static_cast<std::byte*>(output) + begin * loops.item, sum, length);
}

}  // namespace

void reduce_tree(DType dtype, ReduceOp op, std::span<const void* const> sources,
                 std::span<void* const> outputs, int64_t count) {
  if (count == 0) return;
  if (sources.size() == 1) {
    for (void* output : outputs) {
      if (output != sources[0])
        std::memmove(output, sources[0], static_cast<size_t>(count * item_size(dtype)));
    }
    return;
  }
  constexpr DTypeSet kReduced{
      static_cast<uint16_t>(kAllDTypes.bits & ~dtypes_of(DType::bool_).bits)};
  Loops loops{};
  dispatch<kReduced>(dtype, [&]<class T>() { loops = loops_for<T>(op); });
  parallel_for(count, kGrain, [&](int64_t from, int64_t to) {
    for (int64_t begin = from; begin < to; begin += kBlock)
      reduce_block(loops, sources, outputs, begin, std::min(kBlock, to - begin));
  });
}

}  // namespace tessera
