// SPDX-License-Identifier: Apache-2.0
// Checks, gradients and CPU routes of matmul. Every call becomes one Gemm: leading dims fold into
// rows where strides allow, transposition is a swap of strides, anything else is copied first.
// Narrow floats that no route takes are widened to f32 and the result is rounded once.
#include "tessera/kernels/matmul/matmul.h"

#include "tessera/core/parallel.h"
#include "tessera/core/process.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/matmul/gemm_kinds_impl.h"
#include "tessera/kernels/pointwise/cast_in_kernel.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/products/micro_tiles_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>
#include <vector>

namespace tessera {
namespace op {
namespace {

struct Dims {
  int64_t m, n, k_a, k_b;
};
Dims dims_of(const MatMul& op, Metas in) {
  const Shape &a = in[0].shape, &b = in[1].shape;
  const int ra = a.rank(), rb = b.rank();
  return {a[op.transpose_a ? ra - 1 : ra - 2], b[op.transpose_b ? rb - 2 : rb - 1],
          a[op.transpose_a ? ra - 2 : ra - 1], b[op.transpose_b ? rb - 1 : rb - 2]};
}

void check_pair(std::string_view name, DTypeSet dtypes, Metas in) {
  if (in[0].dtype != in[1].dtype || !dtypes.has(in[0].dtype)) {
    fail<DTypeError>(name, "operands must share one dtype of ", dtypes, ": a is ", in[0], ", b is ",
                     in[1], "; cast one");
  }
}

Shape leading(const Shape& s, int drop) {
  Shape lead;
  for (int i = 0; i < s.rank() - drop; ++i) lead.push_back(s[i]);
  return lead;
}

// The stride by which all leading dims (all but the last `keep`) advance as one, or -1 if they do
// not.
int64_t folded_stride(const Tensor& x, int keep) {
  int64_t stride = -1, next = 0;
  for (int d = x.rank() - keep - 1; d >= 0; --d) {
    if (x.shape()[d] == 1) continue;
    if (stride < 0) stride = x.strides()[d];
    else if (x.strides()[d] != next) return -1;
    next = x.strides()[d] * x.shape()[d];
  }
  return stride < 0 ? 0 : stride;
}

bool unit_matrix(
    const Tensor& x) {  // one of the last two strides is 1, the other a proper leading dimension
  const int r = x.rank();
  const int64_t row = x.strides()[r - 2], col = x.strides()[r - 1], rows = x.shape()[r - 2],
                cols = x.shape()[r - 1];
  return ((col == 1 || cols == 1) && (row >= cols || rows == 1)) ||
         ((row == 1 || rows == 1) && (col >= rows || cols == 1));
}

// Row-major by its strides too: a dim of size 1 may have any stride and still count as contiguous.
Tensor row_major(const Tensor& x) {
  const Tensor y = contiguous(x.detach());
  return alias(y, y.shape(), contiguous_strides(y.shape()), y.offset());
}

void set_a(Gemm& g, const Tensor& a, bool transpose) {
  const int r = a.rank();
  g.a = a.raw_data();
  g.a_row = a.strides()[r - 2];
  g.a_col = a.strides()[r - 1];
  if (transpose) std::swap(g.a_row, g.a_col);
}
void set_b(Gemm& g, const Tensor& b, bool transpose) {
  const int r = b.rank();
  g.b = b.raw_data();
  g.b_row = b.strides()[r - 2];
  g.b_col = b.strides()[r - 1];
  if (transpose) std::swap(g.b_row, g.b_col);
}

}  // namespace
}  // namespace op

namespace {

constexpr int64_t kSmallProduct =
    48 * 48 * 48;  // multiply-adds below which the own kernel starts sooner

// An empty sum is zero, whatever the dtype.
void write_zeros(const Gemm& g) {
  const int64_t item = item_size(g.wide ? DType::f32 : g.dtype);
  for (int64_t i = 0; i < g.batch * g.m; ++i) {
    const int64_t at = i / g.m * g.c_batch + i % g.m * g.c_row;
    std::memset(static_cast<std::byte*>(g.c) + at * item, 0, static_cast<size_t>(g.n * item));
  }
}

}  // namespace

std::string product_route() {
  const Isa isa = Process::get().isa();
  return concat(library_text(), ", kernels ",
                isa == Isa::avx512 ? "avx512, f32 by own vectors"
                : isa == Isa::avx2 ? "avx2"
                                   : "baseline",
                micro::has_tiles()           ? ", bf16 by own tiles"
                : micro::has_pair_products() ? ", small and grouped bf16 by own vectors"
                                             : "");
}

bool gemm_takes(DType dtype) {
  return dtype == DType::f64 || library_takes(dtype) ||
         (dtype == DType::bf16 && (micro::has_tiles() || micro::has_pair_products()));
}

void gemm(const Gemm& g) {
  if (g.batch == 0 || g.m == 0 || g.n == 0 || (g.k == 0 && g.accumulate)) return;
  if (g.k == 0) return write_zeros(g);
  const bool small = g.m * g.n * g.k <= kSmallProduct;
  if (thin_takes(g)) return thin_gemm({&g, 1});
  if (tile_takes(g)) return tile_gemm({&g, 1});
  // The library prepares each new shape, and is then 5 to 10 % faster at one product of bf16.
  const bool prepared = g.dtype == DType::bf16 && library_takes(g.dtype) && !small;
  if (vector_takes(g) && !prepared) return vector_gemm({&g, 1});
  if (g.dtype == DType::f64 || (g.dtype == DType::f32 && small)) small_gemm(g);
  else library_gemm(g);
}

void grouped_gemm(std::span<const Gemm> all) {
  std::vector<Gemm> thin, vector, tile;
  for (const Gemm& g : all) {
    if (g.batch * g.m * g.n * g.k == 0) gemm(g);
    else if (thin_takes(g)) thin.push_back(g);
    else if (vector_takes(g)) vector.push_back(g);
    else if (tile_takes(g)) tile.push_back(g);
    else gemm(g);
  }
  if (!thin.empty()) thin_gemm(thin);
  if (!vector.empty()) vector_gemm(vector);
  if (!tile.empty()) tile_gemm(tile);
}

namespace op {

MetaList MatMul::meta(Metas in) const {
  check_pair(name, dtypes, in);
  const Shape &a = in[0].shape, &b = in[1].shape;
  if (a.rank() < 2 || b.rank() < 2) {
    fail<ShapeError>(name, "operands need two dims or more: a is ", in[0], ", b is ", in[1],
                     "; reshape a vector to one row");
  }
  const Dims d = dims_of(*this, in);
  if (d.k_a != d.k_b) {
    fail<ShapeError>(name, "inner dimensions differ: a is ", in[0],
                     transpose_a ? " transposed" : "", ", b is ", in[1],
                     transpose_b ? " transposed" : "");
  }
  Shape out;
  if (b.rank() == 2) {
    out = leading(a, 2);
  } else {
    const Shape la = leading(a, 2), lb = leading(b, 2);
    if (la == lb) {
      out = la;
    } else {
      for (int i = 1; i <= std::min(la.rank(), lb.rank()); ++i) {
        const int64_t x = la[la.rank() - i], y = lb[lb.rank() - i];
        if (x != y && x != 1 && y != 1) {
          fail<ShapeError>(name, "leading dims cannot be broadcast together: a is ", in[0],
                           ", b is ", in[1], "; sizes, counted from the right, must be equal or 1");
        }
      }
      out = broadcast_shapes(la, lb, name);
    }
  }
  out.push_back(d.m);
  out.push_back(d.n);
  return {{out, in[0].dtype, in[0].device}};
}

ShardingRule MatMul::sharding(Metas in) const {
  const auto text = [&]() -> RuleText {
    if (in[1].shape.rank() == 2) {
      if (transpose_a)
        return transpose_b ? RuleText("... k m, n k -> ... m n")
                           : RuleText("... k m, k n -> ... m n");
      return transpose_b ? RuleText("... m k, n k -> ... m n")
                         : RuleText("... m k, k n -> ... m n");
    }
    if (transpose_a)
      return transpose_b ? RuleText("... k m, ... n k -> ... m n")
                         : RuleText("... k m, ... k n -> ... m n");
    return transpose_b ? RuleText("... m k, ... n k -> ... m n")
                       : RuleText("... m k, ... k n -> ... m n");
  }();
  return rule(text, in).linear({0}).linear({1});
}

void MatMul::cpu(Tensors in, Outputs y) const {
  Tensor a = in[0], b = in[1], c = y[0];
  if (c.numel() == 0) return;
  const DType dtype = a.dtype();
  if (!gemm_takes(dtype)) return run_widened<2>(*this, in, y);
  const NoGrad guard;
  if (!unit_matrix(a)) a = row_major(a);
  if (!unit_matrix(b)) b = row_major(b);
  const MetaArray metas(Tensors(in.data(), 2));
  const Dims d = dims_of(*this, metas);
  Gemm g;
  g.dtype = dtype;
  g.m = d.m;
  g.n = d.n;
  g.k = d.k_a;
  g.c = c.raw_data();
  g.c_row = d.n;
  set_b(g, b, transpose_b);
  if (b.rank() == 2 && !transpose_a && a.rank() > 2) {
    // All leading dims of a are rows of one product.
    const int64_t lead = a.numel() / std::max<int64_t>(1, d.m * d.k_a);
    const int64_t step = folded_stride(a, 2);
    if (lead > 1 &&
        (step < 0 || step != d.m * a.strides()[a.rank() - 2] || a.strides()[a.rank() - 1] != 1))
      a = row_major(a);
    set_a(g, a, false);
    g.m = c.numel() / d.n;
    return gemm(g);
  }
  set_a(g, a, transpose_a);
  const Shape lead = leading(c.shape(), 2);
  g.batch = lead.numel();
  if (g.batch > 1) {
    // Operands that the batch does not advance uniformly (broadcast in the middle, or both) go one
    // matrix at a time.
    const auto uniform = [&](const Tensor& x) -> int64_t {
      if (x.rank() == 2 || x.numel() == x.shape()[x.rank() - 1] * x.shape()[x.rank() - 2]) return 0;
      if (!(leading(x.shape(), 2) == lead)) return -1;
      return folded_stride(x, 2);
    };
    g.a_batch = uniform(a);
    g.b_batch = uniform(b);
    g.c_batch = d.m * d.n;
    if (g.a_batch < 0 || g.b_batch < 0 || (g.a_batch == 0 && g.b_batch == 0)) {
      const int64_t item = item_size(dtype);
      Gemm one = g;
      one.batch = 1;
      for (int64_t i = 0; i < g.batch; ++i) {
        int64_t rest = i, at_a = 0, at_b = 0;
        for (int dim = lead.rank() - 1; dim >= 0; --dim) {
          const int64_t at = rest % lead[dim];
          rest /= lead[dim];
          const int da = dim - lead.rank() + a.rank() - 2, db = dim - lead.rank() + b.rank() - 2;
          if (da >= 0 && a.shape()[da] != 1) at_a += at * a.strides()[da];
          if (db >= 0 && b.shape()[db] != 1) at_b += at * b.strides()[db];
        }
        one.a = static_cast<const std::byte*>(g.a) + at_a * item;
        one.b = static_cast<const std::byte*>(g.b) + at_b * item;
        one.c = static_cast<std::byte*>(g.c) + i * g.c_batch * item;
        gemm(one);
      }
      return;
    }
  }
  gemm(g);
}

Grads MatMul::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const Tensor &a = s.input(0), &b = s.input(1), &g = dy[0];
  Grads out(2);
  if (needs[0]) {
    // d op(a) = g op(b)^T
    const Tensor da =
        transpose_a ? matmul(b, g, transpose_b, true) : matmul(g, b, false, !transpose_b);
    out[0] = sum_to(da, a.shape());
  }
  if (needs[1]) {
    if (b.rank() == 2 && !transpose_a) {
      out[1] = transpose_b ? contract_leading(g, a) : contract_leading(a, g);
    } else {
      const Tensor db =
          transpose_b ? matmul(g, a, true, transpose_a) : matmul(a, g, !transpose_a, false);
      out[1] = sum_to(db, b.shape());
    }
  }
  return out;
}

Cost MatMul::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops =
      2.0 * static_cast<double>(out[0].shape.numel()) * static_cast<double>(dims_of(*this, in).k_a);
  return c;
}

std::vector<Sample<MatMul>> MatMul::samples() {
  return {
      {{false, false}, {arg({5, 7}), arg({7, 6})}},
      {{true, false}, {arg({7, 5}), arg({7, 6})}},
      {{false, true}, {arg({5, 7}), arg({6, 7})}},
      {{true, true}, {arg({7, 5}), arg({6, 7})}},
      {{false, true}, {arg({2, 5, 3, 7}), arg({6, 7})}},
      {{true, false}, {arg({5, 7, 3}), arg({7, 6})}},
      {{false, false}, {arg({5, 6, 7}), arg({5, 7, 8})}},
      {{true, true}, {arg({2, 5, 7, 6}), arg({2, 5, 8, 7})}},
      {{false, true}, {arg({5, 1, 6, 7}), arg({3, 8, 7})}},
      {{false, false}, {arg({1, 1}), arg({1, 1})}},
      {{false, false}, {arg({70, 65}), arg({65, 33})}},
      known(MatMul{}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6}), arg({3, 1}).listed({1, 0.5, -2})},
            {{-4, -5.5}}),
      known(MatMul{true, true},
            {arg({2, 2}).listed({1, 2, 3, 4}), arg({2, 2}).listed({5, 6, 7, 8})},
            {{23, 31, 34, 46}}),
      timed(MatMul{false, true}, {arg({4096, 256}), arg({768, 256})}),
      timed(MatMul{false, false}, {arg({1024, 1024}), arg({1024, 1024})}),
      bad(MatMul{}, {arg({8, 256, 512}), arg({256, 8})}, "ShapeError"),
      bad(MatMul{}, {arg({3}), arg({3, 2})}, "ShapeError"),
      bad(MatMul{}, {arg({2, 5, 7}), arg({3, 7, 6})}, "ShapeError"),
      bad(MatMul{}, {arg({5, 7}).as(DType::f32), arg({7, 6}).as(DType::bf16)}, "DTypeError"),
  };
}

MetaList ContractLeading::meta(Metas in) const {
  check_pair(name, dtypes, in);
  const Shape &a = in[0].shape, &b = in[1].shape;
  if (a.rank() < 1 || a.rank() != b.rank() || !(leading(a, 1) == leading(b, 1))) {
    fail<ShapeError>(name, "all dims but the last must be equal: a is ", in[0], ", b is ", in[1]);
  }
  return {{{a.back(), b.back()}, in[0].dtype, in[0].device}};
}

ShardingRule ContractLeading::sharding(Metas in) const {
  return rule("... m, ... n -> m n", in).linear({0}).linear({1});
}

void ContractLeading::cpu(Tensors in, Outputs y) const {
  Tensor a = in[0], b = in[1];
  const NoGrad guard;
  if (!gemm_takes(a.dtype())) return run_widened<2>(*this, in, y);
  const auto folds = [](const Tensor& x) {
    return x.strides()[x.rank() - 1] == 1 &&
           (folded_stride(x, 1) >= x.shape().back() || x.numel() == x.shape().back());
  };
  if (!folds(a)) a = row_major(a);
  if (!folds(b)) b = row_major(b);
  Gemm g;
  g.dtype = a.dtype();
  g.m = a.shape().back();
  g.n = b.shape().back();
  g.k = leading(a.shape(), 1).numel();
  g.a = a.raw_data();
  g.a_row = 1;
  g.a_col = std::max(folded_stride(a, 1), g.m);
  g.b = b.raw_data();
  g.b_row = std::max(folded_stride(b, 1), g.n);
  g.b_col = 1;
  g.c = y[0].raw_data();
  g.c_row = g.n;
  gemm(g);
}

Grads ContractLeading::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads out(2);
  const Tensor &a = s.input(0), &b = s.input(1);
  // A 1-D operand is one row; matmul wants two dims.
  const auto rows = [](const Tensor& x) { return x.rank() == 1 ? reshape(x, {1, x.numel()}) : x; };
  if (needs[0]) out[0] = reshape(matmul(rows(b), dy[0], false, true), a.shape());
  if (needs[1]) out[1] = reshape(matmul(rows(a), dy[0]), b.shape());
  return out;
}

Cost ContractLeading::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops =
      2.0 * static_cast<double>(in[0].shape.numel()) * static_cast<double>(in[1].shape.back());
  return c;
}

std::vector<Sample<ContractLeading>> ContractLeading::samples() {
  return {
      {ContractLeading{}, {arg({7, 5}), arg({7, 6})}},
      {ContractLeading{}, {arg({2, 5, 6}), arg({2, 5, 7})}},
      {ContractLeading{}, {arg({5}), arg({6})}},
      known(ContractLeading{},
            {arg({2, 2}).listed({1, 2, 3, 4}), arg({2, 3}).listed({1, 0, 2, -1, 3, 1})},
            {{-2, 9, 5, -2, 12, 8}}),
      timed(ContractLeading{}, {arg({4096, 256}), arg({4096, 768})}),
      bad(ContractLeading{}, {arg({7, 5}), arg({6, 6})}, "ShapeError"),
      bad(ContractLeading{}, {arg({7, 5}).as(DType::f32), arg({7, 6}).as(DType::f64)},
          "DTypeError"),
  };
}

}  // namespace op

Tensor detail::matmul_vectors(const Tensor& a, const Tensor& b, bool transpose_a,
                              bool transpose_b) {
  const bool row = a.rank() == 1, column = b.rank() == 1;
  const auto inner = [](const Tensor& x, bool from_last) {
    return x.rank() == 0   ? -1
           : x.rank() == 1 ? x.numel()
                           : x.shape()[x.rank() - (from_last ? 1 : 2)];
  };
  if (const int64_t k = inner(a, !transpose_a); k < 0 || k != inner(b, transpose_b))
    fail<ShapeError>("matmul", "inner dimensions differ: a is ", a.meta(), ", b is ", b.meta());
  // A column is given as a transposed row: its elements then lie side by side.
  const Tensor y = tessera::call(op::MatMul{transpose_a && !row, transpose_b || column},
                                 {row ? unsqueeze(a, 0) : a, column ? unsqueeze(b, 0) : b});
  Shape shape = y.shape();
  if (column) shape = shape.without(shape.rank() - 1);
  if (row) shape = shape.without(shape.rank() - (column ? 1 : 2));
  return reshape(y, shape);
}

}  // namespace tessera
