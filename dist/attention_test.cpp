// SPDX-License-Identifier: Apache-2.0
// Attention, embedding and the loss as single ops over cut heads, sequence and vocabulary: each is
// what one rank computes, and sends what it must and no more.
#include "tessera/kernels/attention/attention.h"

#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/tests/support/trials.h"

#include <cmath>

namespace tessera {
namespace {

using namespace trial;
using test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1), S2 = Shard(2);

struct Heads {
  Tensor q, k, v;
};

Tensor loss_of(const Tensor& o) { return sum(mul(o, mul(o, o))); }

// torchtitan #3340: causal attention over cut tensors met plain masks, and was given up.
TEST(DistributedAttention, CausalOverBatchHeadsAndSequenceIsThatOfOneRank) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}, {"b", 2}});
    for (const bool heads_inner : {false, true}) {
      for (const int64_t queries : {5, 7}) {
        const int64_t keys = 7;
        // (B, H, T, D), or (B, T, H, D); two query heads share a key head.
        const auto shaped = [&](int64_t heads, int64_t length) {
          return heads_inner ? Shape{2, length, heads, 4} : Shape{2, heads, length, 4};
        };
        const Heads whole{numbers(shaped(4, queries)), numbers(shaped(2, keys), 1),
                          numbers(shaped(2, keys), 2)};
        const AttentionOptions options{.mask = AttentionMask::causal(),
                                       .heads_inner = heads_inner,
                                       .query_start = keys - queries};
        Heads one{variable(whole.q), variable(whole.k), variable(whole.v)};
        const Tensor want = scaled_dot_product_attention(one.q, one.k, one.v, options);
        backward(loss_of(want));
        const Placement heads = heads_inner ? S2 : S1, sequence = heads_inner ? S1 : S2;
        // What the axes cut of q, and of k and v.
        const std::vector<std::pair<std::array<Placement, 2>, std::array<Placement, 2>>> ways{
            {{S0, heads}, {S0, heads}},
            {{heads, S0}, {heads, S0}},
            {{sequence, heads}, {R, heads}},
            {{S0, sequence}, {S0, R}},
            {{R, sequence}, {R, R}},
            {{sequence, sequence}, {R, R}},
            {{R, R}, {R, R}}};
        for (const auto& [q, kv] : ways) {
          const Layout of_q = Layout::of(m, q), of_kv = Layout::of(m, kv);
          Heads all{variable(whole.q, of_q), variable(whole.k, of_kv), variable(whole.v, of_kv)};
          const CommTrace trace;
          const Tensor o = scaled_dot_product_attention(all.q, all.k, all.v, options);
          EXPECT_EQ(trace.count(), 0) << trace;
          EXPECT_EQ(layout_of(o), of_q);
          expect_same(o, want);
          backward(loss_of(o));
          expect_same(all.q.grad(), one.q.grad());
          expect_same(all.k.grad(), one.k.grad());
          expect_same(all.v.grad(), one.v.grad());
        }
        // Keys cut along the sequence are gathered on request, and their gradient comes back cut.
        const Layout cut = Layout::of(m, {S0, sequence});
        Heads all{variable(whole.q, cut), variable(whole.k, cut), variable(whole.v, cut)};
        TESSERA_EXPECT_HOLDS(error_of<LayoutError>([&] {
                               (void)scaled_dot_product_attention(all.q, all.k, all.v, options);
                             }),
                             "redistribute(");
        const AutoRedistribute wish;
        const Tensor o = scaled_dot_product_attention(all.q, all.k, all.v, options);
        expect_same(o, want);
        backward(loss_of(o));
        expect_same(all.q.grad(), one.q.grad());
        expect_same(all.k.grad(), one.k.grad());
        expect_same(all.v.grad(), one.v.grad());
        EXPECT_EQ(layout_of(all.k.grad()), cut);
      }
    }
  });
}

// Positions, documents and a block map are operands like others: they are cut with their queries.
TEST(DistributedAttention, MasksAreCutWithTheirQueries) {
  on_ranks(4, [](World&) {
    const auto m = Mesh::make({{"a", 2}, {"b", 2}});
    const int64_t n = 256;
    const Heads whole{numbers({2, 2, n, 4}), numbers({2, 1, n, 4}, 1), numbers({2, 1, n, 3}, 2)};
    std::vector<double> balanced, ids;
    for (const int64_t chunk : {0, 3, 1, 2}) {
      for (int64_t i = 0; i < 64; ++i) balanced.push_back(static_cast<double>(chunk * 64 + i));
    }
    for (int64_t i = 0; i < 2 * n; ++i)
      ids.push_back(std::floor(balanced[static_cast<size_t>(i % n)] / (i < n ? 90 : 50)));
    const Tensor positions = from_values(balanced, {n}, DType::i64),
                 documents = from_values(ids, {2, n}, DType::i64);
    const BlockMap map =
        make_block_map({.queries = n, .keys = n},
                       [](int64_t, int64_t q, int64_t k) { return k <= q && (q + k) % 3 != 0; });
    const AttentionMask mask = AttentionMask::causal() & AttentionMask::document();
    // Batch and queries are cut; keys, and what belongs to them, are whole along the sequence.
    const auto on = [&](Placement a, Placement b) { return Layout::of(m, {a, b}); };
    const auto all = on(R, R);
    for (const bool by_map : {false, true}) {
      AttentionOptions plain{.mask = mask}, cut{.mask = mask};
      if (by_map) {
        plain = {.block_map = map};
        cut = {.block_map = {distribute(map.blocks, on(R, S1)), distribute(map.bits, all)}};
      } else {
        plain.query_positions = plain.key_positions = positions;
        plain.query_documents = plain.key_documents = documents;
        cut.query_positions = distribute(positions, on(R, S0));
        cut.key_positions = distribute(positions, all);
        cut.query_documents = distribute(documents, on(S0, S1));
        cut.key_documents = distribute(documents, on(S0, R));
      }
      Heads one{variable(whole.q), variable(whole.k), variable(whole.v)};
      const Tensor want = scaled_dot_product_attention(one.q, one.k, one.v, plain);
      backward(loss_of(want));
      Heads parts{variable(whole.q, on(S0, S2)), variable(whole.k, on(S0, R)),
                  variable(whole.v, on(S0, R))};
      const CommTrace trace;
      const Tensor o = scaled_dot_product_attention(parts.q, parts.k, parts.v, cut);
      EXPECT_EQ(trace.count(), 0) << trace;
      expect_same(o, want);
      backward(loss_of(o));
      expect_same(parts.q.grad(), one.q.grad());
      expect_same(parts.k.grad(), one.k.grad());
      expect_same(parts.v.grad(), one.v.grad());
    }
  });
}

TEST(DistributedAttention, APlainOperandIsAClearError) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"tp", 2}});
    const Layout cut = Layout::of(m, {S1});
    const Tensor whole = numbers({1, 2, 5, 4}), x = distribute(whole, cut);
    const std::string text =
        error_of<LayoutError>([&] { (void)scaled_dot_product_attention(x, x, whole); });
    TESSERA_EXPECT_HOLDS(text, "[scaled_dot_product_attention]");
    TESSERA_EXPECT_HOLDS(text, "input 2: f64[1, 2, 5, 4] plain");
    TESSERA_EXPECT_HOLDS(text, "input 0: f64[1, 2, 5, 4] mesh(tp=2) {tp: Shard(1)}");
    // Tables of rotary positions are tensors like others.
    const auto [cos, sin] = rope_tables(5, 4, 10000);
    const Tensor y = distribute(numbers({1, 5, 2, 4}, 0, DType::f32), Layout::of(m, {S2}));
    TESSERA_EXPECT_HOLDS(error_of<LayoutError>([&, c = cos, s = sin] { (void)rope(y, c, s); }),
                         "plain");
  });
}

// An embedding over a cut vocabulary, a product, and the loss over the same cut: the small tensors
// of each are all that is sent.
TEST(DistributedAttention, VocabularyParallelSendsNoLogits) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    const int64_t vocabulary = 11, width = 6;
    const Tensor table = numbers({vocabulary, width}), out = numbers({vocabulary, width}, 1);
    const Tensor ids = tensor({{0, 10, 3, 7}, {5, 5, 9, 1}}, DType::i64),
                 targets = tensor({{10, 3, 7, -100}, {5, 9, 1, 0}}, DType::i64);
    const auto loss = [](const Tensor& e, const Tensor& w, const Tensor& t) {
      return cross_entropy(linear(e, w), t).sum;
    };
    Tensor one_table = variable(table), one_out = variable(out);
    const Tensor want = loss(embedding(one_table, ids), one_out, targets);
    backward(want);
    Tensor all_table = variable(table, Layout::of(m, {S0})),
           all_out = variable(out, Layout::of(m, {S0}));
    const CommTrace trace;
    const Tensor e = embedding(all_table, distribute(ids, Layout::of(m, {R})));
    EXPECT_EQ(placements(e), "{tp: Partial()}");
    const Tensor got = loss(redistribute(e, {R}), all_out, distribute(targets, Layout::of(m, {R})));
    EXPECT_EQ(placements(got), "{tp: Replicate()}");
    EXPECT_EQ(trace.count("all_reduce", "forward"), 3) << trace;  // activations, maxima, sums
    EXPECT_EQ(trace.count(), 3) << trace;
    EXPECT_EQ(trace.bytes(), (8 * width + 8 + 16) * 8) << trace;
    backward(got);
    expect_same(got, want);
    EXPECT_EQ(layout_of(all_table.grad()), layout_of(all_table));
    expect_same(all_table.grad(), one_table.grad());
    expect_same(all_out.grad(), one_out.grad());
  });
}

}  // namespace
}  // namespace tessera
