// SPDX-License-Identifier: Apache-2.0
// What only trains (coefficients of losses, the capacity) may change between the parts of a run;
// load_balance_coeff may not, because it decides whether routers have a bias.
#include "tessera/models/config/moe_fields.h"

namespace tessera::config {

void moe_fields(Fields& f, MoeConfig& c) {
  f.add("num_experts", c.num_experts, "experts of a layer; 0: it has one feed-forward",
        {.min = 0, .max = 1 << 16});
  f.add("top_k", c.top_k, "experts of each token", {.min = 1, .max = 1 << 16});
  f.add("moe_inter_dim", c.moe_inter_dim, "hidden size of an expert", {.min = 1, .max = 1 << 24});
  f.add("route_norm", c.route_norm, "divide the routing weights of a token by their sum");
  f.add("load_balance_coeff", c.load_balance_coeff,
        "size of the steps that move each router's bias against its load, which balances experts "
        "without a loss; 0: routers have no bias",
        {.min = 0, .max = 1});
  f.add("balance_loss_coeff", c.balance_loss_coeff,
        "coefficient of the sequence-wise balance loss; 0: none",
        {.min = 0, .max = 1e3, .free_on_resume = true});
  f.add("z_loss_coeff", c.z_loss_coeff,
        "coefficient of the loss that keeps the logits of routers small; 0: none",
        {.min = 0, .max = 1e3, .free_on_resume = true});
  f.add("capacity_factor", c.capacity_factor,
        "in training, an expert takes at most this times its even part of a sequence, others are "
        "dropped; 0: it takes all",
        {.min = 0, .max = 1e6, .free_on_resume = true});
}

std::vector<std::string> moe_conflicts(const MoeConfig& c, int64_t n_layers,
                                       std::string_view step_field, int64_t step) {
  if (c.num_experts == 0) return {};
  std::vector<std::string> faults;
  if (c.top_k > c.num_experts) {
    faults.push_back(
        concat("[--model.top_k] ", c.top_k, " is above --model.num_experts ", c.num_experts));
  }
  if (step > n_layers) {
    faults.push_back(concat("[--model.", step_field, "] ", step, " is above --model.n_layers ",
                            n_layers, ": no layer would have the experts"));
  }
  return faults;
}

}  // namespace tessera::config
