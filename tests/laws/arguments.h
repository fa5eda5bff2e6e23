// SPDX-License-Identifier: Apache-2.0
// Making the tensors that the laws feed to ops, and comparing what comes back. Every tensor lies
// inside a larger storage with poisoned guards on both sides, so that reading or writing beyond it
// shows.
#pragma once

#include "tessera/core/sample.h"
#include "tessera/core/tensor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::laws {

/// TESSERA_TEST_SEED, or a fresh one for this process.
uint64_t test_seed();

/// Random numbers from the test seed and a name, so that each law of each sample can be repeated
/// alone.
class Random {
 public:
  explicit Random(std::string_view what, uint64_t seed = test_seed());
  double normal() { return normal_(engine_); }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

/// How a tensor lies in its storage: `turned` with its first dim innermost and the others in their
/// order, `odd` contiguous from an odd element on.
enum class Order : uint8_t { contiguous, transposed, turned, gapped, odd };

/// The elements an Arg asks for, before they are rounded to `dtype`.
std::vector<double> values_for(const Arg& arg, DType dtype, Random& random);
/// A tensor of these values, guards around it and poison between its elements.
Tensor place(std::span<const double> values, const Shape& shape, DType dtype,
             Order order = Order::contiguous);
/// An uninitialised contiguous tensor whose every byte, guards included, is `poison`.
Tensor poisoned(const TensorMeta& meta, int poison);
/// True if a guard of poisoned() was overwritten.
bool guards_damaged(const Tensor& t, int poison);
/// The same bits in new storage.
Tensor clone(const Tensor& x, Order order = Order::contiguous);
/// The elements' bytes in row-major order.
std::vector<std::byte> packed(const Tensor& x);
std::vector<std::byte> storage_bytes(const Tensor& x);

/// Why `got` is not `want`: shape, dtype, or ||got - want|| > tolerance * ||want||. Integers and tolerance 0 compare bits.
/// `terms` is how many numbers an element may be a sum of: where they cancel, their rounding errors
/// remain.
std::optional<std::string> difference(const Tensor& got, const Tensor& want, double tolerance,
                                      double terms = 1);
std::optional<std::string> difference(std::span<const double> got, std::span<const double> want,
                                      double tolerance, double terms = 1);
/// Input elements for each element of `out`.
double terms_of(std::span<const Tensor> in, const Tensor& out);

/// Rounding errors to expect of a result in this dtype, relative to its norm.
double tolerance_of(DType t);

double dot(const Tensor& a, const Tensor& b);
double norm(const Tensor& x);

}  // namespace tessera::laws
