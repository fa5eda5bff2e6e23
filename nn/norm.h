// SPDX-License-Identifier: Apache-2.0
// The norm of a model that is described by data: which one it is, is a value and not a type.
#pragma once

#include "tessera/nn/layers.h"

#include <string>

namespace tessera::nn {

/// RmsNorm or LayerNorm, under the names of their parameters. x (..., dim) -> (..., dim).
class TESSERA_API Norm final : public Layer<Norm> {
 public:
  enum class Kind : uint8_t { rms, layer };
  struct Config {
    Kind kind = Kind::rms;
    int64_t dim = 0;
    double eps = 1e-5;
    double weight_offset = 0;  ///< of rms: as RmsNorm's
    bool bias = true;          ///< of layer: whether it has one
    DType dtype = DType::f32;
  };
  explicit Norm(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Tensor weight, bias;  // (dim); bias may be undefined

 private:
  friend class Layer<Norm>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  Config config_;
};

}  // namespace tessera::nn
