// SPDX-License-Identifier: Apache-2.0
// The golden of a type of models (tests/goldens/types): its configuration, its text, and the model
// with the weights of the formula (formula_weights.h).
#pragma once

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/hugging_face.h"
#include "tessera/models/models.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/formula_weights.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace tessera::test {

/// What a config.json of this text says.
inline models::HfModel read_type(const nlohmann::json& config) {
  return models::parse_hf_config(config.dump(), "config.json", models::families());
}

struct GoldenType {
  explicit GoldenType(const std::string& name)
      : golden(nlohmann::json::parse(std::ifstream("tests/goldens/types/" + name + ".json"))),
        theirs(read_type(golden["config"][0])) {}

  /// (B, T) i64.
  [[nodiscard]] Tensor ids(const std::string& of) const {
    std::vector<double> values;
    for (const auto& row : golden[of])
      for (const int64_t id : row) values.push_back(static_cast<double>(id));
    const auto b = static_cast<int64_t>(golden[of].size());
    return from_values(values, {b, static_cast<int64_t>(values.size()) / b}, DType::i64);
  }
  /// The model's configuration in this dtype.
  [[nodiscard]] models::ModelConfig config(DType dtype) const {
    models::ModelConfig c = theirs.config;
    c.dtype() = dtype;
    return c;
  }
  /// Gives the formula's values to all parameters of a model, or of a part of it, wherever they
  /// lie, and makes it evaluate: the goldens are without dropout.
  void fill(nn::Module& model, DType dtype) const {
    const models::HfTensors tensors(*theirs.names, theirs.config);
    const auto read = [&](const std::string& name, const Shape& begin, const Shape& size) {
      const nlohmann::json& t = golden["tensors"].at(name);
      Tensor part = formula_tensor(name, Shape(t["shape"].get<std::vector<int64_t>>()), t["scale"],
                                   t["centre"]);
      for (int i = 0; i < part.rank(); ++i) part = narrow(part, i, begin[i], size[i]);
      return contiguous(part);
    };
    const NoGrad guard;
    for (const auto& p : nn::named_parameters(model)) {
      const Shape shape = p.tensor.shape();
      Shape begin = shape;
      for (int i = 0; i < p.tensor.rank(); ++i) begin[i] = 0;
      nn::copy_values(p.tensor, cast(tensors.read(p.name, begin, shape, read), dtype));
    }
    model.eval();
  }
  [[nodiscard]] std::unique_ptr<models::LanguageModel> make(DType dtype) const {
    auto model = config(dtype).make();
    nn::initialize(*model, 0);
    fill(*model, dtype);
    return model;
  }

  nlohmann::json golden;
  models::HfModel theirs;
};

}  // namespace tessera::test
