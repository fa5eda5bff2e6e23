// SPDX-License-Identifier: Apache-2.0
// The small types in a room's signatures: arguments and results of meta, kernels, sharding and vjp.
#pragma once

#include "tessera/core/small_vector.h"
#include "tessera/core/tensor.h"
#include "tessera/core/tensor_fwd.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

using MetaList = SmallVector<TensorMeta, 2>;

/// Shapes and dtypes of an op's inputs. `has(i)` is false for an undefined optional input.
class Metas {
 public:
  Metas(const TensorMeta* const* metas, size_t n) : metas_(metas), n_(n) {}
  [[nodiscard]] size_t size() const { return n_; }
  [[nodiscard]] bool has(size_t i) const { return i < n_ && metas_[i]; }
  const TensorMeta& operator[](size_t i) const {
    if (!has(i)) missing(i);
    return *metas_[i];
  }

 private:
  [[noreturn]] TESSERA_API void missing(size_t i) const;
  const TensorMeta* const* metas_;
  size_t n_;
};

/// The arrays behind a Metas view, made from tensors or metas.
class MetaArray {
 public:
  explicit MetaArray(Tensors in) {
    for (const Tensor& t : in) pointers_.push_back(t.defined() ? &t.meta() : nullptr);
  }
  explicit MetaArray(std::span<const TensorMeta> in) {
    for (const TensorMeta& m : in) pointers_.push_back(&m);
  }
  operator Metas() const { return {pointers_.data(), pointers_.size()}; }

 private:
  SmallVector<const TensorMeta*, 8> pointers_;
};

/// Operands of the forward call that are saved for backward; metas of all operands always are.
struct Saves {
  uint32_t input_mask = 0, output_mask = 0;  // bit i: operand i; an op on a list saves all or none
  static constexpr uint32_t kAll = ~0u;
  static constexpr Saves none() { return {}; }
  static constexpr Saves inputs() { return {kAll, 0}; }
  static constexpr Saves output() { return {0, 1}; }
  template <class... I> static constexpr Saves input(I... i) { return {(0u | ... | (1u << i)), 0}; }
  template <class... I> static constexpr Saves outputs(I... i) {
    return {0, (0u | ... | (1u << i))};
  }
  constexpr Saves operator|(Saves o) const {
    return {input_mask | o.input_mask, output_mask | o.output_mask};
  }
  [[nodiscard]] constexpr bool saves_input(size_t i) const {
    return input_mask == kAll || (i < 32 && input_mask >> i & 1);
  }
  [[nodiscard]] constexpr bool saves_output(size_t i) const {
    return output_mask == kAll || (i < 32 && output_mask >> i & 1);
  }
};

/// The saved operands of the forward call, for vjp. Reading one that `saves` does not declare is a
/// UsageError.
class Saved {
 public:
  Saved(Tensors in, Tensors out, Metas in_metas, Metas out_metas)
      : in_(in), out_(out), in_metas_(in_metas), out_metas_(out_metas) {}
  [[nodiscard]] const Tensor& input(size_t i) const {
    return in_[i].defined() ? in_[i] : undeclared("input", i);
  }
  [[nodiscard]] const Tensor& output(size_t i = 0) const {
    return out_[i].defined() ? out_[i] : undeclared("output", i);
  }
  /// Whether optional input i was given.
  [[nodiscard]] bool has_input(size_t i) const { return in_metas_.has(i); }
  [[nodiscard]] const TensorMeta& input_meta(size_t i) const { return in_metas_[i]; }
  [[nodiscard]] const TensorMeta& output_meta(size_t i = 0) const { return out_metas_[i]; }
  [[nodiscard]] size_t inputs() const { return in_metas_.size(); }

 private:
  [[noreturn]] TESSERA_API const Tensor& undeclared(const char* what, size_t i) const;
  Tensors in_, out_;
  Metas in_metas_, out_metas_;
};

/// Gradients by operand; an undefined tensor is zero.
class Grads : public SmallVector<Tensor, 3> {
 public:
  using SmallVector::SmallVector;
};

/// The inputs whose gradients are needed.
class Needs {
 public:
  Needs() = default;
  explicit Needs(size_t n, bool on = false) {
    for (size_t i = 0; i < n; ++i) need_.push_back(on);
  }
  [[nodiscard]] bool operator[](size_t i) const { return need_[i]; }
  void set(size_t i, bool on = true) { need_[i] = on; }
  [[nodiscard]] size_t size() const { return need_.size(); }

 private:
  SmallVector<bool, 16> need_;
};

/// Shape, strides and offset of a view, all in elements.
struct Geometry {
  Shape shape, strides;
  int64_t offset = 0;
};

/// The reduction that makes partial outputs of a dropped factor complete.
enum class Join : uint8_t { sum, max, min };

/// Reduces over the pieces of one call while they run; implemented by the caller of the pieces.
class TESSERA_API Joiner {
 public:
  virtual ~Joiner();
  /// All-reduces x over the pieces. Every piece calls it, empty ones too, in the same order, with
  /// contiguous plain tensors of one shape and dtype.
  virtual void all_reduce(const Tensor& x, Join join) = 0;
};

/// One rank's part of a call: for each operand (inputs, then outputs) and dim, the range that this
/// rank holds. A dim that is not sharded has begin 0 and size == global.
struct Piece {
  struct Range {
    int64_t begin = 0, size = 0, global = 0;
  };
  std::vector<std::vector<Range>> operands;
  /// Reduces over the pieces of the factor that joins inside; null if that factor is not sharded.
  /// `local` stores it in the op, not as an attribute.
  std::shared_ptr<Joiner> joiner;
  [[nodiscard]] const Range& range(size_t operand, int dim) const {
    return operands[operand][static_cast<size_t>(dim)];
  }
  [[nodiscard]] Shape local_shape(size_t operand) const {
    Shape s;
    for (const Range& r : operands[operand]) s.push_back(r.size);
    return s;
  }
};

/// Cost of one call, for the bench: floating-point operations and bytes moved.
struct Cost {
  double flops = 0, bytes = 0;
};

namespace detail {
/// Every operand read or written once: the cost of an op that defines no `cost`.
TESSERA_API Cost bytes_moved(Metas in, Metas out);
}  // namespace detail

}  // namespace tessera
