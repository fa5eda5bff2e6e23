// SPDX-License-Identifier: Apache-2.0
// Samples: example inputs that a room provides for laws, benchmarks and docs. An Arg says how to
// fill an input; a law chooses its dtype among the room's dtypes unless it is fixed.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/core/shape.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct Arg {
  enum class Fill : uint8_t { normal, uniform, integers, distinct, boolean, value, listed };
  Shape shape;
  Fill fill = Fill::normal;
  double low = -2, high = 2;
  std::vector<double> list;    // of Fill::listed
  std::optional<DType> dtype;  // fixed, else the law's choice
  bool wide = false;           // statistics: the law's choice, but f32 for narrower floats
  bool differentiable = true;  // false: the op takes it as a constant
  bool defined = true;         // false: an optional input left out

  /// The dtype of this input when the law chose `t`.
  [[nodiscard]] DType type(DType t) const {
    if (dtype) return *dtype;
    return wide && is_floating(t) && item_size(t) < 4 ? DType::f32 : t;
  }

  /// Uniform in [lo, hi).
  [[nodiscard]] Arg uniform(double lo, double hi) const { return with(Fill::uniform, lo, hi); }
  /// Integers in [lo, hi) of the law's dtype, non-negative if it is unsigned.
  [[nodiscard]] Arg whole(int64_t lo, int64_t hi) const {
    return with(Fill::integers, static_cast<double>(lo), static_cast<double>(hi));
  }
  /// All values different by at least 1/8, in random order (ties break max, topk and sort).
  [[nodiscard]] Arg distinct() const { return with(Fill::distinct, 0, 0); }
  [[nodiscard]] Arg value(double v) const { return with(Fill::value, v, v); }
  /// These values in row-major order, over and over (positions, sorted boundaries).
  [[nodiscard]] Arg listed(std::vector<double> values) const {
    Arg a = with(Fill::listed, 0, 0);
    a.list = std::move(values);
    return a;
  }
  [[nodiscard]] Arg as(DType t) const {
    Arg a = *this;
    a.dtype = t;
    return a;
  }
  /// A statistic: f32 for narrower floats, else the law's choice.
  [[nodiscard]] Arg statistic() const {
    Arg a = *this;
    a.wide = true;
    return a;
  }

 private:
  [[nodiscard]] Arg with(Fill f, double lo, double hi) const {
    Arg a = *this;
    a.fill = f;
    a.low = lo;
    a.high = hi;
    return a;
  }
};

/// Standard normal values in the law's dtype (small integers for integer dtypes).
inline Arg arg(Shape shape) {
  Arg a;
  a.shape = shape;
  return a;
}
/// Integers in [low, high) of dtype i64.
inline Arg index_arg(Shape shape, int64_t low, int64_t high) {
  Arg a;
  a.shape = shape;
  a.fill = Arg::Fill::integers;
  a.low = static_cast<double>(low);
  a.high = static_cast<double>(high);
  a.dtype = DType::i64;
  return a;
}
inline Arg bool_arg(Shape shape) {
  Arg a;
  a.shape = shape;
  a.fill = Arg::Fill::boolean;
  a.dtype = DType::bool_;
  return a;
}
inline Arg no_arg() {
  Arg a;
  a.defined = false;
  return a;
}

/// One call of an op: attributes and inputs. `throws` names the error type that a bad one must
/// raise; `known` are the outputs, row-major, of one whose result comes from another source.
template <class Op> struct Sample {
  Sample(Op o, std::vector<Arg> inputs, std::string error = {}, bool timed_only = false)
      : op(std::move(o)), in(std::move(inputs)), throws(std::move(error)), bench(timed_only) {}
  Op op;
  std::vector<Arg> in;
  std::string throws;
  bool bench;  // large enough to be timed; left out of the laws
  std::vector<std::vector<double>> known;
};

template <class Op> Sample<Op> bad(Op op, std::vector<Arg> in, std::string error) {
  return {std::move(op), std::move(in), std::move(error)};
}
template <class Op> Sample<Op> timed(Op op, std::vector<Arg> in) {
  return {std::move(op), std::move(in), {}, true};
}
/// A call and its outputs (the written operands of an op that works in place), from a source that
/// is not this op's code: PyTorch, a textbook, a calculation by hand. The inputs are `listed`; each
/// dtype that holds them exactly is compared, so choose numbers of few binary digits.
template <class Op>
Sample<Op> known(Op op, std::vector<Arg> in, std::vector<std::vector<double>> outputs) {
  Sample<Op> sample(std::move(op), std::move(in));
  sample.known = std::move(outputs);
  return sample;
}

}  // namespace tessera
