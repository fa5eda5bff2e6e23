// SPDX-License-Identifier: Apache-2.0
// How much the tensor-core kernels of attention multiply, and how they read shared memory: a block
// of 64 queries and 64 keys is multiplied if something of it is seen, and no two rows of a matrix
// lie in the same banks.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include "counts.h"
#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kBlock = 64, kTokens = 320;

struct Work {
  int64_t products, matrices, accesses;
};
// Once `last` is computed: its device works on while the host goes on.
Work work_until(const Tensor& last) {
  (void)to_device(last.detach(), kCpu);
  cuda_emulation::Counts counts;
  cuda_emulation_counts(&counts);
  return {counts.products, counts.matrices, counts.accesses};
}

Tensor made(int64_t heads, int64_t d, uint64_t seed) {
  return cast(to_device(normal({1, kTokens, heads, d}, {3, seed}), cuda(0)), DType::bf16);
}

// Blocks that a mask of the sequence sees in whole or in part.
struct Seen {
  AttentionOptions options;
  int64_t blocks;
};

// In products of 16 x 8 x 16 for a block and a head: forward has two (scores and values), backward
// nine: scores and their gradient for delta, for the queries' and for the keys' gradients, and
// three more for the gradients.
void expect_least_work(const Seen& seen, int64_t d) {
  constexpr int64_t kHeads = 2;
  Tensor in[] = {made(kHeads, d, 1), made(1, d, 2), made(1, d, 3)};
  for (Tensor& x : in) x.set_requires_grad();
  AttentionOptions options = seen.options;
  options.heads_inner = true;
  const int64_t each = kBlock * kBlock * d / (16 * 8 * 16) * kHeads * seen.blocks;
  const Tensor dout = made(kHeads, d, 4);
  const Work before = work_until(dout);
  const Tensor o = scaled_dot_product_attention(in[0], in[1], in[2], options);
  const Work forward = work_until(o);
  const std::vector<Tensor> grads = grad({o}, {in[0], in[1], in[2]}, {.grad_outputs = {dout}});
  const Work after = work_until(grads[2]);
  EXPECT_EQ(forward.products - before.products, 2 * each);
  EXPECT_EQ(after.products - forward.products, 9 * each);
  EXPECT_GT(after.matrices, before.matrices);
  EXPECT_EQ(after.accesses - before.accesses, after.matrices - before.matrices);
}

TEST(CudaAttention, MultipliesTheBlocksThatAreSeen) {
  const Session session({.threads = 1});
  const auto causal = AttentionMask::causal();
  std::vector<double> ids;  // documents of 1, 95 and 224 tokens
  for (int64_t t = 0; t < kTokens; ++t) ids.push_back(t < 1 ? 0 : t < 96 ? 1 : 2);
  const Tensor documents = to_device(from_values(ids, {kTokens}, DType::i64), cuda(0));
  // (query, key): 0 0, 1 0, 1 1, 2 1, 2 2, 3 1 ... as the last document begins within block 1.
  const Seen of_documents{{.mask = causal & AttentionMask::document(),
                           .query_documents = documents,
                           .key_documents = documents},
                          1 + 2 + 2 + 3 + 4};
  const Seen chunks{{.mask = causal & AttentionMask::chunk(128)}, 3 + 3 + 1};
  for (const int64_t d : {64, 128}) {
    expect_least_work(of_documents, d);
    expect_least_work(chunks, d);
  }
}

}  // namespace
}  // namespace tessera
