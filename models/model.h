// SPDX-License-Identifier: Apache-2.0
// The model port: what a trainer, an evaluator and a generator need of any language model, and all
// that they see of it. A family (llama3, gpt2, ...) derives its model from LanguageModel, mostly by
// way of Decoder (decoder.h); models.h lists them. A pipeline stage is a model like any
// other, some of whose members are absent.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/nn/attention.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::models {

/// What layers are given beside activations. A family whose layers differ (full and windowed, with
/// and without rotary positions) has one entry for each kind and numbers them itself.
struct Metadata {
  std::vector<nn::AttentionMetadata> kinds;
  /// What attention is given in layers of this kind. IndexError if there is none.
  [[nodiscard]] TESSERA_API const nn::AttentionMetadata& of(size_t kind = 0) const;
  /// The same for packed rows. (B, T) i64 each: positions since the start of each token's document,
  /// and ids of the documents; undefined: a row is one document.
  [[nodiscard]] TESSERA_API Metadata with_documents(const Tensor& positions,
                                                    const Tensor& documents) const;
};

/// What generation keeps of the tokens seen so far: one entry per layer.
using Cache = std::vector<nn::KvCache>;

/// A 0-dim tensor under a name: an auxiliary loss, or a figure of a model's state.
struct NamedValue {
  std::string name;
  Tensor value;
};

/// Sums over tokens, so that parts of a batch add up whatever their sizes.
struct Loss {
  Tensor sum;    ///< 0-dim: -log p(target) over the tokens that count
  Tensor count;  ///< 0-dim i64: how many those are
  /// Terms that are trained beside `sum` and normalised by the same count (load balance, z-loss).
  std::vector<NamedValue> auxiliary = {};
};

/// Where parameters lie, and so where tokens and tables must.
struct Placement {
  Device device = kCpu;
  Mesh mesh = {};  ///< empty: plain tensors
};

class TESSERA_API LanguageModel : public nn::Module {
 public:
  // What it is.
  /// Rows of the embedding: token ids are below it.
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  /// The longest context, in tokens.
  [[nodiscard]] virtual int64_t max_seq_len() const = 0;
  [[nodiscard]] virtual Placement placement() const = 0;
  /// What is checkpointed, cast to another precision and sharded as one: mostly the layers.
  [[nodiscard]] virtual std::vector<nn::Module*> units() = 0;
  /// Floating-point operations of forward and backward over documents of these lengths, as
  /// torchtitan counts them: 6 per parameter that multiplies and token, and attention without
  /// discount for the causal mask.
  [[nodiscard]] virtual double flops(std::span<const int64_t> documents) = 0;

  // What it computes. tokens and targets (B, T) i64.
  /// What the layers need for rows of `length` tokens, the first at position `start`: made once,
  /// used for all batches of that length. ValueError beyond max_seq_len.
  [[nodiscard]] virtual Metadata metadata(int64_t length, int64_t start = 0) const = 0;
  /// tokens -> (B, T, dim), what the head is given. Without an embedding, x is (B, T, dim) from the
  /// stage before.
  [[nodiscard]] virtual Tensor features(const Tensor& x, const Metadata& metadata) const = 0;
  /// features (..., dim) -> (..., vocab_size).
  [[nodiscard]] virtual Tensor logits(const Tensor& features) const = 0;
  /// tokens -> logits (B, T, vocab_size).
  [[nodiscard]] virtual Tensor forward(const Tensor& tokens, const Metadata& metadata) const = 0;
  /// The same for one document a row; a model on meta is only planned.
  [[nodiscard]] Tensor forward(const Tensor& tokens) const;
  /// The loss, without the logits.
  [[nodiscard]] virtual Loss loss(const Tensor& tokens, const Tensor& targets,
                                  const Metadata& metadata,
                                  const CrossEntropyOptions& options = {}) const = 0;

  // Generation.
  /// For `capacity` tokens in all. ValueError beyond max_seq_len.
  [[nodiscard]] virtual Cache make_cache(int64_t capacity) const = 0;
  /// The logits (B, 1, vocab_size) after the last of tokens (B, T), which follow those in the cache
  /// and are added to it. Under NoGrad. ValueError if the cache is not this model's or is full.
  [[nodiscard]] virtual Tensor next_logits(const Tensor& tokens, Cache& cache) const = 0;

  // Training.
  /// Figures of the model's state (the load of experts), for the log of a step.
  [[nodiscard]] virtual std::vector<NamedValue> statistics() const { return {}; }
  /// Called on every rank under NoGrad, once a step, when all gradients are reduced and before the
  /// optimizer (a router's bias is moved here).
  virtual void before_optimizer_step() {}

 protected:
  /// `x` made ready for this model: on its device, replicated over its mesh.
  [[nodiscard]] Tensor placed(const Tensor& x) const;
};

}  // namespace tessera::models
