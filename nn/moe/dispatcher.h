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

/// The rows of one rank, for the experts of all.
struct Dispatch {
  Tensor rows;              ///< (N, dim), grouped by expert
  Tensor counts;            ///< (experts) i64, of each; they may add up to less than N
  int64_t most_tokens = 0;  ///< tokens of the rank that has most of them, on all ranks
  int64_t top_k = 1;        ///< rows of a token, each for another expert
};

struct Dispatched {
  Tensor rows;    ///< (N, dim): the experts' results in the order of the rows, zeros for no expert
  Tensor counts;  ///< (experts) i64: how many rows of this rank were computed; undefined: all
};

class TESSERA_API Dispatcher {
 public:
  /// The networks of this rank's experts: rows (M, dim) grouped by expert, offsets (own experts)
  /// i64, the ends of the groups -> (M, dim).
  using Network = std::function<Tensor(const Tensor& rows, const Tensor& offsets)>;

  virtual ~Dispatcher() = default;
  /// `meanwhile` runs once, where other work may hide the transfer. All tensors are plain.
  [[nodiscard]] virtual Dispatched run(const Dispatch& given, const Network& experts,
                                       const std::function<void()>& meanwhile) const = 0;
};

/// Every rank has all experts, or its part of each.
class TESSERA_API LocalDispatcher final : public Dispatcher {
 public:
  [[nodiscard]] Dispatched run(const Dispatch& given, const Network& experts,
                               const std::function<void()>& meanwhile) const override;
};

/// The ranks of one axis have equal parts of the experts, in order: rows travel by exchange_rows,
/// and so do their results. How many is exchanged first, and read on the host.
class TESSERA_API ExchangeDispatcher final : public Dispatcher {
 public:
  ExchangeDispatcher(Mesh mesh, std::string axis) : mesh_(mesh), axis_(std::move(axis)) {}
  [[nodiscard]] Dispatched run(const Dispatch& given, const Network& experts,
                               const std::function<void()>& meanwhile) const override;

 private:
  Mesh mesh_;
  std::string axis_;
};

/// The same with padding (GShard): each rank sends every expert a buffer of
/// ceil(factor * most_tokens * top_k / experts) rows, at most most_tokens, so that all sizes follow
/// from the configuration and the shape of x, and none is read on the host. Unused places are
/// zeros, which travel and are computed like rows; what finds no place is dropped. A factor of
/// experts / top_k holds every row.
class TESSERA_API PaddedDispatcher final : public Dispatcher {
 public:
  PaddedDispatcher(Mesh mesh, std::string axis, double factor)
      : mesh_(mesh), axis_(std::move(axis)), factor_(factor) {}
  [[nodiscard]] Dispatched run(const Dispatch& given, const Network& experts,
                               const std::function<void()>& meanwhile) const override;

 private:
  Mesh mesh_;
  std::string axis_;
  double factor_;
};

}  // namespace tessera::nn
