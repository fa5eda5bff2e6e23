// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint of a model alone from tensors that come one at a time, so that a model larger
// than memory can be converted. By the caller alone; saving.h writes what the ranks of a run hold.
#pragma once

#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/manifest.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::train {

/// A tensor to come.
struct ComingTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape = {};
};

/// Writes `folder/step-N`, N being manifest.progress.step, with the files of `tokenizer` if it is
/// not null; files, tokenizer and tensors of the manifest are filled in. read(name) gives each
/// tensor once, in no particular order, in host memory and contiguous; at most one is kept. Returns
/// the bytes written. IoError: it cannot be written, or there is no room. DataError: read() gives
/// another shape or dtype than announced.
TESSERA_API uint64_t write_model(const CheckpointFolder& folder, Manifest manifest,
                                 const Tokenizer* tokenizer,
                                 const std::vector<ComingTensor>& tensors,
                                 const std::function<Tensor(const std::string& name)>& read);

}  // namespace tessera::train
