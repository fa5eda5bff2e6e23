// SPDX-License-Identifier: Apache-2.0
// What a model is as a whole, whether or not its parts lie on the ranks of a pipeline: names,
// sizes, one file.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/io/model_file.h"
#include "tessera/nn/parameters.h"

#include <string>
#include <vector>

namespace tessera::models {

/// The model itself, or, of a pipeline, the whole one without bytes.
[[nodiscard]] TESSERA_API LanguageModel& whole_of(LanguageModel& model);
/// All parameters and persistent buffers in the order of the whole model; undefined tensors are on
/// other ranks of the pipeline.
[[nodiscard]] TESSERA_API std::vector<nn::NamedParameter> whole_tensors(LanguageModel& model);
/// The names of those that other ranks of the pipeline have, and not this one.
[[nodiscard]] TESSERA_API std::vector<std::string> names_elsewhere(LanguageModel& model);
/// As nn::save, of the whole model: the first rank of the world writes. Collective over all ranks
/// that have a part of it.
TESSERA_API void save_whole(LanguageModel& model, const std::string& path,
                            const io::Metadata& metadata = {}, io::FileMode mode = {});

}  // namespace tessera::models
