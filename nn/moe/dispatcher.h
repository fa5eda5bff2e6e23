// SPDX-License-Identifier: Apache-2.0
// How rows of tokens get to the experts that they chose, and how results come back. A mixture sorts
// its rows by expert and adds the results up; where the experts are is a dispatcher's business.
// Numbers of rows are data: no dispatcher takes another path for a rank without any, so that ranks
// that must meet in a collective do.
#pragma once

#include "tessera/dist/mesh.h"

#include <functional>
#include <string>
#include <utility>

namespace tessera::nn {

class TESSERA_API Dispatcher {
 public:
  /// The networks of this rank's experts: rows (M, dim) grouped by expert, offsets (own experts)
  /// i64, the ends of the groups -> (M, dim).
  using Network = std::function<Tensor(const Tensor& rows, const Tensor& offsets)>;

  virtual ~Dispatcher() = default;
  /// rows (N, dim) grouped by expert, counts (experts) i64 of each, which may add up to less than
  /// N -> the experts' results, in the order of the rows; zeros for those that no expert has.
  /// `meanwhile` runs once, where other work may hide the transfer. All tensors are plain.
  [[nodiscard]] virtual Tensor run(const Tensor& rows, const Tensor& counts, const Network& experts,
                                   const std::function<void()>& meanwhile) const = 0;
};

/// Every rank has all experts, or its part of each.
class TESSERA_API LocalDispatcher final : public Dispatcher {
 public:
  [[nodiscard]] Tensor run(const Tensor& rows, const Tensor& counts, const Network& experts,
                           const std::function<void()>& meanwhile) const override;
};

/// The ranks of one axis have equal parts of the experts, in order: rows travel by exchange_rows,
/// and so do their results. How many is exchanged first, and read on the host.
class TESSERA_API ExchangeDispatcher final : public Dispatcher {
 public:
  ExchangeDispatcher(Mesh mesh, std::string axis) : mesh_(mesh), axis_(std::move(axis)) {}
  [[nodiscard]] Tensor run(const Tensor& rows, const Tensor& counts, const Network& experts,
                           const std::function<void()>& meanwhile) const override;

 private:
  Mesh mesh_;
  std::string axis_;
};

}  // namespace tessera::nn
