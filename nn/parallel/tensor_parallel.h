// SPDX-License-Identifier: Apache-2.0
// tensor_parallel: the matmuls of each layer are shared by the ranks of one mesh axis (Shoeybi et
// al., Megatron-LM, 2019), by a plan that is data: for each pattern of modules, how its parameters
// are sharded and how its inputs and outputs lie. The ops compute on distributed tensors by their
// own sharding rules; the pass gives parameters their layouts and adds redistributes where modules
// begin and end. Each family has its plan beside its model (parallel_plan.cpp).
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/nn/module.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::nn {

struct TensorParallelOptions {
  /// Activations between layers are sharded over the sequence (Korthikanti et al., 2022), which
  /// splits norms, dropout and their memory; false: they are replicated.
  bool sequence_parallel = true;
  /// The head is sharded over the vocabulary, and the loss computed without gathering logits;
  /// false: each rank has the whole head.
  bool loss_parallel = true;
  /// Whole experts are given to the ranks of the axis, among others, by expert_parallel; false:
  /// each expert is cut over it.
  bool expert_parallel = false;
  /// Overlap of a matmul with its own collective. Not offered.
  bool asynchronous = false;

  /// How the activations (B, T, dim) between layers lie on the axis.
  [[nodiscard]] Placement stream() const { return sequence_parallel ? Shard(1) : Replicate(); }
};

/// What tensor parallelism does to a module, on its axis alone.
struct TensorParallelStyle {
  /// Of the module's own parameters; those that are not named, or that it lacks, are replicated.
  std::vector<std::pair<std::string, Placement>> parameters = {};
  std::optional<Placement> input = {};  ///< of all floating inputs; none: as they come
  /// Of the first output; others are statistics, and stay as they are.
  std::optional<Placement> output = {};
  /// `output` is only for calls with ids. The same module may also be the head.
  bool of_ids = false;
  /// Above 0: the parameters are this many parts, such as heads, and replicated over a degree that
  /// does not divide them.
  int64_t units = 0;
};

/// A linear layer that computes a part of its outputs: the weight is sharded by rows, which are of
/// `units` parts (0: of any).
[[nodiscard]] TESSERA_API TensorParallelStyle column_parallel(int64_t units = 0);
/// A linear layer that takes a part of its inputs: the weight is sharded by columns, sums are
/// reduced to `output`. Its bias is added once.
[[nodiscard]] TESSERA_API TensorParallelStyle row_parallel(Placement output);
/// An embedding that holds a part of the rows; what others hold is reduced to `output`.
[[nodiscard]] TESSERA_API TensorParallelStyle vocabulary_parallel(Placement output);
/// Replicated parameters, inputs as they come: norms between sharded or replicated activations.
[[nodiscard]] TESSERA_API TensorParallelStyle replicated_parameters();
/// Whole inputs, for column-parallel layers inside; their gradients are reduced where it begins.
[[nodiscard]] TESSERA_API TensorParallelStyle whole_inputs();
/// Whole outputs, and replicated parameters: the last norm, before the head.
[[nodiscard]] TESSERA_API TensorParallelStyle whole_outputs();

struct TensorParallelPlan {
  struct Entry {
    std::string pattern;  ///< of module paths; `*` stands for one part: `layers.*.attention.wq`
    TensorParallelStyle style;
  };
  TensorParallelOptions options = {};
  std::vector<Entry> entries = {};
  /// A number that the degree must divide, with the name of its field: heads.
  struct Divided {
    std::string field;
    int64_t number = 0;
    bool copied = false;  ///< the degree may be a multiple too: ranks have copies of a part then
    [[nodiscard]] bool fits(int64_t degree) const {
      return number % degree == 0 || (copied && degree % number == 0);
    }
  };
  std::vector<Divided> divided = {};

  /// Adds an entry for each pattern.
  TESSERA_API TensorParallelPlan& add(std::initializer_list<std::string_view> patterns,
                                      const TensorParallelStyle& style);
  /// A title, then a line for each entry.
  [[nodiscard]] TESSERA_API std::string text() const;
};

/// Applies `plan` to the modules below `root` on the axis `axis` of `mesh`. All parameters and
/// buffers become distributed tensors on `mesh`, in place: those on the meta device stay there
/// until `initialize(model, seed, laid_out(model, mesh))`; those with values must be equal on all
/// ranks. Inputs of the model must lie on the mesh, replicated on the axis. Gradients of replicated
/// parameters may be Partial on it (under sequence parallelism), until they are reduced with those
/// of the data axes. No communication. UsageError names all faults: an axis that does not exist, a
/// pattern that matches nothing or another's module, a parameter of which it shards a dim that it
/// lacks, a number that the degree does not divide, parameters that are sharded already (this pass
/// comes first), asynchronous.
TESSERA_API void tensor_parallel(Module& root, Mesh mesh, const TensorParallelPlan& plan,
                                 const std::string& axis = "tp");

/// The plan that was applied to `root`, null if none.
[[nodiscard]] TESSERA_API const TensorParallelPlan* tensor_parallel_plan_of(const Module& root);

}  // namespace tessera::nn
