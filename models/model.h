// SPDX-License-Identifier: Apache-2.0
// LanguageModel: the interface through which a trainer, an evaluator and a generator use any
// language model. A family (llama3, gpt2, ...) derives its model from it, mostly through Decoder
// (decoder.h); models.h lists the families. A stage of a pipeline is a model that keeps some of its
// parts.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/context/generation_cut.h"
#include "tessera/nn/parallel/tensor_parallel.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::models {

/// Inputs of the layers besides activations. A family whose layers differ (full and windowed, with
/// and without RoPE) has one entry per kind of layer and numbers the kinds itself.
struct Metadata {
  std::vector<nn::AttentionMetadata> kinds;
  /// The attention metadata of layers of this kind. IndexError if there is none.
  [[nodiscard]] TESSERA_API const nn::AttentionMetadata& of(size_t kind = 0) const;
  /// The same for packed sequences. (B, T) i64 each: the position of each token in its document,
  /// and document ids; undefined: a sequence is one document. padding: as AttentionMetadata's.
  [[nodiscard]] TESSERA_API Metadata with_documents(const Tensor& positions,
                                                    const Tensor& documents,
                                                    const Tensor& padding = {}) const;
};

/// The KV cache of generation.
struct Cache {
  std::vector<nn::KvCache> layers;  ///< one entry each; equal lengths between forwards
  /// How ranks share texts, with a part of the cache each; none: every rank has all of it.
  std::optional<nn::GenerationCut> cut = {};
};

/// A 0-dim tensor with a name: an auxiliary loss or a statistic of the model.
struct NamedValue {
  std::string name;
  Tensor value;
};

/// Sums over tokens, so that parts of a batch of any sizes add up.
struct Loss {
  Tensor sum;    ///< 0-dim: sum of -log p(target) over tokens with a target
  Tensor count;  ///< 0-dim i64: number of those tokens
  /// Losses that are added to the mean of `sum` (load balance, z-loss): sums over all tokens, of
  /// which the trainer takes the mean over the tokens of a step, with and without a target. Places
  /// without a token (AttentionMetadata::padding) are not among them, nor in what follows.
  std::vector<NamedValue> auxiliary = {};
  /// (layers with experts, 2, experts) i64: how many tokens chose each expert, and how many it
  /// computed. Undefined without experts.
  Tensor load = {};
  /// (layers with experts): how many tokens had scores of experts that are not finite.
  Tensor not_finite = {};
};

/// What the layers of a stage of a pipeline give for a micro-batch.
struct StageOutput {
  TensorList next;  ///< the inputs of the stage after it, or of head_loss
  /// As Loss's, of the layers of this stage alone.
  std::vector<NamedValue> auxiliary = {};
  Tensor load = {}, not_finite = {};
};

/// Device and mesh of the parameters, which tokens and tables must share.
struct Placement {
  Device device = kCpu;
  Mesh mesh = {};  ///< empty: plain tensors
};

class TESSERA_API LanguageModel : public nn::Module {
 public:
  // Properties.
  /// Vocabulary size: token ids are below it.
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  /// Maximum sequence length in tokens.
  [[nodiscard]] virtual int64_t max_seq_len() const = 0;
  [[nodiscard]] virtual Placement placement() const = 0;
  /// The modules that are checkpointed, cast and sharded as units: usually the layers.
  [[nodiscard]] virtual std::vector<nn::Module*> units() = 0;
  /// Modules whose parameters a data-parallel pass gathers and reduces together, in the order of
  /// forward; what is in none of them belongs to the model itself. Default: each of units().
  [[nodiscard]] virtual std::vector<std::vector<nn::Module*>> data_parallel_units();
  /// Floating-point operations that forward and backward over documents of these lengths need: 6
  /// per token and weight in matmuls, and attention of each token to itself and the earlier tokens
  /// of its document. Recompute is not counted. torchtitan counts all pairs of a sequence.
  [[nodiscard]] virtual double flops(std::span<const int64_t> documents) = 0;
  /// How many parameters a token does not use: those of the experts that it does not choose.
  [[nodiscard]] virtual int64_t idle_parameters() { return 0; }

  /// How tensor parallelism shards the members that are present (nn::tensor_parallel applies it).
  /// UsageError: the family has no plan.
  [[nodiscard]] virtual nn::TensorParallelPlan tensor_parallel_plan(
      const nn::TensorParallelOptions& options) const;

  // Computation. tokens and targets (B, T) i64.
  /// Metadata for sequences of `length` tokens, the first at position `start`: made once, used for
  /// all batches of that length. Its tables lie on the device and the mesh of the parameters.
  /// They are tokens of a sequence that will have `whole` (0: it ends with them), by which LongRoPE
  /// chooses its frequencies. ValueError beyond max_seq_len.
  [[nodiscard]] Metadata metadata(int64_t length, int64_t start = 0, int64_t whole = 0) const;
  /// tokens -> (B, T, dim), the input of the head. Without an embedding, x is (B, T, dim) from the
  /// previous stage.
  [[nodiscard]] virtual Tensor features(const Tensor& x, const Metadata& metadata) const = 0;
  /// features (..., dim) -> (..., vocab_size).
  [[nodiscard]] virtual Tensor logits(const Tensor& features) const = 0;
  /// tokens -> logits (B, T, vocab_size).
  [[nodiscard]] virtual Tensor forward(const Tensor& tokens, const Metadata& metadata) const = 0;
  /// The same with one document per sequence; a model on the meta device only infers shapes.
  [[nodiscard]] Tensor forward(const Tensor& tokens) const;
  /// The loss, without the logits.
  [[nodiscard]] virtual Loss loss(const Tensor& tokens, const Tensor& targets,
                                  const Metadata& metadata,
                                  const CrossEntropyOptions& options = {}) const = 0;

  // Stages of a pipeline: models that keep some of their parts.
  /// The members that a stage may lack, by name in the order of forward, such as `tok_embeddings`,
  /// `layers.0`, `norm`, `output`; `output` stands for the head with tied embeddings too.
  [[nodiscard]] virtual std::vector<std::string> parts();
  /// Drops the parts that are not among `names`: this model is a stage then. Called before passes
  /// over its modules. ValueError: a name that is no part; UsageError: the model is wrapped.
  virtual void keep(std::span<const std::string> names);
  /// The embedding and the layers that are present, and a final norm without the head. `inputs`:
  /// {tokens} of the first stage, else `next` of the stage before. UsageError: the family has no
  /// stages.
  [[nodiscard]] virtual StageOutput stage(const TensorList& inputs, const Metadata& metadata) const;
  /// The final norm, the head and the loss, from `next` of the last stage; without auxiliary
  /// losses. UsageError as of stage().
  [[nodiscard]] virtual Loss head_loss(const TensorList& inputs, const Tensor& targets,
                                       const CrossEntropyOptions& options = {}) const;

  /// The names of Loss::auxiliary, of whatever layers.
  [[nodiscard]] virtual std::vector<std::string> auxiliary_losses() const { return {}; }
  /// The shape of Loss::load, of the layers that are present: (layers, 2, experts). {0}: no
  /// experts.
  [[nodiscard]] virtual Shape load_shape() const { return {0}; }

  // Generation.
  /// A cache for `capacity` tokens. ValueError beyond max_seq_len.
  [[nodiscard]] virtual Cache make_cache(int64_t capacity) const = 0;
  /// The logits (B, 1, vocab_size), whole in the vocabulary on each rank, after the last of tokens
  /// (B, T), which follow those in the cache and are added to it. Under NoGrad. ValueError if the
  /// cache is not this model's or is full.
  [[nodiscard]] virtual Tensor next_logits(const Tensor& tokens, Cache& cache) const = 0;
  /// The part of next_logits of a stage: as of stage(), and the logits of the last one. UsageError
  /// as of stage().
  [[nodiscard]] virtual TensorList next_stage(const TensorList& inputs, const Tensor& tokens,
                                              Cache& cache) const;

  /// Gives each expert the same number of tokens, whatever the router says, to measure speed.
  /// False: there are no experts.
  virtual bool force_load_balance() { return false; }

  // Training. `load` is Loss::load of the whole step, summed over micro-batches and ranks: plain,
  // equal on all ranks, undefined without experts. The loss itself changes no state, so neither
  // validation nor recompute counts a token.
  /// Statistics of the model (such as the load of experts), for the step log.
  [[nodiscard]] virtual std::vector<NamedValue> statistics(const Tensor& load) const {
    static_cast<void>(load);
    return {};
  }
  /// The layers with a router that has failed, by Loss::not_finite of a step, summed as `load`;
  /// empty: none.
  [[nodiscard]] virtual std::string routing_fault(const Tensor& not_finite) const {
    static_cast<void>(not_finite);
    return {};
  }
  /// Called on every rank under NoGrad once per step, after gradients are reduced and before the
  /// optimizer step (to update a router's bias). Where `skip`, () bool and plain, is true, the step
  /// is not finite: buffers must keep their values, as parameters do.
  virtual void before_optimizer_step(const Tensor& load, const Tensor& skip) {
    static_cast<void>(load);
    static_cast<void>(skip);
  }

 protected:
  /// What metadata() gives, but with plain tables on the CPU, which metadata() brings to the
  /// parameters. The positions are within max_seq_len.
  [[nodiscard]] virtual Metadata plain_metadata(int64_t length, int64_t start) const = 0;
  /// The same where tables depend on how long the whole sequence will be.
  [[nodiscard]] virtual Metadata plain_metadata_of_part(int64_t length, int64_t start,
                                                        int64_t whole) const {
    static_cast<void>(whole);
    return plain_metadata(length, start);
  }
  /// The same of another model, for models made of models.
  [[nodiscard]] static Metadata plain_metadata_of(const LanguageModel& model, int64_t length,
                                                  int64_t start, int64_t whole) {
    return model.plain_metadata_of_part(length, start, whole);
  }
};

}  // namespace tessera::models
