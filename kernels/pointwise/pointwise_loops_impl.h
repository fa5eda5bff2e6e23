// SPDX-License-Identifier: Apache-2.0
// The CPU loops of the pointwise family. Dims are merged where all operands allow it, so that most calls are one flat
// loop; the inner loop is compiled for strides 1 (vectorised), for broadcast scalars, and for anything else.
#pragma once

#include "tessera/core/parallel.h"
#include "tessera/kernels/loop_nest_impl.h"

namespace tessera {

inline constexpr int64_t kPointwiseGrain = 16384;  // elements per task: a few microseconds

namespace detail {

template <size_t N>
std::array<int64_t, N> unit_strides() {
  std::array<int64_t, N> ones;
  ones.fill(1);
  return ones;
}

template <class Op, class Out, class... In, size_t... I>
void map_row(const Op& op, int64_t n, Out* out, std::tuple<const In*...> in, const int64_t* stride,
             std::index_sequence<I...>) {
  const auto run = [&]<bool... kBroadcast>(std::integer_sequence<bool, kBroadcast...>) {
    simd([&]() TESSERA_LAMBDA {
      const Op f = op;
      Out* __restrict y = out;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        y[i] = static_cast<Out>(f.f(static_cast<compute_t<In>>(std::get<I>(in)[kBroadcast ? 0 : i])...));
      }
    });
  };
  const bool unit = ((stride[1 + I] == 1) && ...) && stride[0] == 1;
  if (unit || n == 1) return run(std::integer_sequence<bool, ((void)I, false)...>{});
  if constexpr (sizeof...(In) == 2) {
    if (stride[0] == 1 && stride[1] == 1 && stride[2] == 0) return run(std::integer_sequence<bool, false, true>{});
    if (stride[0] == 1 && stride[1] == 0 && stride[2] == 1) return run(std::integer_sequence<bool, true, false>{});
  }
  const Op f = op;
  for (int64_t i = 0; i < n; ++i) {
    out[i * stride[0]] = static_cast<Out>(f.f(static_cast<compute_t<In>>(std::get<I>(in)[i * stride[1 + I]])...));
  }
}

}  // namespace detail

/// y[i] = op.f(in[i]...) for tensors of these element types.
template <class Out, class... In, class Op>
void map_elements(const Op& op, const Tensor& y, Tensors in) {
  constexpr size_t kN = 1 + sizeof...(In);
  const int64_t total = y.numel();
  if (total == 0) return;
  [&]<size_t... I>(std::index_sequence<I...> all) {
    Out* out = y.data<Out>();
    const std::tuple<const In*...> pointers{in[I].template data<In>()...};
    if ((in[I].is_contiguous() && ...) && ((in[I].shape() == y.shape()) && ...)) {
      const auto unit = detail::unit_strides<1 + sizeof...(In)>();
      if (total <= kPointwiseGrain) return detail::map_row(op, total, out, pointers, unit.data(), all);
      return parallel_for(total, kPointwiseGrain, [&](int64_t begin, int64_t end) {
        detail::map_row(op, end - begin, out + begin, std::tuple<const In*...>{std::get<I>(pointers) + begin...},
                        unit.data(), all);
      });
    }
    const LoopNest<kN> nest(y.shape(), {&y, &in[I]...});
    const int last = nest.shape.rank() - 1;
    const int64_t n = nest.shape[last], rows = total / n;
    std::array<int64_t, kN> stride;
    for (size_t o = 0; o < kN; ++o) stride[o] = nest.strides[o][last];
    const int64_t cuts = rows >= 8 ? 1 : (n + kPointwiseGrain - 1) / kPointwiseGrain;  // few long rows: cut them too
    const int64_t piece = (n + cuts - 1) / cuts;
    parallel_for(rows * cuts, std::max<int64_t>(1, kPointwiseGrain / piece), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const auto at = nest.row_offsets(task / cuts);
        const int64_t from = task % cuts * piece, count = std::min(piece, n - from);
        if (count <= 0) continue;
        detail::map_row(op, count, out + at[0] + from * stride[0],
                        std::tuple<const In*...>{std::get<I>(pointers) + at[1 + I] + from * stride[1 + I]...},
                        stride.data(), all);
      }
    });
  }(std::index_sequence_for<In...>{});
}

}  // namespace tessera
