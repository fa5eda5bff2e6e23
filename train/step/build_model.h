// SPDX-License-Identifier: Apache-2.0
// The model of a run and the batches that it takes, on the mesh of the run: for training,
// evaluation, generation and the estimate of memory.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/parameters.h"
#include "tessera/nn/pipeline/stage_messages.h"
#include "tessera/train/config/config.h"
#include "tessera/train/data/data.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::train {

/// Fills a model without bytes: nn::initialize, nn::load, nn::lay_out.
using FillModel = std::function<void(models::LanguageModel& model, const nn::LayoutOf& layout_of)>;

/// The model that `config` names, changed for `mesh` by the parallel passes of the run, then filled
/// by `fill` with the layouts that they gave its tensors. UsageError of the passes.
[[nodiscard]] TESSERA_API std::unique_ptr<models::LanguageModel> build_model(const Config& config,
                                                                             const Mesh& mesh,
                                                                             const FillModel& fill);

/// A batch as the model takes it.
struct PlacedBatch {
  Tensor tokens, targets;  ///< (B, T) i64
  models::Metadata metadata;
};

/// The inputs of each stage of a pipeline, by stage, without bytes: equal on all ranks.
using StageInputs = std::vector<std::vector<nn::TensorForm>>;
/// The inputs in training with micro-batches like `batch`, which is on the meta device, where each
/// stage is built.
[[nodiscard]] TESSERA_API StageInputs stage_inputs(const Config& config, const Mesh& mesh,
                                                   const PlacedBatch& batch);

/// Places the rows that this rank has read, equally many on each rank, on the mesh and a device.
/// With a cut (ParallelismConfig::sequence_cut) tokens, targets, positions, documents and
/// padding are cut alike. Balancers look at the masks of all kinds of layers, and a sequence
/// without documents is one document. Sends nothing. Metadata and cut are made again only for a
/// batch whose positions, documents or padding are not those of the batch before, so once for all
/// micro-batches of whole sequences.
class TESSERA_API BatchPlacer {
 public:
  /// `whole`: the metadata of the model for the rows' length.
  BatchPlacer(models::Metadata whole, DataShare share, Device device,
              std::optional<nn::ContextParallelOptions> cut);
  [[nodiscard]] PlacedBatch place(const Batch& rows);

 private:
  void prepare(const Batch& rows);

  models::Metadata whole_;
  DataShare share_;
  Device device_;
  std::optional<nn::ContextParallelOptions> cut_;
  // Of the batch before.
  std::optional<Shape> shape_;
  Tensor positions_, documents_, padding_;
  models::Metadata metadata_;
  std::optional<nn::SequenceCut> sequences_;
};

}  // namespace tessera::train
