// SPDX-License-Identifier: Apache-2.0
// CopiedWeights: weights that two stages of one rank share, as tied embeddings do where the ends of
// a model lie together. The later stage computes with a copy of its own, since a unit of data
// parallelism has its parameters for itself; names, optimizer and checkpoints know the first alone.
#pragma once

#include "tessera/nn/module.h"
#include "tessera/nn/parameters.h"

#include <span>
#include <string>
#include <vector>

namespace tessera::models {

class CopiedWeights final : public nn::Module {
 public:
  /// `weight` of an earlier stage and `copy` of the last one, without bytes, are one weight.
  void add(const std::string& name, const Tensor& weight, const Tensor& copy);
  /// The modules of the copies, which whoever lists the last stage leaves out.
  [[nodiscard]] std::span<const std::string> modules() const { return modules_; }
  /// Gives copies the values of their weights, if these were written or filled since.
  void refresh();
  /// Adds the gradients of copies to those of their weights.
  void add_gradients();

  void visit(nn::Visitor& visitor) override;

 private:
  std::vector<nn::NamedParameter> weights_, copies_;
  std::vector<std::string> modules_;
  std::vector<uint32_t> versions_;  // of the weights that copies have; empty: none yet
};

}  // namespace tessera::models
