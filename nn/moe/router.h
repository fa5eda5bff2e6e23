// SPDX-License-Identifier: Apache-2.0
// The choice of experts (Shazeer et al., 2017; DeepSeek-V3, 2024): a gate scores every expert for
// every token, and the best few get the token. x may be distributed, cut over any of its dims but
// the last: a token's choice needs no other token, so nothing is communicated. The balance loss and
// the capacity are of whole sequences; where a sequence is cut they join counts and ids. Forward
// changes no state: what is counted is a result, so neither recomputation nor accumulation of
// micro-batches counts a token twice.
#pragma once

#include "tessera/nn/layers.h"

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

/// The experts of each token and their shares (routing weights). Of a distributed x, load and sums
/// are Partial(sum) on the axes that cut it.
struct Routing {
  Tensor scores;  ///< (..., top_k), f32 (f64 for f64): the shares
  /// (..., top_k) i64, without gradient. The id `experts`, one past the last, is no expert: a
  /// choice that a capacity dropped, or the choices of padding. Its share is 0.
  Tensor experts;
  Tensor load;  ///< (2, experts) i64: how many tokens chose each expert, how many it computes
  /// (3), as scores: sums over tokens of the balance loss and of the z-loss, times their
  /// coefficients (0 where off), and the number of tokens whose scores are not finite.
  Tensor sums;
};

/// x (..., dim) -> the top_k experts of each token by score plus bias (experts), if there is one;
/// their shares are the scores without it. With a balance loss or a capacity x is (..., T, dim),
/// sequences of T tokens.
///
/// `router(x, bias, padding)`: padding (...) bool, true where x holds no token, or undefined. Such
/// a place has no expert, and neither losses, capacities nor counts see it: they are those of
/// sequences that are shorter by it. Padding of a distributed x lies as x, but for axes on which it
/// may be whole.
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
    /// Coefficient of the sequence-wise balance loss (DeepSeek-V3, eq. 17 to 20). A sequence's is
    /// the sum over experts e of f_e P_e, where f_e = c_e * experts / (top_k * T), c_e is the
    /// number of its tokens that chose e (a constant), and P_e the mean over its tokens of e's
    /// score, divided by the sum of the token's scores. It is 1 where the load is even. `sums` has
    /// it times T, so that divided by the number of tokens it is the mean over sequences.
    double balance_loss = 0;
    /// Coefficient of the z-loss (ST-MoE, Zoph et al., 2022): the square of a token's
    /// logsumexp(logits), which keeps logits small.
    double z_loss = 0;
    /// In training mode an expert takes the first ceil(capacity_factor * T * top_k / experts)
    /// tokens of a sequence that chose it, others are dropped; so it does not matter how a batch is
    /// cut. T is the number of its tokens. 0: all.
    double capacity_factor = 0;
    bool force_balance = false;  ///< for measuring: token i takes experts i * top_k, ... in turn
    Init gate = Init::truncated_normal(0.02);
    DType dtype = DType::f32;
  };
  /// ValueError for sizes that do not fit each other and for negative coefficients.
  explicit Router(const Config& config);
  void visit(Visitor& visitor) override;
  [[nodiscard]] std::string extra_repr() const override;
  /// As Config::force_balance, from now on.
  void force_balance() { config_.force_balance = true; }

  Gate gate;

 private:
  friend class Layer<Router>;
  [[nodiscard]] Routing forward(const Tensor& x, const Tensor& bias,
                                const Tensor& padding = {}) const;
  [[nodiscard]] Tensor choose(const Tensor& scores, const Tensor& bias) const;
  [[nodiscard]] Tensor in_turn(const Tensor& scores) const;
  [[nodiscard]] Tensor limited(const Tensor& choice) const;
  // Below, padding lies as x, and its choices are the id `experts` already.
  [[nodiscard]] Tensor within_capacity(const Tensor& experts, const Tensor& padding) const;
  [[nodiscard]] Tensor balance_of(const Tensor& scores, const Tensor& experts,
                                  const Tensor& padding) const;
  [[nodiscard]] Tensor sums_of(const Tensor& logits, const Tensor& scores, const Tensor& experts,
                               const Tensor& padding) const;
  [[nodiscard]] Tensor counts_of(const Tensor& experts) const;
  Config config_;
};

/// Balance without an auxiliary loss (Wang et al., 2024): bias += coefficient * sign(mean of counts
/// - counts), re-centred so that the steps add up to zero. bias and counts (experts) are plain or
/// replicated on a mesh; counts, the first row of `Routing::load`, are of all tokens of an
/// optimizer step, summed over micro-batches and ranks. Where `skip` () bool is true the bias keeps
/// its value. LayoutError for what is not whole on each rank.
TESSERA_API void update_expert_bias(const Tensor& bias, const Tensor& counts, double coefficient,
                                    const Tensor& skip = {});

}  // namespace tessera::nn
