// SPDX-License-Identifier: Apache-2.0
// A model as one safetensors file: all parameters and persistent buffers under their paths. Runs
// that stop and go on need more than that: the trainer's checkpoints.
#pragma once

#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/module.h"

#include <string>

namespace tessera::nn {

/// Writes the model whole, also where it lies cut over a mesh; then all its ranks call it, and the
/// first of them writes. Plain parameters are written by whoever calls: of several ranks that hold
/// the same, the caller lets one do it, since two must not write one path at once. IoError: the
/// file cannot be written; the old one is there still.
TESSERA_API void save(Module& model, const std::string& path, const io::Metadata& metadata = {});
/// Reads what save wrote, or any file with the same names; parameters that are distributed keep
/// their layouts. IoError, DataError: the file, or what in it does not fit.
TESSERA_API void load(Module& model, const std::string& path, Device device = kCpu);

}  // namespace tessera::nn
