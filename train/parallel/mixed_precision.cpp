// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/mixed_precision.h"

namespace tessera::train {

ParallelPass MixedPrecision::row() {
  return {.remedies = [](const PassSettings& s) {
    std::vector<Remedy> all;
    if (s.compute == DType::f32) all.push_back({{{"training.mixed_precision_param", "bfloat16"}}});
    return all;
  }};
}

nn::MixedPrecision precision_of(const PassSettings& s) {
  nn::MixedPrecision precision;
  if (s.compute != s.parameters) precision.param = s.compute;
  if (s.parameters != DType::f64 && s.reduce != s.parameters) precision.reduce = s.reduce;
  return precision;
}

}  // namespace tessera::train
