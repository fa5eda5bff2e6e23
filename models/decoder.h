// SPDX-License-Identifier: Apache-2.0
// Decoder: the part of LanguageModel that transformers share: tokens -> embedding -> layers ->
// norm -> head, the loss without logits, and generation with a cache. A family owns its members and
// defines how each is applied; absent members are skipped, so that a stage of a pipeline is a
// Decoder that keeps some of its parts.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/moe/moe.h"

#include <optional>

namespace tessera::models {

/// What a layer gives: x (B, T, dim) and, with experts, the load and sums of nn::Routing.
struct LayerResult {
  Tensor x;
  Tensor load = {}, sums = {};
};

class TESSERA_API Decoder : public LanguageModel {
 public:
  /// With tied embeddings also `output`, the head. A stage that keeps one of the two holds the
  /// weight for that use alone.
  [[nodiscard]] std::vector<std::string> parts() final;
  void keep(std::span<const std::string> names) final;

  [[nodiscard]] int64_t vocab_size() const final { return sizes_.vocab_size; }
  [[nodiscard]] int64_t max_seq_len() const final { return sizes_.max_seq_len; }
  [[nodiscard]] Placement placement() const final;
  /// Of the members of this stage: attention in each of units(), no lookups, and of the experts
  /// those that a token chooses.
  [[nodiscard]] double flops(std::span<const int64_t> documents) override;
  [[nodiscard]] int64_t idle_parameters() override;

  using LanguageModel::forward;
  [[nodiscard]] Tensor features(const Tensor& x, const Metadata& metadata) const final;
  [[nodiscard]] Tensor logits(const Tensor& features) const final;
  [[nodiscard]] Tensor forward(const Tensor& tokens, const Metadata& metadata) const final;
  [[nodiscard]] Loss loss(const Tensor& tokens, const Tensor& targets, const Metadata& metadata,
                          const CrossEntropyOptions& options = {}) const override;
  [[nodiscard]] StageOutput stage(const TensorList& inputs,
                                  const Metadata& metadata) const override;
  [[nodiscard]] Loss head_loss(const TensorList& inputs, const Tensor& targets,
                               const CrossEntropyOptions& options = {}) const override;
  [[nodiscard]] std::vector<std::string> auxiliary_losses() const override;
  [[nodiscard]] Shape load_shape() const override;
  [[nodiscard]] Cache make_cache(int64_t capacity) const final;
  [[nodiscard]] Tensor next_logits(const Tensor& tokens, Cache& cache) const final;
  [[nodiscard]] TensorList next_stage(const TensorList& inputs, const Tensor& tokens,
                                      Cache& cache) const final;
  bool force_load_balance() override;
  /// nn::routing_statistics of each layer, and the largest load_max_over_mean of all.
  [[nodiscard]] std::vector<NamedValue> statistics(const Tensor& load) const override;
  [[nodiscard]] std::string routing_fault(const Tensor& not_finite) const override;
  /// Moves the bias of each router that has one against its load.
  void before_optimizer_step(const Tensor& load, const Tensor& skip) override;

 protected:
  struct Sizes {
    std::string_view family;  ///< for errors
    int64_t vocab_size = 0, max_seq_len = 0, n_layers = 0;
    int64_t attention_dim = 0;  ///< per layer: query heads x (head size of keys + of values) / 2
    nn::Router::Config router = {};  ///< of layers with experts
    double load_balance_coeff = 0;   ///< by which a step moves the bias of a router
    double logit_scale = 1;          ///< logits are multiplied by it
    double logit_soft_cap = 0;       ///< above 0: logits y become cap tanh(y / cap)
  };
  explicit Decoder(const Sizes& sizes) : sizes_(sizes) {}

  // Implemented by each family.
  /// tokens (B, T) -> (B, T, dim).
  [[nodiscard]] virtual Tensor embed(const Tensor& tokens, const Metadata& metadata) const = 0;
  /// Layer i of x (B, T, dim); x itself if the layer is absent.
  [[nodiscard]] virtual LayerResult layer(size_t i, const Tensor& x, const Metadata& metadata,
                                          nn::KvCache* cache) const = 0;
  /// The layers with experts that are present.
  struct Experts {
    size_t layer = 0;  ///< its number
    nn::MoE* moe = nullptr;
  };
  [[nodiscard]] virtual std::vector<Experts> experts() { return {}; }
  /// The final norm; x itself if it is absent.
  [[nodiscard]] virtual Tensor finish(const Tensor& x) const = 0;
  /// The embedding, or null if it is absent.
  [[nodiscard]] virtual const nn::Embedding* embedding() const = 0;
  /// The weight (V, dim) of the head, and the module that owns it, which may be the embedding.
  struct Head {
    const nn::Module* module = nullptr;
    Tensor table;
  };
  /// The head, or a null module if it is absent.
  [[nodiscard]] virtual Head head() const = 0;

  /// Pairs of a query and a key that the layers of this stage see of a document: all causal ones.
  [[nodiscard]] virtual double pairs(int64_t length);

 private:
  // The load and sums of the layers with experts, in order.
  struct Routed {
    std::vector<Tensor> load, sums;
  };
  [[nodiscard]] std::vector<int64_t> routed_layers() const;
  /// Whether the head's weight is the embedding's.
  [[nodiscard]] bool tied() const { return embedding() && head().module == embedding(); }
  // The values of the routers, appended by stage_of and loss_of, as Loss has them.
  template <class Result> void add_routed(Result& result, Tensors load_and_sums) const;
  // Called through the model's hooks.
  /// Before the final norm.
  [[nodiscard]] Tensor apply_layers(const Tensor& x, const Metadata& metadata, Cache* cache,
                                    Routed* routed = nullptr) const;
  [[nodiscard]] Tensor features_of(const Tensor& x, const Metadata& metadata) const;
  // x and, with experts, load and sums.
  [[nodiscard]] TensorList stage_of(const Tensor& x, const Metadata& metadata) const;
  [[nodiscard]] TensorList head_loss_of(const Tensor& x, const Tensor& targets,
                                        const CrossEntropyOptions& options) const;
  [[nodiscard]] Tensor head_of(const Tensor& features) const;
  // Within the run of the head's module.
  [[nodiscard]] Tensor scaled(const Tensor& features) const;
  [[nodiscard]] Tensor logits_in_head(const Tensor& features) const;
  [[nodiscard]] Tensor logits_of(const Tensor& x, const Metadata& metadata) const;
  // Sum and count and, with experts, load (layers, 2, experts) and sums (layers, 3).
  [[nodiscard]] TensorList loss_of(const Tensor& x, const Tensor& targets, const Metadata& metadata,
                                   const CrossEntropyOptions& options) const;
  // Features without a head, else logits.
  [[nodiscard]] Tensor next_stage_of(const Tensor& x, const Metadata& metadata, Cache* cache) const;
  [[nodiscard]] Head require_head(std::string_view what) const;
  [[nodiscard]] bool embeds() const { return embeds_ && embedding(); }
  void check_input(const Tensor& x) const;
  Sizes sizes_;
  bool embeds_ = true, has_head_ = true;  // of a stage with tied embeddings, what they are for
};

/// A decoder whose layers are all Blocks, called as `block(x, metadata, cache)`, followed by a
/// Norm: the base of families with one kind of layer. It owns the members and visits them. Blocks
/// give a Tensor, or a LayerResult if they may have experts, which are their optional member `moe`.
template <class Block, class Norm> class UniformDecoder : public Decoder {
 public:
  /// The layers that are present.
  [[nodiscard]] std::vector<nn::Module*> units() final {
    std::vector<nn::Module*> all;
    for (Block& block : layers) all.push_back(&block);
    return all;
  }

  /// The embedding, each layer, and the norm with the head; tied embeddings, which the first and
  /// the last need, and the norm with them, are left to the model.
  [[nodiscard]] std::vector<std::vector<nn::Module*>> data_parallel_units() override {
    std::vector<std::vector<nn::Module*>> all = LanguageModel::data_parallel_units();
    const nn::Module* top = head().module;
    if (tok_embeddings && top == &*tok_embeddings) return all;
    if (tok_embeddings) all.insert(all.begin(), {&*tok_embeddings});
    if (!top) return all;
    all.push_back({const_cast<nn::Module*>(top)});
    if (norm) all.back().insert(all.back().begin(), &*norm);
    return all;
  }

  // A stage of a pipeline lacks some of these. With tied embeddings the stages that keep
  // tok_embeddings and output both hold tok_embeddings.
  std::optional<nn::Embedding> tok_embeddings;
  nn::ModuleList<Block> layers;
  std::optional<Norm> norm;

 protected:
  using Decoder::Decoder;
  [[nodiscard]] LayerResult layer(size_t i, const Tensor& x, const Metadata& metadata,
                                  nn::KvCache* cache) const final {
    if (!layers.has(i)) return {x};
    return {layers[i](x, metadata.of(kind(i)), cache)};
  }
  [[nodiscard]] std::vector<Experts> experts() final {
    std::vector<Experts> all;
    if constexpr (requires(Block & block) { block.moe; }) {
      for (size_t i = 0; i < layers.size(); ++i)
        if (layers.has(i) && layers[i].moe) all.push_back({i, &*layers[i].moe});
    }
    return all;
  }
  /// Which of the metadata is that of layer i.
  [[nodiscard]] virtual size_t kind(size_t i) const {
    static_cast<void>(i);
    return 0;
  }
  [[nodiscard]] Tensor finish(const Tensor& x) const final { return norm ? (*norm)(x) : x; }
  [[nodiscard]] const nn::Embedding* embedding() const final {
    return tok_embeddings ? &*tok_embeddings : nullptr;
  }
};

}  // namespace tessera::models
