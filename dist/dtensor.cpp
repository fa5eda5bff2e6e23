// SPDX-License-Identifier: Apache-2.0
// Creating and reading distributed tensors. Wrapping checks each local tensor against the chunk
// rule.
#include "tessera/dist/dtensor.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/redistribute/redistribute.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <cstring>

namespace tessera {
namespace {

void check_distributed(const Tensor& x, std::string_view who) {
  if (!x.is_distributed())
    fail<LayoutError>(who, x.meta(), " is plain, not distributed: use distribute(x, layout)");
  detail::check_lives(x, who);
}

AxisList all_axes(Mesh mesh) {
  AxisList axes;
  for (int a = 0; a < mesh.axes(); ++a) axes.push_back(a);
  return axes;
}

// The meta of a local tensor as numbers, to compare between ranks.
struct PartMeta {
  int64_t dtype = 0, rank = 0, sizes[kMaxRank] = {}, global[kMaxRank] = {};
  uint64_t layout = 0;  // hash of its text
};

ProcessGroup& whole_group(Mesh mesh) {
  const AxisList axes = all_axes(mesh);
  return mesh.group(std::span<const int>(axes.data(), axes.size()));
}

std::vector<PartMeta> exchange(Mesh mesh, const PartMeta& own) {
  ProcessGroup& group = whole_group(mesh);
  constexpr auto bytes = static_cast<int64_t>(sizeof(PartMeta));
  const Tensor in = empty({bytes}, DType::u8), out = empty({bytes * mesh.size()}, DType::u8);
  std::memcpy(in.raw_data(), &own, sizeof own);
  group.all_gather(in, out)->wait();
  std::vector<PartMeta> all(static_cast<size_t>(mesh.size()));
  std::memcpy(all.data(), out.raw_data(), all.size() * sizeof(PartMeta));
  return all;
}

Shape shape_of(const int64_t* sizes, int64_t rank) {
  return Shape(std::span<const int64_t>(sizes, static_cast<size_t>(rank)));
}

}  // namespace

Layout layout_of(const Tensor& x) {
  check_distributed(x, "layout_of");
  return detail::layout_of(x, "layout_of");
}

Tensor distribute(const Tensor& whole, Layout layout, int source) {
  if (whole.is_distributed())
    fail<LayoutError>("distribute", whole.meta(), " is distributed already: use redistribute");
  check_fits(layout, whole.shape(), "distribute");
  if (whole.requires_grad() && Context::current().grad_enabled) {
    fail<LayoutError>(
        "distribute", whole.meta(),
        " requires grad, which would end here: distribute its detach(), or compute on "
        "distributed tensors from the start");
  }
  if (layout.has_partial()) {
    fail<LayoutError>("distribute", layout.placements_text(),
                      " is partial: distribute() makes replicated or sharded tensors, "
                      "redistribute() partial ones");
  }
  const Mesh mesh = layout.mesh();
  if (source >= mesh.size())
    fail<LayoutError>("distribute", "source ", source, " is not a position of ", mesh.text());
  const NoGrad guard;
  Tensor part = whole.detach();
  if (source >= 0) {
    part = copy(part);
    whole_group(mesh).broadcast(part, source)->wait();
  }
  for (int d = 0; d < whole.rank(); ++d) {
    const Piece::Range r = layout.range(whole.shape(), d);
    if (r.size != r.global) part = slice(part, d, {r.begin, r.begin + r.size});
  }
  return make_distributed(copy(part), whole.shape(), layout);
}

namespace {

// The global size of a sharded dim is the sum over its shards, however uneven they are.
Shape joined(const Shape& part, Layout layout, const std::vector<PartMeta>& all) {
  const Mesh mesh = layout.mesh();
  Shape global = part;
  for (int d = 0; d < part.rank(); ++d) {
    const AxisList axes = layout.axes_of(d);
    if (axes.empty()) continue;
    int64_t total = 0;
    for (int m = 0; m < mesh.size(); ++m) {
      bool first = true;  // among the members that differ on other axes only, one counts
      for (int a = 0; a < mesh.axes(); ++a)
        first &=
            std::find(axes.begin(), axes.end(), a) != axes.end() || mesh.coordinate_at(m, a) == 0;
      if (first) total += all[static_cast<size_t>(m)].sizes[d];
    }
    global[d] = total;
  }
  return global;
}

void check_wrappable(const Tensor& local, std::string_view who) {
  if (local.is_distributed()) fail<LayoutError>(who, local.meta(), " is distributed already");
  if (local.requires_grad() && Context::current().grad_enabled) {
    fail<LayoutError>(
        who, local.meta(),
        " requires grad, and its gradient's type is unknown here: use local_region, which "
        "states it");
  }
}

// With the global shape given, or with that which the parts make up.
Tensor assembled(const Tensor& local, Layout layout, const Shape* given) {
  check_wrappable(local, "from_local");
  check_fits(layout, given ? *given : local.shape(), "from_local");
  PartMeta own;
  own.dtype = static_cast<int64_t>(local.dtype());
  own.rank = local.rank();
  for (int d = 0; d < local.rank(); ++d) own.sizes[d] = local.shape()[d];
  for (int d = 0; given && d < given->rank(); ++d) own.global[d] = (*given)[d];
  own.layout = std::hash<std::string>{}(layout.text());
  const Mesh mesh = layout.mesh();
  const bool alone = whole_group(mesh).backend() == "fake";  // there are no other shards to check
  const auto all = exchange(mesh, own);
  for (int m = 0; m < mesh.size(); ++m) {
    const PartMeta& part = all[static_cast<size_t>(m)];
    const int rank = mesh.ranks()[static_cast<size_t>(m)];
    if (alone && rank != current_group().rank()) continue;
    if (part.layout != own.layout) {
      fail<LayoutError>("from_local", "ranks disagree on the layout: rank ", rank,
                        " gives another than this rank, whose is ", layout.text());
    }
    if (part.dtype != own.dtype || part.rank != own.rank ||
        std::memcmp(part.global, own.global, sizeof own.global) != 0) {
      fail<LayoutError>("from_local", "ranks disagree: rank ", rank, " gives ",
                        static_cast<DType>(part.dtype), shape_of(part.sizes, part.rank), " of ",
                        shape_of(part.global, part.rank), ", this rank ", local.meta(), " of ",
                        shape_of(own.global, own.rank));
    }
  }
  const Shape global = given ? *given : joined(local.shape(), layout, all);
  for (int m = 0; m < mesh.size(); ++m) {
    const PartMeta& part = all[static_cast<size_t>(m)];
    const int rank = mesh.ranks()[static_cast<size_t>(m)];
    if (alone && rank != current_group().rank()) continue;
    std::array<int, kMaxAxes> at{};
    for (int a = 0; a < mesh.axes(); ++a) at[static_cast<size_t>(a)] = mesh.coordinate_at(m, a);
    Shape expected;
    for (int d = 0; d < global.rank(); ++d) expected.push_back(layout.range_at(at, global, d).size);
    if (!(shape_of(part.sizes, part.rank) == expected)) {
      fail<LayoutError>(
          "from_local", "the part of rank ", rank, " is ", shape_of(part.sizes, part.rank),
          ", but ", layout.text(), " of ", global, " gives it ", expected,
          ": parts follow the chunk rule, ceil(size / parts) each and less at the end");
    }
  }
  return make_distributed(local.detach(), global, layout);
}

}  // namespace

Tensor from_local(const Tensor& local, Layout layout, const Shape& global) {
  return assembled(local, layout, &global);
}

Tensor from_local(const Tensor& local, Layout layout) { return assembled(local, layout, nullptr); }

Tensor wrap_local(const Tensor& local, Layout layout, const Shape& global) {
  check_wrappable(local, "wrap_local");
  check_fits(layout, global, "wrap_local");
  if (const Shape expected = layout.local_shape(global); !(local.shape() == expected)) {
    fail<LayoutError>("wrap_local", "the part of this rank is ", local.meta(), ", but ",
                      layout.text(), " of ", global, " gives it ", expected,
                      ": cut it by Layout::range, or join parts of other sizes by from_local");
  }
  return make_distributed(local.detach(), global, layout);
}

Tensor local(const Tensor& x) {
  check_distributed(x, "local");
  return Tensor(x.impl().local).detach();
}

Tensor full_tensor(const Tensor& x) {
  check_distributed(x, "full_tensor");
  return detail::gather_whole(x);
}

Tensor full(const Shape& shape, Scalar value, DType dtype, Layout layout) {
  return call_on(op::Fill{shape, dtype, kCpu, value}, layout);
}

Tensor normal(const Shape& shape, RngKey key, double mean, double std, DType dtype, Layout layout) {
  return call_on(
      op::Random{shape, dtype, kCpu, op::Distribution::normal, mean, std, 0, 1, key, {}, {}},
      layout);
}

}  // namespace tessera
