// SPDX-License-Identifier: Apache-2.0
// Mixture of experts (Shazeer et al., 2017; DeepSeek-V3, 2024): a router gives each token to few of
// many feed-forward networks. Token counts per expert are plain data: nothing is padded and none is
// dropped, unless the router has a capacity or the dispatcher pads.
#pragma once

#include "tessera/nn/moe/dispatcher.h"
#include "tessera/nn/moe/router.h"

#include <memory>
#include <optional>
#include <string_view>

namespace tessera::nn {

/// The experts' SwiGLU networks: x (M, dim) whose rows are grouped by expert, offsets (experts)
/// i64, the ends of the groups -> (M, dim). With distributed weights and plain x, rows are this
/// rank's own, and offsets are of the experts that it has: results are of its part of the hidden
/// dim, and gradients of weights are sums over the axes that do not cut them.
class TESSERA_API GroupedExperts final : public Layer<GroupedExperts> {
 public:
  /// Initialisation of w1, w2 and w3: `gate`, `output` and `up`.
  GroupedExperts(int64_t experts, int64_t dim, int64_t hidden, Init gate, Init output, Init up,
                 DType dtype);
  void visit(Visitor& visitor) override;
  /// Whether the hidden dim is cut over this axis, so that results are sums over it.
  [[nodiscard]] bool hidden_is_cut_over(std::string_view axis) const;

  Tensor w1, w2, w3;  // (experts, hidden, dim), (experts, dim, hidden), (experts, hidden, dim)

 private:
  friend class Layer<GroupedExperts>;
  [[nodiscard]] Tensor forward(const Tensor& x, const Tensor& offsets) const;
  Init gate_, output_, up_;
};

/// What MoE gives.
struct MoEResult {
  Tensor y;  ///< as x
  /// The router's, see Routing; an expert computes less where the dispatcher drops rows.
  Tensor load, sums;
};

/// x (..., dim) -> the sum over each token's experts of share times network, plus the shared
/// experts' network, times sigmoid(shared_expert_gate(x)) if there is such a gate (Qwen2-MoE).
/// Shares multiply in f32 (f64 for f64) and the terms of a token are added in it, in the order of
/// the experts: the same bits on every run.
///
/// Distributed x is cut over dim 0, or over its tokens, or equal on the ranks of an axis. y lies as
/// x, but is Partial on an axis over which the experts' hidden dim is cut: there x must be equal.
/// Tokens that are equal on another axis are shared among its ranks.
///
/// `moe(x, padding)`: padding as the router's. A place without a token goes to no expert: its y is
/// that of the shared experts, scaled by their gate.
class TESSERA_API MoE final : public Layer<MoE> {
 public:
  struct Config {
    Router::Config router;              ///< its dim and dtype are the layer's
    int64_t hidden = 0;                 ///< of an expert
    int64_t shared_experts = 0;         ///< that every token takes, as one network
    int64_t shared_hidden = 0;          ///< of that network; 0: shared_experts * hidden
    bool shared_gate = false;           ///< whether a gate scales that network's result
    bool score_before_experts = false;  ///< shares multiply x instead of the experts' results
    bool balance = false;  ///< whether there is an expert_bias, which update_expert_bias moves
    Init gate = Init::truncated_normal(0.02);  ///< of w1
    Init output = gate;                        ///< of w2
    Init up = output;                          ///< of w3
  };
  /// ValueError as the router's, and for a shared_gate without shared experts.
  explicit MoE(const Config& config);
  void visit(Visitor& visitor) override;
  /// How rows reach the experts; initially they are on every rank.
  void set_dispatcher(std::shared_ptr<const Dispatcher> dispatcher);

  Router router;
  GroupedExperts experts;
  std::optional<FeedForward> shared_experts;
  std::optional<Linear> shared_expert_gate;  // (1, dim), initialised as the router's
  Tensor expert_bias;  // (experts) f32 (f64 for f64), initially zeros; or undefined

 private:
  friend class Layer<MoE>;
  [[nodiscard]] MoEResult forward(const Tensor& x, const Tensor& padding = {}) const;
  [[nodiscard]] Tensor of_shared_experts(const Tensor& x) const;
  /// The sum over each token's experts, and the load.
  [[nodiscard]] std::pair<Tensor, Tensor> routed(const Tensor& x, const Routing& routing,
                                                 const std::function<void()>& meanwhile) const;
  [[nodiscard]] Dispatched mixture(const Tensor& x, const Routing& routing, int64_t most_tokens,
                                   const std::function<void()>& meanwhile) const;
  Config config_;
  std::shared_ptr<const Dispatcher> dispatcher_ = std::make_shared<LocalDispatcher>();
};

}  // namespace tessera::nn
