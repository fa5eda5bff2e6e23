// SPDX-License-Identifier: Apache-2.0
// For tests of context parallel: operands of attention whose sequences are cut over the ranks of
// the world.
#pragma once

#include "tessera/nn/context/context_parallel.h"
#include "tessera/tests/support/trials.h"

namespace tessera::test {

inline nn::ContextParallelOptions context_options(
    nn::ContextMethod method, nn::LoadBalancer balancer = nn::LoadBalancer::head_tail) {
  nn::ContextParallelOptions options{.method = method, .balancer = balancer};
  if (method == nn::ContextMethod::ring_ulysses) options.axes = {"ring", "heads"};
  return options;
}

/// A batch of (2, T) on an axis `cp` of the world's ranks, or two of 2, and operands of attention.
struct CutBatch {
  explicit CutBatch(const nn::ContextParallelOptions& options, int64_t tokens,
                    const nn::AttentionMetadata& metadata = {}, int64_t heads = 4,
                    int64_t key_heads = 4, DType dtype = DType::f64)
      : mesh(made(options)),
        cut(options, Layout::replicated(mesh), {2, tokens}, metadata),
        layers(cut.metadata(metadata)),
        q(part({2, tokens, heads, 8}, 0, dtype)),
        k(part({2, tokens, key_heads, 8}, 1, dtype)),
        v(part({2, tokens, key_heads, 6}, 2, dtype)) {}
  static Mesh made(const nn::ContextParallelOptions& options) {
    const Mesh line = Mesh::make({{"cp", World::current().size()}});
    if (options.axes.size() == 1) return line;
    return line.unflatten("cp", {{options.axes[0], 2}, {options.axes[1], 2}});
  }
  [[nodiscard]] Tensor part(const Shape& shape, double salt, DType dtype) const {
    Tensor x = cut.cut(trial::numbers(shape, salt, dtype));
    return x.set_requires_grad();
  }
  [[nodiscard]] std::array<Tensor, 2> attend(bool lse = false) const {
    return layers.cut->attend(q, k, v, {.lse = lse});
  }

  Mesh mesh;
  nn::SequenceCut cut;
  nn::AttentionMetadata layers;
  Tensor q, k, v;
};

}  // namespace tessera::test
