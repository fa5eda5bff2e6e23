// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/step_values.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>

namespace tessera::train {

void StepValues::add(const std::string& name, const Tensor& value) {
  const NoGrad guard;
  for (auto& [known, sum] : values_) {
    if (known != name) continue;
    sum = sum + value.detach();
    return;
  }
  append(name, value);
}

void StepValues::append(const std::string& name, const Tensor& value) {
  values_.emplace_back(name, value.detach());
}

Tensor StepValues::joined(size_t value) {
  join();
  return values_[value].second;
}

void StepValues::join() {
  const NoGrad guard;
  for (auto& [name, first] : values_) {
    if (!first.is_distributed()) continue;
    std::vector<Tensor*> alike;
    std::vector<Tensor> parts;
    for (auto& [other, value] : values_) {
      if (!value.is_distributed() || layout_of(value) != layout_of(first) ||
          value.dtype() != first.dtype())
        continue;
      alike.push_back(&value);
      parts.push_back(value);
    }
    const Tensor whole = full_tensor(stack(parts));  // (values)
    for (size_t i = 0; i < alike.size(); ++i) *alike[i] = select(whole, 0, static_cast<int64_t>(i));
  }
}

std::vector<std::string> StepValues::names() const {
  std::vector<std::string> all;
  for (const auto& [name, value] : values_) all.push_back(name);
  return all;
}

Tensor StepValues::gathered() {
  join();
  const NoGrad guard;
  std::vector<Tensor> wide;
  for (const auto& [name, value] : values_) wide.push_back(cast(value, DType::f64));
  return stack(wide);
}

std::vector<std::pair<std::string, double>> StepValues::read() {
  const std::vector<double> numbers = gathered().values();
  std::vector<std::pair<std::string, double>> all;
  for (size_t i = 0; i < numbers.size(); ++i) all.emplace_back(values_[i].first, numbers[i]);
  return all;
}

}  // namespace tessera::train
