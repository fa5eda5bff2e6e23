// SPDX-License-Identifier: Apache-2.0
// Checks, rules, gradients and CPU kernels of grouped products. Each group is one product of the
// matmul room's; all of them are shared among the threads together, so that many small groups and
// a few of unlike sizes keep every thread busy. Narrow floats that no product takes are widened to
// f32 and the result is rounded once.
#include "tessera/kernels/grouped_mm/grouped_mm.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/cast_in_kernel.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>
#include <vector>

namespace tessera::op {
namespace {

struct Range {
  int64_t begin, end;
};

// The piece's own rows of each of its groups. Throws before anything is written.
std::vector<Range> group_rows(std::string_view name, const GroupedPiece& piece,
                              const Tensor& offsets, int64_t groups, int64_t rows) {
  const Tensor ends = row_major(offsets);
  const int64_t* end = ends.data<int64_t>();
  const int64_t all = piece.rows < 0 ? rows : piece.rows;
  for (int64_t e = 0; e < ends.numel(); ++e) {
    const int64_t before = e ? end[e - 1] : 0;
    if (end[e] < before || end[e] > all) {
      fail<ValueError>(name, "offset ", e, " of ", offsets.meta(), " is ", end[e], ": expected ",
                       before, " to ", all, ", since groups' rows follow each other");
    }
  }
  std::vector<Range> own;
  const auto row = [&](int64_t at) { return std::clamp<int64_t>(at - piece.first_row, 0, rows); };
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t e = piece.first_group + i;
    own.push_back({row(e ? end[e - 1] : 0), row(end[e])});
  }
  return own;
}

// A stack of matrices by its last two dims, rows or columns of which lie whole.
struct Matrices {
  Tensor t;  // keeps a copy alive
  int64_t row = 0, col = 0, step = 0;

  explicit Matrices(const Tensor& x) : t(x) {
    const int r = t.rank();
    const int64_t rows = t.shape()[r - 2], cols = t.shape()[r - 1];
    const auto strides_of = [&] { row = t.strides()[r - 2], col = t.strides()[r - 1]; };
    strides_of();
    const bool by_rows = cols > 1 && col == 1 && row >= cols,
               by_columns = r > 2 && rows > 1 && row == 1 && col >= rows;
    if (r > 2) step = t.strides()[0];
    if (by_rows || by_columns) return;
    t = row_major(t);
    row = cols, col = 1, step = rows * cols;
  }
  [[nodiscard]] const std::byte* at(int64_t elements) const {
    return static_cast<const std::byte*>(t.raw_data()) + elements * item_size(t.dtype());
  }
};

void check_dtypes(std::string_view name, DTypeSet dtypes, Metas in, const char* a, const char* b) {
  if (in[0].dtype != in[1].dtype || !dtypes.has(in[0].dtype)) {
    fail<DTypeError>(name, a, " and ", b, " must share one dtype of ", dtypes, ": ", a, " is ",
                     in[0], ", ", b, " is ", in[1], "; cast one");
  }
  if (in[2].dtype != DType::i64)
    fail<DTypeError>(name, "offsets must be i64: given ", in[2], "; cast them");
  if (in[2].shape.rank() != 1)
    fail<ShapeError>(name, "offsets must be (E), the end of each group's rows: given ", in[2]);
}

GroupedPiece piece_of(const GroupedPiece& whole, const Piece::Range& rows,
                      const Piece::Range& groups) {
  return {whole.first_row + rows.begin, whole.rows < 0 ? rows.global : whole.rows,
          whole.first_group + groups.begin, groups.size};
}

int64_t groups_of(const GroupedPiece& piece, const TensorMeta& offsets) {
  return piece.groups < 0 ? offsets.shape[0] : piece.groups;
}

Arg ends(std::vector<double> rows) {
  const auto groups = static_cast<int64_t>(rows.size());
  return arg({groups}).listed(std::move(rows)).as(DType::i64);
}
// Of the bench: groups from half to one and a half of the mean.
Arg loads(int64_t rows, int64_t groups) {
  std::vector<double> end;
  for (int64_t e = 1; e <= groups; ++e)
    end.push_back(static_cast<double>(rows * e * (e + groups) / (2 * groups * groups)));
  return ends(std::move(end));
}

}  // namespace

// --- grouped_mm ---------------------------------------------------------------------------------------------------

MetaList GroupedMM::meta(Metas in) const {
  check_dtypes(name, dtypes, in, "x", "w");
  const Shape &x = in[0].shape, &w = in[1].shape;
  if (x.rank() != 2 || w.rank() != 3 || w[transpose ? 2 : 1] != x[1]) {
    fail<ShapeError>(name, "w must be ", transpose ? "(E, N, K)" : "(E, K, N)",
                     " for x (M, K): x is ", in[0], ", w is ", in[1]);
  }
  if (w[0] != groups_of(piece, in[2])) {
    fail<ShapeError>(name, "there must be one offset for each matrix: w is ", in[1],
                     ", offsets are ", in[2]);
  }
  return {{Shape{x[0], w[transpose ? 1 : 2]}, in[0].dtype, in[0].device}};
}

ShardingRule GroupedMM::sharding(Metas in) const {
  // Each piece computes what its own rows and matrices give and zero elsewhere; all see all
  // offsets.
  ShardingRule r;
  const Shape &x = in[0].shape, &w = in[1].shape;
  const auto factor = [&](int64_t size, char letter) {
    return DimFactor{static_cast<int16_t>(r.add_factor(size, letter)), 1};
  };
  const DimFactor m = factor(x[0], 'm'), e = factor(w[0], 'e'),
                  n = factor(w[transpose ? 1 : 2], 'n'), k = factor(x[1], 'k');
  r.operand({m, k});
  if (transpose) r.operand({e, n, k});
  else r.operand({e, k, n});
  r.operand({DimFactor{}}).outputs_from_here().operand({m, n});
  return r.linear({0}).linear({1});
}

GroupedMM GroupedMM::local(const Piece& p) const {
  return {transpose, piece_of(piece, p.range(0, 0), p.range(1, 0))};
}

void GroupedMM::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const DType dtype = in[0].dtype();
  const int64_t rows = in[0].shape()[0], groups = in[1].shape()[0], n = y[0].shape()[1];
  const auto own = group_rows(name, piece, in[2], groups, rows);
  if (y[0].numel() == 0) return;
  if (!gemm_takes(dtype)) return run_widened<3>(*this, in, y);
  const int64_t item = item_size(dtype);
  auto* c = static_cast<std::byte*>(y[0].raw_data());
  const auto clear = [&](int64_t begin, int64_t end) {
    std::memset(c + begin * n * item, 0, static_cast<size_t>((end - begin) * n * item));
  };
  const Matrices x(in[0]), w(in[1]);
  std::vector<Gemm> products;
  int64_t written = 0;  // rows of y that are zero or a product's
  for (int64_t e = 0; e < groups; ++e) {
    const Range range = own[static_cast<size_t>(e)];
    if (range.begin == range.end) continue;
    clear(written, range.begin);
    written = range.end;
    Gemm g;
    g.dtype = dtype;
    g.batch = 1;
    g.m = range.end - range.begin;
    g.n = n;
    g.k = in[0].shape()[1];
    g.a = x.at(range.begin * x.row);
    g.a_row = x.row;
    g.a_col = x.col;
    g.b = w.at(e * w.step);
    g.b_row = transpose ? w.col : w.row;
    g.b_col = transpose ? w.row : w.col;
    g.c = c + range.begin * n * item;
    g.c_row = n;
    products.push_back(g);
  }
  clear(written, rows);
  grouped_gemm(products);
}

Grads GroupedMM::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(3);
  const Tensor &x = s.input(0), &w = s.input(1), &offsets = s.input(2);
  if (needs[0]) g[0] = call(GroupedMM{!transpose, piece}, {dy[0], w, offsets});
  if (needs[1]) {
    g[1] = transpose ? call(GroupedContract{piece}, {dy[0], x, offsets, w})
                     : call(GroupedContract{piece}, {x, dy[0], offsets, w});
  }
  return g;
}

Cost GroupedMM::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops = 2.0 * static_cast<double>(out[0].shape.numel()) * static_cast<double>(in[0].shape[1]);
  return c;
}

std::vector<Sample<GroupedMM>> GroupedMM::samples() {
  return {
      {GroupedMM{true}, {arg({9, 7}), arg({5, 6, 7}), ends({2, 2, 5, 8, 9})}},
      {GroupedMM{false}, {arg({9, 7}), arg({5, 7, 6}), ends({0, 3, 4, 4, 7})}},
      {GroupedMM{true}, {arg({1, 1}), arg({1, 1, 1}), ends({1})}},
      {GroupedMM{true}, {arg({6, 5}), arg({6, 8, 5}), ends({0, 0, 0, 0, 0, 0})}},
      {GroupedMM{true}, {arg({67, 70}), arg({3, 66, 70}), ends({1, 50, 67})}},
      // Several of CUDA's tiles, of rows that begin on 16 bytes.
      {GroupedMM{true}, {arg({70, 104}), arg({3, 136, 104}), ends({66, 66, 69})}},
      {GroupedMM{false}, {arg({70, 40}), arg({3, 40, 24}), ends({2, 2, 70})}},
      known(GroupedMM{true},
            {arg({4, 2}).listed({1, 2, 3, 4, 5, 6, 7, 8}),
             arg({3, 2, 2}).listed({1, 0, 0.5, -1, 9, 9, 9, 9, 2, 1, -1, 1}), ends({2, 2, 3})},
            {{1, -1.5, 3, -2.5, 16, 1, 0, 0}}),  // by hand
      timed(GroupedMM{true}, {arg({4096, 256}), arg({8, 512, 256}), loads(4096, 8)}),
      timed(GroupedMM{true}, {arg({4096, 512}), arg({64, 256, 512}), loads(4096, 64)}),
      timed(GroupedMM{true}, {arg({8192, 1024}), arg({128, 256, 1024}), loads(8192, 128)}),
      timed(GroupedMM{true}, {arg({8, 1024}), arg({128, 768, 1024}), loads(8, 128)}),
      bad(GroupedMM{}, {arg({6, 5}), arg({2, 7, 4}), ends({3, 6})}, "ShapeError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({7, 5}), ends({3, 6})}, "ShapeError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({3, 7, 5}), ends({3, 6})}, "ShapeError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({2, 7, 5}), ends({3, 7})}, "ValueError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({2, 7, 5}), ends({4, 3})}, "ValueError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({2, 7, 5}), ends({-1, 3})}, "ValueError"),
      bad(GroupedMM{}, {arg({6, 5}), arg({2, 7, 5}), arg({2}).as(DType::f32)}, "DTypeError"),
      bad(GroupedMM{}, {arg({6, 5}).as(DType::f32), arg({2, 7, 5}).as(DType::bf16), ends({3, 6})},
          "DTypeError"),
  };
}

// --- grouped_contract ---------------------------------------------------------------------------------------------

MetaList GroupedContract::meta(Metas in) const {
  check_dtypes(name, dtypes, in, "a", "b");
  const Shape &a = in[0].shape, &b = in[1].shape;
  if (a.rank() != 2 || b.rank() != 2 || a[0] != b[0])
    fail<ShapeError>(name, "a (M, P) and b (M, Q) must have the same rows: a is ", in[0], ", b is ",
                     in[1]);
  const TensorMeta out{Shape{groups_of(piece, in[2]), a[1], b[1]}, in[0].dtype, in[0].device};
  if (in.has(3) && (!(in[3].shape == out.shape) || in[3].dtype != out.dtype))
    fail<ShapeError>(name, "like must be ", out, ": given ", in[3]);
  return {out};
}

ShardingRule GroupedContract::sharding(Metas in) const {
  ShardingRule r;
  const Shape &a = in[0].shape, &b = in[1].shape;
  const auto factor = [&](int64_t size, char letter) {
    return DimFactor{static_cast<int16_t>(r.add_factor(size, letter)), 1};
  };
  const DimFactor m = factor(a[0], 'm'), e = factor(groups_of(piece, in[2]), 'e'),
                  p = factor(a[1], 'p'), q = factor(b[1], 'q');
  r.operand({m, p}).operand({m, q}).operand({DimFactor{}});
  if (in.has(3)) r.operand({e, p, q});
  else if (in.size() > 3) r.operand({});
  r.outputs_from_here().operand({e, p, q});
  if (in.has(3)) return r.linear({0}).linear({1}).linear({0, 3}).linear({1, 3});
  return r.linear({0}).linear({1});
}

GroupedContract GroupedContract::local(const Piece& p) const {
  return {piece_of(piece, p.range(0, 0), p.operands.back()[0])};
}

void GroupedContract::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const DType dtype = in[0].dtype();
  const Shape& out = y[0].shape();
  const auto own = group_rows(name, piece, in[2], out[0], in[0].shape()[0]);
  if (y[0].numel() == 0) return;
  if (!gemm_takes(dtype)) return run_widened<3>(*this, in, y);
  const Matrices a(in[0]), b(in[1]);
  std::vector<Gemm> products;
  for (int64_t e = 0; e < out[0]; ++e) {
    const Range range = own[static_cast<size_t>(e)];
    Gemm g;
    g.dtype = dtype;
    g.batch = 1;
    g.m = out[1];
    g.n = out[2];
    g.k = range.end - range.begin;
    g.a = a.at(range.begin * a.row);
    g.a_row = a.col;
    g.a_col = a.row;
    g.b = b.at(range.begin * b.row);
    g.b_row = b.row;
    g.b_col = b.col;
    g.c = static_cast<std::byte*>(y[0].raw_data()) + e * g.m * g.n * item_size(dtype);
    g.c_row = g.n;
    products.push_back(g);
  }
  grouped_gemm(products);
}

Grads GroupedContract::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(s.inputs());
  const Tensor& offsets = s.input(2);
  if (needs[0]) g[0] = call(GroupedMM{true, piece}, {s.input(1), dy[0], offsets});
  if (needs[1]) g[1] = call(GroupedMM{false, piece}, {s.input(0), dy[0], offsets});
  return g;
}

Cost GroupedContract::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops = 2.0 * static_cast<double>(in[0].shape.numel()) * static_cast<double>(in[1].shape[1]);
  return c;
}

std::vector<Sample<GroupedContract>> GroupedContract::samples() {
  return {
      {GroupedContract{}, {arg({9, 6}), arg({9, 7}), ends({2, 2, 5, 8, 9})}},
      {GroupedContract{}, {arg({9, 7}), arg({9, 5}), ends({0, 3, 4, 4, 7}), arg({5, 7, 5})}},
      {GroupedContract{}, {arg({1, 1}), arg({1, 1}), ends({1})}},
      {GroupedContract{}, {arg({67, 34}), arg({67, 36}), ends({1, 50, 67})}},
      {GroupedContract{}, {arg({104, 72}), arg({104, 24}), ends({3, 103, 103})}},
      known(GroupedContract{},
            {arg({4, 2}).listed({1, 2, 3, 4, 5, 6, 7, 8}),
             arg({4, 2}).listed({1, 0, 0.5, -1, 2, 1, 9, 9}), ends({2, 2, 3})},
            {{2.5, -3, 4, -4, 0, 0, 0, 0, 10, 5, 12, 6}}),  // by hand
      bad(GroupedContract{}, {arg({6, 5}), arg({7, 5}), ends({3, 6})}, "ShapeError"),
      bad(GroupedContract{}, {arg({6, 5}), arg({6, 4}), ends({3, 6}), arg({2, 5, 5})},
          "ShapeError"),
      bad(GroupedContract{}, {arg({6, 5}), arg({6, 4}), ends({3, 7})}, "ValueError"),
      bad(GroupedContract{}, {arg({6, 5}), arg({6, 4}), arg({2}).as(DType::f32)}, "DTypeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor grouped_mm(const Tensor& x, const Tensor& w, const Tensor& offsets, const Tensor& bias) {
  const Tensor ends = as_index(offsets);
  const Tensor y = call(op::GroupedMM{}, {x, w, ends});
  if (!bias.defined()) return y;
  // The bias is added by a second product, of a column of ones. Where x is distributed a sum over
  // its columns says how the ones lie.
  const Tensor ones = x.is_distributed() ? full_like(sum(x.detach(), {1}, true), 1)
                                         : full({x.shape()[0], 1}, 1, x.dtype(), x.device());
  return add(y, call(op::GroupedMM{}, {ones, unsqueeze(bias, -1), ends}));
}

}  // namespace tessera
