// SPDX-License-Identifier: Apache-2.0
// A parallel pass is a row of functions that say what it adds to a run. The fields of
// `parallelism`, the mesh, the faults, the model on a rank, the announcement and the remedies for
// too little memory follow from the list of rows in parallelism.h. A pass that has nothing to say
// leaves a function out.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/models/model.h"
#include "tessera/nn/activation_checkpoint.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

struct ParallelismConfig;

/// An axis of the mesh.
struct PassAxis {
  std::string name;
  std::string_view field;          ///< of its degree; neighbours of one field share it
  int64_t ranks = 1;               ///< -1: the ranks that the other degrees leave
  bool cuts_rows = false;          ///< its ranks read different rows of a batch
  bool cuts_sequences = false;     ///< its ranks have different tokens of each row
  bool shards_parameters = false;  ///< fully_shard cuts parameters over it
  bool splits_layers = false;      ///< its ranks have parts of each layer
};

/// What the passes read of a run's configuration.
struct PassSettings {
  const ParallelismConfig& parallelism;
  const nn::ActivationCheckpointConfig& activation_checkpoint;
  DType parameters, compute,
      reduce;  ///< of parameters; of forward and backward; of sums of gradients
};

/// The facts that faults are found from.
struct PassFacts {
  const ParallelismConfig& parallelism;
  models::LanguageModel* model = nullptr;  ///< on the meta device; null: not known
  int64_t ranks = 0;                       ///< with the same stages; 0: not known yet
};

/// Fields of a run that would need less memory, by their names.
struct Remedy {
  std::vector<std::pair<std::string, std::string>> values;
  /// `--training.dtype bfloat16 --parallelism...`
  [[nodiscard]] TESSERA_API std::string text() const;
};

using Faults = std::vector<std::string>;

struct ParallelPass {
  /// Outermost first.
  std::vector<PassAxis> (*axes)(const ParallelismConfig&) = nullptr;
  /// Faults of its fields alone.
  Faults (*conflicts)(const ParallelismConfig&) = nullptr;
  /// Faults with the model and with the ranks, as far as these are known.
  Faults (*faults)(const PassFacts&) = nullptr;
  /// Changes a part of the model that lies on this rank.
  void (*apply)(models::LanguageModel& part, const PassSettings&, const Mesh&) = nullptr;
  /// A line about the run; empty: none.
  std::string (*announce)(const ParallelismConfig&) = nullptr;
  std::vector<Remedy> (*remedies)(const PassSettings&) = nullptr;
};

}  // namespace tessera::train
