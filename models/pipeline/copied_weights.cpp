// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/pipeline/copied_weights.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>

namespace tessera::models {

void CopiedWeights::add(const std::string& name, const Tensor& weight, const Tensor& copy) {
  weights_.push_back({name, weight});
  copies_.push_back({name, copy});
  modules_.push_back(name.substr(0, name.rfind('.')));
}

void CopiedWeights::refresh() {
  const auto on_meta = [](const nn::NamedParameter& w) { return w.tensor.device().is_meta(); };
  if (weights_.empty() || std::ranges::any_of(weights_, on_meta)) return;
  const NoGrad guard;
  std::vector<uint32_t> versions;
  for (const auto& [name, t] : weights_)
    versions.push_back((t.is_distributed() ? local(t) : t).storage().version());
  if (versions == versions_) return;
  versions_ = std::move(versions);
  nn::copy_parameters(*this, weights_);
}

void CopiedWeights::add_gradients() {
  const NoGrad guard;
  for (size_t i = 0; i < copies_.size(); ++i) {
    Tensor &weight = weights_[i].tensor, &copy = copies_[i].tensor;
    const Tensor more = copy.grad();
    if (!more.defined()) continue;
    weight.set_grad(weight.grad().defined() ? weight.grad() + more : more);
    copy.set_grad({});
  }
}

void CopiedWeights::visit(nn::Visitor& visitor) {
  for (auto& [name, tensor] : copies_) visitor.parameter(name, tensor, {});
}

}  // namespace tessera::models
