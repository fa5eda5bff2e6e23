// SPDX-License-Identifier: Apache-2.0
// Policies for the outputs that a checkpointed function stores: ops by name, expensive ones, or the
// best within a budget.
#include "tessera/autograd/checkpoint.h"
#include "tessera/autograd/checkpoint_impl.h"
#include "tessera/core/message.h"

#include <algorithm>

namespace tessera {

KeepPolicy keep_ops(std::vector<std::string> names) {
  return [names = std::move(names)](const CheckpointedOp& op) {
    return std::ranges::find(names, op.name) != names.end();
  };
}

KeepPolicy keep_every_second_matmul(std::vector<std::string> recompute_paths) {
  return [recompute_paths = std::move(recompute_paths)](const CheckpointedOp& op) {
    if (!op.expensive) return false;
    if (op.name != "matmul") return true;
    const std::string path = joined_path(op.module_path);
    const auto inside = [&](const std::string& part) { return path.find(part) != path.npos; };
    return op.earlier % 2 == 0 && std::ranges::none_of(recompute_paths, inside);
  };
}

double estimated_seconds(const Cost& cost, Device device) {
  // Flops that a machine does while it moves a byte: about 16 on CPUs, 200 on accelerators.
  const double flops_per_byte = device.is_cuda() ? 200 : 16;
  return std::max(cost.flops / flops_per_byte, cost.bytes) * 1e-10;
}

std::vector<bool> choose_kept(const std::vector<Choice>& choices, int64_t bytes) {
  constexpr int64_t kUnits = 1000;
  std::vector<bool> kept(choices.size());
  const auto units = [&](const Choice& c) {  // rounded up, so that the budget holds
    return bytes == 0 ? (c.bytes == 0 ? 0 : kUnits + 1)
                      : std::min((c.bytes * kUnits + bytes - 1) / bytes, kUnits + 1);
  };
  // best[i][u]: the time saved by the first i choices within u units.
  std::vector<std::vector<double>> best(choices.size() + 1, std::vector<double>(kUnits + 1));
  for (size_t i = 0; i < choices.size(); ++i) {
    const int64_t size = units(choices[i]);
    for (int64_t u = 0; u <= kUnits; ++u) {
      const auto at = static_cast<size_t>(u);
      best[i + 1][at] = best[i][at];
      if (size <= u) {
        best[i + 1][at] =
            std::max(best[i][at], best[i][static_cast<size_t>(u - size)] + choices[i].seconds);
      }
    }
  }
  int64_t left = kUnits;
  for (size_t i = choices.size(); i-- > 0;) {
    if (best[i + 1][static_cast<size_t>(left)] == best[i][static_cast<size_t>(left)]) continue;
    kept[i] = true;
    left -= units(choices[i]);
  }
  return kept;
}

}  // namespace tessera
