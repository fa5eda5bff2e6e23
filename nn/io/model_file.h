// SPDX-License-Identifier: Apache-2.0
// A model as one safetensors file: all parameters and persistent buffers by their paths. To resume
// a run, use the trainer's checkpoints.
#pragma once

#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/parameters.h"

#include <string>
#include <vector>

namespace tessera::nn {

/// What a file or a checkpoint of a model holds: its parameters, then its persistent buffers.
[[nodiscard]] TESSERA_API std::vector<NamedParameter> model_tensors(Module& model);
/// Whether this rank is the first of the mesh that `t` lies on, which writes it; true if it is
/// plain.
[[nodiscard]] TESSERA_API bool is_first_of_mesh(const Tensor& t);

/// Writes global parameters, also of a sharded model: then all ranks of its mesh call it, and the
/// first one writes. With plain parameters every caller writes: if several ranks hold the same
/// model, only one may call it, since two must not write one path at once. IoError: the file cannot
/// be written; an old one is unchanged.
TESSERA_API void save(Module& model, const std::string& path, const io::Metadata& metadata = {},
                      io::FileMode mode = {});
/// Loads a file of save, or any file with the same names; distributed parameters keep their
/// layouts. IoError, DataError: the file cannot be read, or its tensors do not match the model.
TESSERA_API void load(Module& model, const std::string& path, Device device = kCpu);

}  // namespace tessera::nn
