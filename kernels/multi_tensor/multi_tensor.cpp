// SPDX-License-Identifier: Apache-2.0
// Sums of squares and scaling of lists on CPU, and the norms and clipping made of them.
#include "tessera/kernels/multi_tensor/multi_tensor.h"

#include "tessera/core/rank.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/shared/tensor_list_impl.h"
#include "tessera/kernels/vector_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

namespace tessera::op {
namespace {

void check_list(std::string_view name, Metas in, size_t first, DTypeSet dtypes) {
  for (size_t i = first; i < in.size(); ++i) {
    if (!in.has(i))
      fail<UsageError>(name, "tensor ", i - first, " of ", in.size() - first,
                       " is undefined; leave it out");
    if (!dtypes.has(in[i].dtype))
      fail<DTypeError>(name, "tensor ", i - first, " must be of ", dtypes, ": given ", in[i]);
  }
}

/// Factors of in[first .. first + n). An output that lacks a factor would be partial, so a cut must
/// go through all tensors: dims at the same place share a factor, of as many steps as divide them
/// all.
std::vector<DimFactors> shared_factors(ShardingRule& r, Metas in) {
  const size_t n = in.size();
  std::vector<DimFactors> lists(n);
  int shared = n > 0 ? kMaxRank : 0;
  for (size_t i = 0; i < n; ++i) shared = std::min(shared, in[i].shape.rank());
  for (int d = 0; d < shared; ++d) {
    int64_t steps = 0;
    bool equal = true;
    for (size_t i = 0; i < n; ++i) {
      steps = std::gcd(steps, in[i].shape[d]);
      equal = equal && in[i].shape[d] == in[0].shape[d];
    }
    const auto factor = static_cast<int16_t>(r.add_factor(steps));
    for (size_t i = 0; i < n; ++i) {
      lists[i].push_back({factor, equal ? 1 : in[i].shape[d] / steps});
    }
  }
  for (size_t i = 0; i < n; ++i) {
    lists[i].resize(static_cast<size_t>(in[i].shape.rank()));
  }
  return lists;
}

// Adds the squares of n values to 32 sums that take turns. Squares of f32 and narrower floats are
// exact in f64, so fma rounds as a product and a sum do.
template <class C> TESSERA_INLINE void add_squares(const C* x, int64_t n, double (&sums)[32]) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int64_t j = 0; j < 32; ++j) {
      const double v = static_cast<double>(x[i + j]);
      sums[j] = vmath::fma(v, v, sums[j]);
    }
  }
  for (int64_t j = 0; j < n - i; ++j) {
    const double v = static_cast<double>(x[i + j]);
    sums[j] = vmath::fma(v, v, sums[j]);
  }
}

// The sum of the squares of n elements. Narrower ones pass through blocks of the compute type: of
// bf16 those at even places, then those at odd ones, which takes no shuffles.
template <class T> double squares_of_run(const T* x, int64_t n) {
  using C = compute_t<T>;
  constexpr int64_t kBlock = 256;
  double sums[32] = {};
  simd([&]() TESSERA_LAMBDA {
    double acc[32] = {};
    if constexpr (std::is_same_v<C, T>) {
      add_squares(x, n, acc);
    } else {
      int64_t at = 0;
      for (; std::is_same_v<T, bf16> && at + kBlock <= n; at += kBlock) {
        C even_odd[kBlock];
        const auto* pairs = reinterpret_cast<const char*>(x + at);
        for (int64_t j = 0; j < kBlock / 2; ++j) {
          uint32_t pair;
          std::memcpy(&pair, pairs + 4 * j, 4);
          even_odd[j] = std::bit_cast<float>(pair << 16);
          even_odd[kBlock / 2 + j] = std::bit_cast<float>(pair & 0xffff0000u);
        }
        add_squares(even_odd, kBlock, acc);
      }
      for (; at < n; at += kBlock) {
        C block[kBlock];
        const int64_t count = std::min(kBlock, n - at);
        for (int64_t j = 0; j < count; ++j) block[j] = static_cast<C>(x[at + j]);
        add_squares(block, count, acc);
      }
    }
    for (int64_t j = 0; j < 32; ++j) sums[j] = acc[j];
  });
  for (int64_t half = 16; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

template <class T> void scale_run(T* x, int64_t n, int64_t stride, double factor) {
  if (stride == 1) {
    simd([&]() TESSERA_LAMBDA {
      const auto f = static_cast<compute_t<T>>(factor);
      T* __restrict y = x;
      for (int64_t i = 0; i < n; ++i) y[i] = scaled(y[i], f);
    });
  } else {
    const auto f = static_cast<compute_t<T>>(factor);
    for (int64_t i = 0; i < n; ++i) x[i * stride] = scaled(x[i * stride], f);
  }
}

}  // namespace

// --- sum of squares -----------------------------------------------------------------------------------------------

MetaList SumSquares::meta(Metas in) const {
  check_list(name, in, 0, dtypes);
  return {{Shape{}, DType::f64, in.size() ? in[0].device : kCpu}};
}

ShardingRule SumSquares::sharding(Metas in) const {
  ShardingRule r;
  for (const DimFactors& dims : shared_factors(r, in)) r.operand(dims);
  return r.outputs_from_here().operand({});
}

void SumSquares::cpu(Tensors in, Outputs y) const {
  SmallVector<Tensor, 16> rows;
  rows.reserve(in.size());
  for (const Tensor& t : in) rows.push_back(row_major(t));
  const ListChunks chunks(rows, [](size_t) { return false; });
  double* total = y[0].data<double>();
  *total = 0;
  if (chunks.count() == 0) return;
  const Tensor buffer = empty({chunks.count()}, DType::f64);
  double* partial = buffer.data<double>();
  chunks.for_each([&](int64_t chunk, size_t i, int64_t begin, int64_t end) {
    const Tensor& x = rows[i];
    dispatch<dtypes>(x.dtype(), [&]<class T>() {
      partial[chunk] = squares_of_run(x.data<T>() + begin, std::min(end, x.numel()) - begin);
    });
  });
  for (int64_t c = 0; c < chunks.count(); ++c) *total += partial[c];
}

Grads SumSquares::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(s.inputs());
  for (size_t i = 0; i < s.inputs(); ++i) {
    if (needs[i]) g[i] = mul(affine(s.input(i), 2, 0), cast(dy[0], s.input(i).dtype()));
  }
  return g;
}

std::vector<Sample<SumSquares>> SumSquares::samples() {
  return {
      {SumSquares{}, {arg({5, 7})}},
      {SumSquares{}, {arg({300}), arg({}), arg({5, 6})}},
      {SumSquares{}, {arg({10, 3}), arg({5})}},
      {SumSquares{}, {arg({6, 5}).as(DType::f32), arg({5}).as(DType::bf16)}},
      known(SumSquares{}, {arg({2}).listed({3, -4}), arg({}).listed({0.5})}, {{25.25}}),
      timed(SumSquares{}, {arg({1024, 1024}), arg({1024})}),
      bad(SumSquares{}, {arg({3}), arg({3}).as(DType::i64)}, "DTypeError"),
      bad(SumSquares{}, {arg({3}), no_arg()}, "UsageError"),
  };
}

// --- scale --------------------------------------------------------------------------------------------------------

MetaList Scale::meta(Metas in) const {
  if (in.size() == 0) fail<UsageError>(name, "expected a factor and tensors: given no inputs");
  if (in[0].dtype != DType::f64) fail<DTypeError>(name, "the factor must be f64: given ", in[0]);
  if (in[0].shape.rank() != 0) fail<ShapeError>(name, "the factor must be 0-dim: given ", in[0]);
  check_list(name, in, 1, dtypes);
  return {};
}

ShardingRule Scale::sharding(Metas in) const {
  ShardingRule r;
  const auto all = own_factors(r, in, 1, in.size() - 1);
  r.operand({});
  for (const DimFactors& dims : all) r.operand(dims);
  r.outputs_from_here();
  for (const DimFactors& dims : all) r.operand(dims);
  return r.linear_all(1, static_cast<int>(in.size()) - 1)
      .stricter_because("a partial factor would make what is written in place partial too");
}

void Scale::cpu(Tensors in, Outputs written) const {
  const double factor = *in[0].data<double>();
  if (factor == 1) return;
  const auto strided = [&](size_t i) { return !written[i].is_contiguous(); };
  ListChunks(written, strided).for_each([&](int64_t, size_t i, int64_t begin, int64_t end) {
    const Tensor& x = written[i];
    dispatch<dtypes>(x.dtype(), [&]<class T>() {
      if (!strided(i))
        return scale_run(x.data<T>() + begin, std::min(end, x.numel()) - begin, 1, factor);
      const LoopNest<1> nest(x.shape(), {&x});
      const int last = nest.shape.rank() - 1;
      const int64_t n = nest.shape[last], rows = x.numel() / n;
      for (int64_t row = 0; row < rows; ++row)
        scale_run(x.data<T>() + nest.row_offsets(row)[0], n, nest.strides[0][last], factor);
    });
  });
}

std::vector<Sample<Scale>> Scale::samples() {
  const Arg factor = arg({}).value(0.625).as(DType::f64);
  return {
      {Scale{}, {factor, arg({5, 7})}},
      {Scale{}, {factor, arg({300}), arg({}), arg({5, 6})}},
      {Scale{}, {factor, arg({10, 3}), arg({5})}},
      known(Scale{},
            {arg({}).listed({0.5}).as(DType::f64), arg({2}).listed({3, -4}), arg({}).listed({1})},
            {{1.5, -2}, {0.5}}),
      known(Scale{}, {arg({}).listed({1}).as(DType::f64), arg({2}).listed({3, -4})}, {{3, -4}}),
      timed(Scale{}, {factor, arg({1024, 1024}), arg({1024})}),
      bad(Scale{}, {arg({}).as(DType::f32), arg({3})}, "DTypeError"),
      bad(Scale{}, {arg({1}).as(DType::f64), arg({3})}, "ShapeError"),
      bad(Scale{}, {factor, arg({3}).as(DType::i64)}, "DTypeError"),
      bad(Scale{}, {factor, no_arg()}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {

namespace {

void check_alike(const std::vector<Tensor>& tensors, std::string_view where) {
  for (const Tensor& t : tensors) {
    if (t.is_distributed() == tensors[0].is_distributed()) continue;
    fail<LayoutError>(where, "plain and distributed tensors in one list: ", tensors[0].meta(),
                      " is ", tensors[0].is_distributed() ? "distributed, " : "plain, ", t.meta(),
                      " is not; distribute the plain ones");
  }
}

Tensor squares_of(const std::vector<Tensor>& tensors, std::string_view where) {
  if (tensors.empty()) return tensor(0, DType::f64);
  check_alike(tensors, where);
  Tensor squares;
  if (tensors[0].is_distributed()) {
    // Tensors of different layouts are no one call; sums that lie alike are added up before they
    // are joined, so that few small collectives serve them all.
    std::vector<Tensor> sums;
    for (const Tensor& t : tensors) {
      const Tensor sum = call(op::SumSquares{}, {t});
      const auto like = std::ranges::find_if(
          sums, [&](const Tensor& s) { return s.impl().layout == sum.impl().layout; });
      if (like == sums.end()) sums.push_back(sum);
      else *like = add(*like, sum);
    }
    for (const Tensor& s : sums) {
      const Tensor whole = detail::distributor_of(where, s).whole(s);
      squares = squares.defined() ? add(squares, whole) : whole;
    }
  } else {
    squares = call(op::SumSquares{}, Tensors(tensors));
  }
  return squares;
}

}  // namespace

Tensor sum_of_squares(const std::vector<Tensor>& tensors) {
  const NoGrad no_grad;
  return squares_of(tensors, "sum_of_squares");
}

Tensor norm(const std::vector<Tensor>& tensors) {
  const NoGrad no_grad;
  return cast(sqrt(squares_of(tensors, "norm")), DType::f32);
}

void scale_(const std::vector<Tensor>& tensors, const Tensor& factor) {
  if (tensors.empty()) return;
  check_alike(tensors, "scale_");
  std::vector<LayoutId> done;
  for (const Tensor& first : tensors) {  // one call for each layout
    const LayoutId layout = first.impl().layout;
    if (std::ranges::count(done, layout)) continue;
    done.push_back(layout);
    std::vector<Tensor> in{factor};
    std::ranges::copy_if(tensors, std::back_inserter(in),
                         [&](const Tensor& t) { return t.impl().layout == layout; });
    call(op::Scale{}, Tensors(in));
  }
}

void scale_(const std::vector<Tensor>& tensors, double factor) {
  if (tensors.empty()) return;
  scale_(tensors, to_device(tensor(factor, DType::f64), tensors[0].device()));
}

}  // namespace tessera
