// SPDX-License-Identifier: Apache-2.0
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
  if constexpr (kOp == ReduceOp::sum || kOp == ReduceOp::avg) {
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

// One block. Blocks of the tree are finished in the order of a binary counter, so that the number
// of buffers is the depth of the tree.
template <class T, ReduceOp kOp>
TESSERA_INLINE void reduce_block(std::span<const void* const> sources,
                                 std::span<void* const> outputs, int64_t begin, int64_t length) {
  using C = compute_t<T>;
  alignas(64) C memory[kLevels + 1][kBlock];
  C* level[kLevels + 1];
  for (int l = 0; l <= kLevels; ++l) level[l] = memory[l];
  const auto source = [&](int s) {
    return static_cast<const T*>(sources[static_cast<size_t>(s)]) + begin;
  };
  const int n = static_cast<int>(sources.size());
  C* current = level[0];
  for (int s = 0; s < n; s += 2) {
    const T* a = source(s);
    current = level[0];
    if (s + 1 == n) {
      for (int64_t i = 0; i < length; ++i) current[i] = static_cast<C>(a[i]);
      break;  // the odd leaf waits for the levels above
    }
    const T* b = source(s + 1);
    for (int64_t i = 0; i < length; ++i)
      current[i] = combine<kOp, C>(static_cast<C>(a[i]), static_cast<C>(b[i]));
    int l = 1;
    for (int carry = s / 2; carry & 1; carry >>= 1, ++l) {
      const C* left = level[l];
      for (int64_t i = 0; i < length; ++i) current[i] = combine<kOp, C>(left[i], current[i]);
    }
    std::swap(level[0], level[l]);
    current = level[l];
  }
  // What is left are complete trees of falling size: the smallest joins its left neighbour first.
  bool started = n & 1;
  C* sum = level[0];
  for (int l = 1; n >> l; ++l) {
    if (!((n >> l) & 1)) continue;
    if (!started) {
      sum = level[l];
      started = true;
      continue;
    }
    const C* left = level[l];
    for (int64_t i = 0; i < length; ++i) sum[i] = combine<kOp, C>(left[i], sum[i]);
  }
  if constexpr (kOp == ReduceOp::avg) {
    const C ranks = static_cast<C>(n);
    for (int64_t i = 0; i < length; ++i) sum[i] = sum[i] / ranks;
  }
  for (void* output : outputs) {
    T* out = static_cast<T*>(output) + begin;
    for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(sum[i]);
  }
}

template <class T, ReduceOp kOp>
void reduce_all(std::span<const void* const> sources, std::span<void* const> outputs,
                int64_t count) {
  parallel_for(count, kGrain, [&](int64_t from, int64_t to) {
    simd([&]() TESSERA_LAMBDA {
      for (int64_t begin = from; begin < to; begin += kBlock)
        reduce_block<T, kOp>(sources, outputs, begin, std::min(kBlock, to - begin));
    });
  });
}

template <class T>
void reduce_typed(ReduceOp op, std::span<const void* const> sources, std::span<void* const> outputs,
                  int64_t count) {
  switch (op) {
    case ReduceOp::sum: return reduce_all<T, ReduceOp::sum>(sources, outputs, count);
    case ReduceOp::max: return reduce_all<T, ReduceOp::max>(sources, outputs, count);
    case ReduceOp::min: return reduce_all<T, ReduceOp::min>(sources, outputs, count);
    case ReduceOp::avg:
      if constexpr (is_floating(dtype_of<T>))
        return reduce_all<T, ReduceOp::avg>(sources, outputs, count);
  }
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
  dispatch<kReduced>(dtype, [&]<class T>() { reduce_typed<T>(op, sources, outputs, count); });
}

}  // namespace tessera
