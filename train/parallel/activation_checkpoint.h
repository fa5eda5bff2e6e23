// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing as a pass: the fields of nn::ActivationCheckpointConfig, which nn, below
// fields, does not have, and its place among the passes.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/train/parallel/pass.h"

namespace tessera::train {

struct ActivationCheckpointing {
  struct Fields {};  // it has none in `parallelism`
  static ParallelPass row();
};

/// The fields of the section activation_checkpoint.
struct TESSERA_API ActivationCheckpointFields {
  nn::ActivationCheckpointConfig& c;
  void fields(config::Fields& f);
};

}  // namespace tessera::train
