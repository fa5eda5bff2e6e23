// SPDX-License-Identifier: Apache-2.0
// The values of a step (losses, gradient norm, counts, statistics of the model) as 0-dim tensors,
// which nothing reads before the step's last op: the host reads them all at once, then or later.
#pragma once

#include "tessera/core/tensor.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

/// The names of values that are no statistics of the model.
inline constexpr std::string_view kLossValue = "loss", kNormValue = "grad_norm",
                                  kFlopsValue = "flops", kTargetsValue = "targets",
                                  kSkipValue = "skip";

class TESSERA_API StepValues {
 public:
  /// Adds a 0-dim value to the one of this name, or appends it: sums over micro-batches. Values of
  /// one name have one dtype and layout.
  void add(const std::string& name, const Tensor& value);
  /// Appends a value, whatever its name.
  void append(const std::string& name, const Tensor& value);
  [[nodiscard]] size_t size() const { return values_.size(); }
  /// The value as a plain tensor, equal on all ranks. The first use joins all distributed values so
  /// far, in one collective per layout and dtype. Collective.
  [[nodiscard]] Tensor joined(size_t value);
  [[nodiscard]] std::vector<std::string> names() const;
  /// (values) f64: all values, joined, in order. Collective.
  [[nodiscard]] Tensor gathered();
  /// Reads all values, in order. Collective.
  [[nodiscard]] std::vector<std::pair<std::string, double>> read();

 private:
  void join();
  std::vector<std::pair<std::string, Tensor>> values_;
};

}  // namespace tessera::train
