// SPDX-License-Identifier: Apache-2.0
// For tests: redistribution with data, forward and backward, against a brute-force oracle: whole
// values are small integers, so that every sum is exact and results compare bit for bit.
#pragma once

#include "tessera/dist/dtensor.h"
#include "tessera/tests/support/all_layouts.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <iostream>

namespace tessera::trial {

// Element (i, j) of the whole.
inline double truth(int64_t i, int64_t j) {
  return static_cast<double>((i * 7 + j * 13) % 29 - 11);
}

// This rank's part of the whole under a layout, made without any collective. Summands of a partial
// differ by rank and add up; maxima and minima lie on one rank each.
inline Tensor part_of(Layout layout, const Shape& shape, Device device = kCpu) {
  const Shape size = layout.local_shape(shape);
  const auto [members, own, op, averaged] = PartialTerm(layout);
  std::vector<double> values;
  for (int64_t i = 0; i < size[0]; ++i) {
    for (int64_t j = 0; j < size[1]; ++j) {
      const int64_t gi = layout.range(shape, 0).begin + i, gj = layout.range(shape, 1).begin + j;
      const double v = truth(gi, gj);
      const int winner = static_cast<int>((gi + gj) % members);
      if (op == ReduceOp::max) values.push_back(own == winner ? v : v - 1 - own);
      else if (op == ReduceOp::min) values.push_back(own == winner ? v : v + 1 + own);
      else values.push_back((own == winner ? v - 3 * (members - 1) : 3) * averaged);
    }
  }
  return to_device(from_values(values, size, DType::f64), device);
}

inline bool same_values(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.values() == b.values();
}

// Whether x's part is that of the whole: exactly where no axis is partial, else after a reduction.
inline bool holds(const Tensor& x, const Shape& shape) {
  const Layout layout = layout_of(x);
  if (!(local(x).shape() == layout.local_shape(shape))) return false;
  const Tensor y = redistribute(x, layout.without_partials());
  return same_values(local(y), part_of(layout_of(y), shape));
}

// One case, forward and backward. The gradient given is the truth again, so it must arrive as such.
inline bool one_case(Layout from, Layout to, const Shape& shape, Device device) {
  Tensor x = make_distributed(part_of(from, shape, device), shape, from);
  x.set_requires_grad();
  const Tensor y = redistribute(x, to);
  if (layout_of(y) != to || !holds(y.detach(), shape)) return false;
  const Layout arriving = to.without_partials();
  backward(y, {.gradient = make_distributed(part_of(arriving, shape, device), shape, arriving)});
  if (from == to) return true;
  const Layout back = layout_of(x.grad());
  for (int a = 0; a < from.mesh().axes(); ++a) {
    const Placement expected =
        from.placement(a).kind == Placement::Kind::shard ? from.placement(a) : Replicate();
    if (!(back.placement(a) == expected)) return false;
  }
  return holds(x.grad(), shape);
}

inline void every_pair(
    const std::vector<MeshAxis>& axes, const Shape& shape,
    Device (*device_of)(int rank) = [](int) { return kCpu; }) {
  int ranks = 1;
  for (const MeshAxis& a : axes) ranks *= a.size;
  std::atomic<int64_t> wrong{0}, pairs{0};
  test::on_ranks(ranks, [&](World& world) {
    const Mesh mesh = Mesh::make(axes);
    const auto layouts = all_layouts(mesh, 2, {ReduceOp::sum});
    for (const AxisStates& f : layouts) {
      for (const AxisStates& t : layouts) {
        const Layout from = Layout::intern(mesh, f), to = Layout::intern(mesh, t);
        if (world.rank() == 0) ++pairs;
        if (one_case(from, to, shape, device_of(world.rank()))) continue;
        if (wrong++ == 0)
          ADD_FAILURE() << from.text() << " -> " << to.placements_text() << " of " << shape;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  if (pairs > 0) std::cout << pairs << " pairs forward and backward, " << wrong << " wrong\n";
}

}  // namespace tessera::trial
