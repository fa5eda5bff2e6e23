// SPDX-License-Identifier: Apache-2.0
// The fixture of tests that compare rooms with values from PyTorch: opens a golden file, runs a
// function on the inputs of each case, compares outputs and gradients as |a - b| / |b| over a whole
// tensor. README.md in this folder says what a file holds.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

inline constexpr double kF32Tolerance = 1e-5, kBf16Tolerance = 2e-2;

// |a - b| / |b|; |a| where b is all zero.
inline double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.values(), y = b.values();
  double gap = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    gap += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(size > 0 ? gap / size : gap);
}

inline void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                         double f32_tolerance = kF32Tolerance) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  const double tolerance = actual.dtype() == DType::bf16 ? kBf16Tolerance : f32_tolerance;
  EXPECT_LE(distance(actual, expected), is_floating(actual.dtype()) ? tolerance : 0) << what;
}

class Golden : public testing::Test {
 protected:
  using Results = std::vector<std::pair<std::string, Tensor>>;  // the differentiated output first

  void open(const std::string& room) {
    file_ = std::make_unique<io::SafetensorsFile>("tests/goldens/" + room + ".safetensors");
    for (const auto& [key, entry] : file_->entries()) cases_.insert(key.substr(0, key.find('/')));
  }
  [[nodiscard]] Tensor get(const std::string& name) const {
    return file_->read(case_ + '/' + name);
  }
  [[nodiscard]] bool has(const std::string& name) const { return file_->has(case_ + '/' + name); }
  [[nodiscard]] std::string attribute(const std::string& name) const {
    return file_->metadata().at(case_ + '/' + name);
  }
  [[nodiscard]] int integer(const std::string& name) const { return std::stoi(attribute(name)); }
  [[nodiscard]] double number(const std::string& name) const { return std::stod(attribute(name)); }
  [[nodiscard]] bool flag(const std::string& name) const { return attribute(name) == "true"; }

  /// Runs `f` on the inputs that have a gradient in the case, and compares its outputs and their
  /// gradients.
  void run(const std::vector<std::string>& inputs,
           const std::function<Results(const std::vector<Tensor>&)>& f) {
    std::vector<Tensor> x;
    for (const auto& name : inputs) x.push_back(get(name).set_requires_grad());
    const Results results = f(x);
    for (const auto& [name, tensor] : results) expect_close(tensor, get(name), case_ + '/' + name);
    const Tensor& y = results[0].second;
    // dy is f32 also where the loss is: the sum of cross entropy.
    backward(y, {.gradient = cast(reshape(get("dy"), y.shape()), y.dtype())});
    for (size_t i = 0; i < x.size(); ++i) {
      expect_close(x[i].grad(), get("d_" + inputs[i]), case_ + "/d_" + inputs[i], kF32Tolerance);
    }
  }
  /// The same for each case of a room.
  void each(const std::string& room, const std::vector<std::string>& inputs,
            const std::function<Results(const std::vector<Tensor>&)>& f) {
    open(room);
    for (const auto& name : cases_) {
      case_ = name;
      run(inputs, f);
    }
  }

  Session session_;
  std::unique_ptr<io::SafetensorsFile> file_;
  std::set<std::string> cases_;
  std::string case_;
};

using X = std::vector<Tensor>;

}  // namespace tessera
