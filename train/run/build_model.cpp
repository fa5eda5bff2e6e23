// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/build_model.h"

#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/mixed_precision.h"

namespace tessera::train {

std::unique_ptr<models::LanguageModel> build_model(const Config& config,
                                                   const std::function<void(nn::Module&)>& fill) {
  std::unique_ptr<models::LanguageModel> model = config.model.make();
  fill(*model);
  const auto units = model->units();
  nn::apply_activation_checkpoint(units, config.activation_checkpoint);
  if (config.training.mixed_precision_param != config.model.dtype())
    nn::mixed_precision(*model, units, config.training.mixed_precision_param);
  return model;
}

std::vector<nn::NamedParameter> model_tensors(nn::Module& model) {
  std::vector<nn::NamedParameter> all = nn::named_parameters(model);
  for (auto& b : nn::named_buffers(model, true)) all.push_back(std::move(b));
  return all;
}

}  // namespace tessera::train
