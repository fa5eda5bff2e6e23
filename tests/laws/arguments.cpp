// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/laws/arguments.h"

#include "tessera/core/rng.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace tessera::laws {
namespace {

constexpr int64_t kGuard = 64;  // elements on each side; keeps 64-byte alignment for every dtype
// Room behind small tensors for a kernel that writes eight bytes where there is one.
constexpr int64_t guard_after(int64_t n) { return kGuard + (n <= 65536 ? 8 * n : 0); }
constexpr int kInputPoison = 0xff;  // NaN in every floating dtype, -1 in integers

struct Placement {
  Shape strides;
  int64_t offset = kGuard, extent = 0;
};

Placement placement(const Shape& shape, Order order) {
  Placement p;
  Shape stored = shape;
  const auto rearrange = [&](Shape& dims, bool back) {
    int64_t* const first = &dims[0];
    const int n = dims.rank();
    if (n == 0) return;
    if (order == Order::transposed) std::reverse(first, first + n);
    if (order == Order::turned) std::rotate(first, back ? first + n - 1 : first + 1, first + n);
  };
  rearrange(stored, false);
  const int64_t step = order == Order::gapped ? 2 : 1;
  for (int d = 0; d < stored.rank(); ++d) stored[d] *= step;
  p.strides = contiguous_strides(stored);
  p.extent = stored.numel();
  rearrange(p.strides, true);
  for (int d = 0; d < shape.rank(); ++d) p.strides[d] *= step;
  if (order == Order::odd || (order == Order::gapped && shape.rank() > 0)) ++p.offset;
  return p;
}

Tensor allocate(const Shape& shape, DType dtype, Order order, int poison) {
  const Placement p = placement(shape, order);
  const Tensor all = empty({kGuard + p.extent + guard_after(p.extent)}, dtype);
  std::memset(all.raw_data(), poison, static_cast<size_t>(all.storage().bytes()));
  return alias(all, shape, p.strides, p.offset);
}

// Calls f(i, place) for each element in row-major order, `place` in elements from the first one.
template <class F> void for_each_element(const Tensor& x, F&& f) {
  Shape at = Shape::filled(x.rank(), 0);
  for (int64_t i = 0, n = x.numel(); i < n; ++i) {
    int64_t where = 0;
    for (int d = 0; d < x.rank(); ++d) where += at[d] * x.strides()[d];
    f(i, where);
    for (int d = x.rank() - 1; d >= 0 && ++at[d] == x.shape()[d]; --d) at[d] = 0;
  }
}

void fill_packed(const Tensor& x, const std::byte* from) {
  const auto item = static_cast<size_t>(item_size(x.dtype()));
  auto* to = static_cast<std::byte*>(x.raw_data());
  for_each_element(x, [&](int64_t i, int64_t where) {
    std::memcpy(to + where * static_cast<int64_t>(item), from + i * static_cast<int64_t>(item),
                item);
  });
}

}  // namespace

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TESSERA_TEST_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device{}() % 1000000007u;
  }();
  return seed;
}

Random::Random(std::string_view what, uint64_t seed)
    : engine_(seed * 0x9E3779B97F4A7C15ull ^ stream_of(what)) {}

std::vector<double> values_for(const Arg& arg, DType dtype, Random& random) {
  std::vector<double> values(static_cast<size_t>(arg.shape.numel()));
  const bool whole = !is_floating(dtype);
  const double lowest = dtype == DType::u8 ? 0 : -3;
  switch (arg.fill) {
    case Arg::Fill::normal:
      for (double& v : values)
        v = whole ? lowest + static_cast<double>(random.below(7)) : random.normal();
      break;
    case Arg::Fill::uniform:
      for (double& v : values) v = random.uniform(arg.low, arg.high);
      break;
    case Arg::Fill::integers:
      for (double& v : values)
        v = arg.low + static_cast<double>(random.below(static_cast<int64_t>(arg.high - arg.low)));
      break;
    case Arg::Fill::distinct: {
      std::iota(values.begin(), values.end(), -static_cast<double>(values.size() / 2));
      for (size_t i = values.size(); i > 1; --i)
        std::swap(values[i - 1],
                  values[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
      if (!whole) {
        for (double& v : values) v /= 8;
      }
      break;
    }
    case Arg::Fill::boolean:
      for (double& v : values) v = static_cast<double>(random.below(2));
      break;
    case Arg::Fill::value: std::ranges::fill(values, arg.low); break;
    case Arg::Fill::listed:
      for (size_t i = 0; i < values.size(); ++i) values[i] = arg.list.at(i % arg.list.size());
      break;
  }
  if (dtype == DType::u8) {
    for (double& v : values) v = std::max(v, 0.0);
  }
  if (dtype == DType::bool_) {
    for (double& v : values) v = v > 0;
  }
  return values;
}

Tensor place(std::span<const double> values, const Shape& shape, DType dtype, Order order) {
  const Tensor t = allocate(shape, dtype, order, kInputPoison);
  if (t.numel() > 0)
    fill_packed(t, static_cast<const std::byte*>(from_values(values, shape, dtype).raw_data()));
  return t;
}

Tensor poisoned(const TensorMeta& meta, int poison) {
  return allocate(meta.shape, meta.dtype, Order::contiguous, poison);
}

bool guards_damaged(const Tensor& t, int poison) {
  const auto bytes = storage_bytes(t);
  const int64_t item = item_size(t.dtype());
  const auto before = static_cast<ptrdiff_t>(kGuard * item),
             after = static_cast<ptrdiff_t>(guard_after(t.numel()) * item);
  const auto whole = [&](std::byte b) { return b == static_cast<std::byte>(poison); };
  return !std::all_of(bytes.begin(), bytes.begin() + before, whole) ||
         !std::all_of(bytes.end() - after, bytes.end(), whole);
}

Tensor clone(const Tensor& x, Order order) {
  const Tensor t = allocate(x.shape(), x.dtype(), order, kInputPoison);
  if (x.numel() > 0) fill_packed(t, packed(x).data());
  return t;
}

std::vector<std::byte> packed(const Tensor& x) {
  const auto item = static_cast<size_t>(item_size(x.dtype()));
  std::vector<std::byte> bytes(static_cast<size_t>(x.numel()) * item);
  if (bytes.empty()) return bytes;
  const Tensor here = to_device(x, kCpu);
  const auto* from = static_cast<const std::byte*>(here.raw_data());
  for_each_element(here, [&](int64_t i, int64_t where) {
    std::memcpy(&bytes[static_cast<size_t>(i) * item], from + where * static_cast<int64_t>(item),
                item);
  });
  return bytes;
}

std::vector<std::byte> storage_bytes(const Tensor& x) {
  const auto* from = static_cast<const std::byte*>(x.storage().data());
  return {from, from + x.storage().bytes()};
}

std::optional<std::string> difference(std::span<const double> got, std::span<const double> want,
                                      double tolerance, double terms) {
  double error = 0, size = 0, worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = got[i], b = want[i];
    const bool same = a == b || (std::isnan(a) && std::isnan(b));
    if (!same && !(std::isfinite(a) && std::isfinite(b)))
      return concat("element ", i, " is ", a, ", expected ", b);
    if (std::isfinite(b)) size += b * b;
    const double e = same ? 0 : std::abs(a - b);
    error += e * e;
    if (e > worst) {
      worst = e;
      at = i;
    }
  }
  error = std::sqrt(error);
  size = std::sqrt(size);
  if (error <=
      tolerance * (size + 0.5 * std::sqrt(static_cast<double>(want.size()) * std::max(1.0, terms))))
    return {};
  return concat("off by ", error / std::max(size, 1e-300), " of the norm, expected at most ",
                tolerance, "; element ", at, " is ", got[at], ", expected ", want[at]);
}

std::optional<std::string> difference(const Tensor& got, const Tensor& want, double tolerance,
                                      double terms) {
  if (got.shape() != want.shape() || got.dtype() != want.dtype())
    return concat("is ", got.meta(), ", expected ", want.meta());
  if (!is_floating(want.dtype())) tolerance = 0;
  if (tolerance > 0) return difference(got.values(), want.values(), tolerance, terms);
  const auto a = packed(got), b = packed(want);
  const auto first = std::ranges::mismatch(a, b).in1;
  if (first == a.end()) return {};
  const auto i =
      static_cast<size_t>(first - a.begin()) / static_cast<size_t>(item_size(got.dtype()));
  return concat("bits differ: element ", i, " is ", got.values()[i], ", expected ",
                want.values()[i]);
}

double terms_of(std::span<const Tensor> in, const Tensor& out) {
  double elements = 0;
  for (const Tensor& x : in) elements += x.defined() ? static_cast<double>(x.numel()) : 0;
  return elements / static_cast<double>(std::max<int64_t>(1, out.numel()));
}

double tolerance_of(DType t) {
  switch (t) {
    case DType::f64: return 1e-10;
    case DType::f32: return 1e-5;
    case DType::bf16: return 2e-2;
    case DType::f16: return 2e-3;
    case DType::f8_e4m3:
    case DType::f8_e5m2: return 0.3;
    default: return 0;
  }
}

double dot(const Tensor& a, const Tensor& b) {
  const auto x = a.values(), y = b.values();
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}
double norm(const Tensor& x) { return std::sqrt(dot(x, x)); }

}  // namespace tessera::laws
