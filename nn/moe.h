// SPDX-License-Identifier: Apache-2.0
// Mixture of experts (Shazeer et al., 2017; DeepSeek-V3, 2024): a router gives each token to few of
// many feed-forward networks. Token counts per expert are plain data: nothing is padded and none is
// dropped. Forward changes no state: how many tokens each expert got is a result, so that neither
// recomputation nor accumulation of micro-batches counts a token twice.
#pragma once

#include "tessera/nn/layers.h"

#include <optional>

namespace tessera::nn {

/// The linear layer of a router, computed in f32 (f64 for f64) whatever the dtype of x:
/// x (..., dim) -> (..., experts).
class TESSERA_API Gate final : public Layer<Gate> {
 public:
  Gate(int64_t dim, int64_t experts, Init init, DType dtype);
  void visit(Visitor& visitor) override;

  Tensor weight;  // (experts, dim)

 private:
  friend class Layer<Gate>;
  [[nodiscard]] Tensor forward(const Tensor& x) const;
  Init init_;
};

/// The experts of each token and their shares.
struct Routing {
  Tensor scores;   ///< (..., top_k), f32 (f64 for f64)
  Tensor experts;  ///< (..., top_k) i64, without gradient
};

/// x (..., dim) -> the top_k experts of each token by score plus bias; their shares are the scores
/// without it.
class TESSERA_API Router final : public Layer<Router> {
 public:
  enum class Score : uint8_t { sigmoid, softmax };
  struct Config {
    int64_t dim = 0, experts = 0, top_k = 1;
    Score score = Score::sigmoid;
    bool route_norm = false;  ///< shares of a token are divided by their sum
    double route_scale = 1;   ///< and multiplied by this
    /// Experts in this many equal groups (0: one), of which a token takes the `limited_groups`
    /// whose best two experts have the largest sum.
    int64_t groups = 0, limited_groups = 0;
    bool force_balance = false;  ///< for measuring: token i takes experts i * top_k, ... in turn
    Init gate = Init::truncated_normal(0.02);
    DType dtype = DType::f32;
  };
  /// ValueError for sizes that do not fit each other.
  explicit Router(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;

  Gate gate;

 private:
  friend class Layer<Router>;
  [[nodiscard]] Routing forward(const Tensor& x, const Tensor& bias) const;
  [[nodiscard]] Tensor limited(const Tensor& choice) const;
  Config config_;
};

/// The experts' SwiGLU networks: x (M, dim) whose rows are grouped by expert, offsets (experts)
/// i64, the ends of the groups -> (M, dim).
class TESSERA_API GroupedExperts final : public Layer<GroupedExperts> {
 public:
  GroupedExperts(int64_t experts, int64_t dim, int64_t hidden, Init gate, Init output, DType dtype);
  void visit(Visitor& visitor) override;

  Tensor w1, w2, w3;  // (experts, hidden, dim), (experts, dim, hidden), (experts, hidden, dim)

 private:
  friend class Layer<GroupedExperts>;
  [[nodiscard]] Tensor forward(const Tensor& x, const Tensor& offsets) const;
  Init gate_, output_;
};

/// What MoE gives.
struct MoEResult {
  Tensor y;       ///< as x
  Tensor counts;  ///< (experts) i64: how many tokens took each expert
};

/// x (..., dim) -> the sum over each token's experts of share times network, plus the shared
/// experts' network. Shares multiply in f32 (f64 for f64) and the terms of a token are added in it,
/// in the order of the experts: the same bits on every run.
class TESSERA_API MoE final : public Layer<MoE> {
 public:
  struct Config {
    Router::Config router;              ///< its dim and dtype are the layer's
    int64_t hidden = 0;                 ///< of an expert
    int64_t shared_experts = 0;         ///< that every token takes, as one network
    bool score_before_experts = false;  ///< shares multiply x instead of the experts' results
    bool balance = false;  ///< whether there is an expert_bias, which update_expert_bias moves
    Init gate = Init::truncated_normal(0.02);  ///< of w1
    Init output = gate;                        ///< of w2 and w3
  };
  explicit MoE(const Config& config);
  void visit(Visitor& visitor) override;

  Router router;
  GroupedExperts experts;
  std::optional<FeedForward> shared_experts;
  Tensor expert_bias;  // (experts) f32 (f64 for f64), initially zeros; or undefined

 private:
  friend class Layer<MoE>;
  [[nodiscard]] MoEResult forward(const Tensor& x) const;
  Config config_;
};

/// Balance without an auxiliary loss (Wang et al., 2024): bias += coefficient * sign(mean of counts
/// - counts), re-centred so that the steps add up to zero. counts (experts) are of all tokens of an
/// optimizer step: summed over micro-batches and ranks.
TESSERA_API void update_expert_bias(const Tensor& bias, const Tensor& counts, double coefficient);

}  // namespace tessera::nn
