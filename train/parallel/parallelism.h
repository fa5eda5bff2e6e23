// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run share its work: the list of parallel passes, and what follows from it: the
// fields, the mesh, the faults, and the rows of the batch that a rank reads. These follow from its
// coordinates on the mesh, never from its rank in the world.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/dist/mesh.h"
#include "tessera/train/parallel/activation_checkpoint.h"
#include "tessera/train/parallel/context.h"
#include "tessera/train/parallel/data.h"
#include "tessera/train/parallel/expert.h"
#include "tessera/train/parallel/mixed_precision.h"
#include "tessera/train/parallel/pipeline.h"
#include "tessera/train/parallel/tensor.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

template <class... Passes> struct PassList {
  struct Fields : Passes::Fields... {};
  static std::vector<ParallelPass> rows() { return {Passes::row()...}; }
  /// In the order of the mesh's axes.
  static void fields(Fields& all, config::Fields& f) { add<Passes...>(all, f); }

 private:
  template <class Pass, class... Rest> static void add(Fields& all, config::Fields& f) {
    if constexpr (sizeof...(Rest) > 0) add<Rest...>(all, f);
    typename Pass::Fields& own = all;
    if constexpr (requires { own.fields(f); }) own.fields(f);
  }
};

/// In the order in which they change a model: what cuts layers comes first, what shards the
/// parameters that are left comes last. Axes of the mesh lie the other way round, so that ranks
/// that talk most are neighbours.
using ParallelPasses =
    PassList<TensorParallel, ContextParallel, ExpertParallel, ActivationCheckpointing,
             MixedPrecision, DataParallel, PipelineParallel>;
[[nodiscard]] TESSERA_API std::span<const ParallelPass> parallel_passes();

struct TESSERA_API ParallelismConfig : ParallelPasses::Fields {
  void fields(config::Fields& f);
  /// Faults of single fields that their limits do not tell.
  [[nodiscard]] Faults conflicts() const;

  /// How many of `ranks` ranks have the same stages of a pipeline: all, without one. ConfigError:
  /// its degree does not divide them.
  [[nodiscard]] int64_t stage_ranks(int64_t ranks) const;
  /// The axes of a mesh of `ranks` ranks with the same stages, outermost first: dp_replicate,
  /// dp_shard, context_axes() and tp; all exist, also of size 1. ConfigError: the degrees do not
  /// multiply to `ranks`.
  [[nodiscard]] std::vector<MeshAxis> axes(int64_t ranks) const;
  /// The names of the axes of a kind, outermost first.
  [[nodiscard]] std::vector<std::string> axes_that(bool PassAxis::*kind) const;
  /// How many ranks they have on a mesh of `ranks` ranks; ConfigError as axes.
  [[nodiscard]] int64_t ranks_of(int64_t ranks, bool PassAxis::*kind) const;
  /// Into how many parts the rows of a batch are cut on `ranks` ranks of the world; ConfigError as
  /// stage_ranks and axes.
  [[nodiscard]] int64_t data_parts(int64_t ranks) const {
    return ranks_of(stage_ranks(ranks), &PassAxis::cuts_rows);
  }
};

/// Faults of the degrees with the model and with the ranks, as far as these are known, and among
/// each other.
[[nodiscard]] TESSERA_API Faults parallelism_faults(const PassFacts& facts);

/// The mesh of a run: `axes` of the ranks with this rank's stages of a pipeline (without one, of
/// all ranks of the world), and the products that a step sums over
/// (`dp`: tokens, `loss`: losses, `shards`: norms), with their groups; `cp` also names both of the
/// axes that cut sequences, where there are two. Collective, as Mesh::make. ConfigError as axes.
[[nodiscard]] TESSERA_API Mesh make_mesh(const ParallelismConfig& parallelism);

/// All ranks of the world: `pp`, the ranks of a pipeline, and `stage`, those with the same stages.
/// Collective, as Mesh::make.
[[nodiscard]] TESSERA_API Mesh pipeline_mesh(const ParallelismConfig& parallelism);

/// The rows of each batch that this rank reads. Ranks that differ only on other axes read the same.
struct DataShare {
  std::vector<int> axes;  ///< data axes of the mesh: those called `dp...`
  int parts = 1;          ///< product of their sizes
  int part = 0;           ///< which of them is this rank's
  Layout by_rows = {};    ///< of a batch (B, ...): dim 0 sharded over the data axes
  Layout replicated = {};
};
/// Of the calling rank.
[[nodiscard]] TESSERA_API DataShare data_share(const Mesh& mesh);

}  // namespace tessera::train
