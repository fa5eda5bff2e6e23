// SPDX-License-Identifier: Apache-2.0
// What the methods of context parallel send and skip, what a cut batch is, and what is refused
// before anything is sent.
#include "tessera/core/draws.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/seen_blocks.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/nn/context/generation_cut.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/cut_batch.h"

namespace tessera::nn {
namespace {

using namespace trial;
using test::context_options, test::CutBatch, test::on_ranks;

const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1);

struct Sent {
  ContextMethod method;
  std::string op;
  int forward, backward;
};

TEST(ContextMethods, SendWhatTheySayWhateverTheMask) {
  on_ranks(4, [](World&) {
    const int64_t tokens = 64;
    const int64_t of_keys = 2 * tokens * 4 * (8 + 6) * 8;  // bytes of all keys and values
    for (const AttentionMask& mask :
         {AttentionMask(), AttentionMask::causal() & AttentionMask::window(3)}) {
      for (const Sent& want :
           // Gathered again in backward, in four groups of heads.
           {Sent{ContextMethod::all_gather, "all_gather", 2, 2 * 4},
            // Keys and values in one; their gradients once more, which brings them home.
            Sent{ContextMethod::ring, "all_to_all", 3, 3 + 4},
            Sent{ContextMethod::ulysses, "all_to_all", 4, 4},
            Sent{ContextMethod::ring_ulysses, "all_to_all", 4 + 1, 4 + 1 + 2}}) {
        const CommTrace making;
        const CutBatch x(context_options(want.method, LoadBalancer::none), tokens, {.mask = mask});
        EXPECT_EQ(making.count(), 0) << making;
        CommTrace trace;
        const Tensor o = x.attend()[0];
        EXPECT_EQ(trace.count(want.op), want.forward) << want.method << trace;
        EXPECT_EQ(trace.count(), want.forward) << want.method << trace;
        const bool gathers = want.method == ContextMethod::all_gather;
        if (gathers || want.method == ContextMethod::ring) {
          EXPECT_EQ(trace.bytes(), gathers ? of_keys : of_keys / 4 * 3) << trace;
        }
        trace.clear();
        backward(sum(o * o));
        EXPECT_EQ(trace.count(want.op), want.backward) << want.method << trace;
        if (gathers) {
          EXPECT_EQ(trace.count("reduce_scatter"), 2 * 4) << trace;
          EXPECT_EQ(trace.bytes(), 2 * of_keys) << trace;
        } else {
          EXPECT_EQ(trace.count(), want.backward) << want.method << trace;
        }
      }
    }
  });
}

TEST(ContextMethods, TheRingSkipsKeysThatNoQuerySees) {
  on_ranks(4, [](World& world) {
    const CutBatch x(context_options(ContextMethod::ring, LoadBalancer::none), 130,
                     {.mask = AttentionMask::causal()});
    int forward = 0, backwards = 0;
    Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
      forward += row.name == op::Attention::name;
      backwards += row.name == op::AttentionBackward::name;
    };
    const Tensor o = x.attend()[0];
    backward(sum(o * o));
    Context::current().op_hook = {};
    EXPECT_EQ(forward, world.rank() + 1);
    EXPECT_EQ(backwards, world.rank() + 1);
  });
}

// So keys travel while the queries meet those before them.
TEST(ContextMethods, TheRingPassesKeysOnBeforeQueriesMeetThem) {
  on_ranks(4, [](World& world) {
    const CutBatch x(context_options(ContextMethod::ring, LoadBalancer::none), 130,
                     {.mask = AttentionMask()});
    const auto exchanges_at = [&](std::string_view op, const auto& run) {
      const uint64_t before = world.group().recorder().count();
      std::vector<uint64_t> counts;
      Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
        if (row.name == op) counts.push_back(world.group().recorder().count() - before);
      };
      run();
      Context::current().op_hook = {};
      return counts;
    };
    Tensor loss;
    EXPECT_EQ(exchanges_at(op::Attention::name, [&] { loss = sum(x.attend()[0]); }),
              (std::vector<uint64_t>{1, 2, 3, 3}));
    // The gradients of the keys before have been passed on too.
    EXPECT_EQ(exchanges_at(op::AttentionBackward::name, [&] { backward(loss); }),
              (std::vector<uint64_t>{1, 3, 5, 6}));
  });
}

TEST(ContextMethods, EveryRunGivesTheSameBits) {
  on_ranks(3, [](World&) {
    for (const auto method : {ContextMethod::all_gather, ContextMethod::ring}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto run = [&] {
          const CutBatch x(context_options(method), 77, {.mask = AttentionMask::causal()}, 4, 2,
                           dtype);
          const auto [o, lse] = x.attend(true);
          EXPECT_EQ(o.dtype(), dtype);
          EXPECT_EQ(lse.dtype(), DType::f32);
          backward(sum(o * o));
          EXPECT_EQ(x.k.grad().dtype(), dtype);
          return std::array{full_tensor(o).values(), full_tensor(x.q.grad()).values(),
                            full_tensor(x.k.grad()).values(), full_tensor(x.v.grad()).values()};
        };
        EXPECT_EQ(run(), run()) << method << ", " << dtype;
      }
    }
  });
}

TEST(ContextMethods, SumsOfANarrowRingAreThoseOfF32) {
  on_ranks(4, [](World&) {
    const auto run = [](ContextMethod method, DType dtype) {
      const NoGrad guard;
      const CutBatch x(context_options(method), 200, {.mask = AttentionMask::causal()}, 4, 2,
                       dtype);
      return x.cut.join(x.attend()[0]);
    };
    const Tensor want = run(ContextMethod::all_gather, DType::f64);
    expect_same(cast(run(ContextMethod::ring, DType::f32), DType::f64), want, 1e-6);
    expect_same(cast(run(ContextMethod::ring, DType::bf16), DType::f64), want, 2e-2);
  });
}

// Three layers see a chunk of the earlier tokens, one all of them.
TEST(ContextMethods, RoundRobinDealsTheWorkOfAllKindsOfLayers) {
  on_ranks(2, [](World&) {
    const AttentionMask all = AttentionMask::causal(), chunk = all & AttentionMask::chunk(300);
    const std::vector<AttentionMetadata> kinds{{.mask = chunk, .layers = 3}, {.mask = all}};
    const ContextParallelOptions options{.balancer = LoadBalancer::round_robin};
    const Layout rows = Layout::replicated(Mesh::make({{"cp", 2}}));
    const auto work = [](const AttentionMask& mask) {
      return count_seen_blocks(1, 1024, 1024, {.mask = mask});
    };
    const auto dealt = [](const Tensor& of) {
      const int64_t parts[] = {512, 512};
      return balanced_order({.balancer = LoadBalancer::round_robin, .work = of}, parts).values();
    };
    const auto order = SequenceCut(options, rows, {1, 1024}, kinds).order().values();
    EXPECT_EQ(order, dealt(work(all) + work(chunk) * 3));
    EXPECT_NE(order, dealt(work(all) + work(chunk)));
    EXPECT_NE(order, dealt(work(chunk)));
  });
}

TEST(ContextMethods, ACutBatchIsJoinedAgain) {
  on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"cp", 2}});
    const Layout rows = Layout::of(mesh, {S0, R});
    const Tensor ids = tensor({{0, 1, 2, 3, 0, 1, 2}, {0, 1, 0, 1, 0, 1, 0}, {0, 1, 2, 3, 4, 5, 6}},
                              DType::i64),
                 documents =
                     tensor({{4, 4, 4, 4, 5, 5, 5}, {1, 1, 2, 2, 3, 3, 3}, {0, 0, 0, 0, 0, 0, 0}},
                            DType::i64);
    const AttentionMetadata whole{.position_ids = distribute(ids, rows),
                                  .documents = distribute(documents, rows)};
    const SequenceCut cut({.balancer = LoadBalancer::document_head_tail}, rows, {3, 7}, whole);
    EXPECT_EQ(cut.layout(), Layout::of(mesh, {S0, S1}));
    const CommTrace trace;
    const AttentionMetadata layers = cut.metadata(whole);
    EXPECT_EQ(trace.count(), 0) << trace;
    EXPECT_FALSE(layers.documents.defined());
    EXPECT_EQ(layout_of(layers.position_ids), cut.layout());
    expect_same(cut.join(layers.position_ids), ids, 0);
    const Tensor tokens = cut.cut(distribute(documents, rows));
    EXPECT_EQ(tokens.shape(), (Shape{3, 7}));
    expect_same(cut.join(tokens), documents, 0);
    // Without ids of their own, tokens have those of their places.
    expect_same(
        cut.join(cut.metadata({}).position_ids),
        tensor({{0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5, 6}}, DType::i64),
        0);
    // Logits may be cut over more than tokens are.
    const Tensor logits = numbers({3, 7, 5});
    expect_same(cut.join(cut.cut(distribute(logits, rows))), logits, 0);
  });
}

// A prompt of ten tokens, then two, then one.
TEST(ContextMethods, CapsReachTheKeysOfGeneration) {
  on_ranks(3, [](World&) {
    const NoGrad guard;
    const int64_t tokens = 13;
    const Tensor q = numbers({2, tokens, 6, 8}), k = numbers({2, tokens, 3, 8}, 1),
                 v = numbers({2, tokens, 3, 6}, 2);
    const auto whole = [&](double cap) {
      return scaled_dot_product_attention(
          q, k, v, {.mask = AttentionMask::causal(), .heads_inner = true, .soft_cap = cap});
    };
    const Tensor want = whole(0.3);
    EXPECT_GT(amax(abs(want - whole(0))).item(), 1e-3);
    const Layout rows = Layout::replicated(Mesh::make({{"cp", 3}}));
    const AttentionMetadata causal;
    for (const auto method :
         {ContextMethod::all_gather, ContextMethod::ring, ContextMethod::ulysses}) {
      GenerationCut generation(context_options(method, LoadBalancer::none));
      KvCache cache{.capacity = tokens};
      for (const Range part : {Range{0, 10}, Range{10, 12}, Range{12, 13}}) {
        const Tensor ids = distribute(zeros({2, part.stop - part.start}, DType::i64), rows);
        const auto step = generation.next(ids, part.start, std::span(&causal, 1));
        const auto own = [&](const Tensor& x) {
          return distribute(contiguous(slice(x, 1, part)), layout_of(step.tokens));
        };
        const Tensor o = step.kinds[0].cut->attend(own(q), own(k), own(v),
                                                   {.soft_cap = 0.3, .cache = &cache})[0];
        expect_same(o, contiguous(slice(want, 1, part)), 1e-10);
      }
    }
  });
}

TEST(ContextMethods, WhatDoesNotFitIsRefusedBeforeAnythingIsSent) {
  on_ranks(4, [](World&) {
    const CommTrace trace;
    const auto refused = [&]<class E>(std::type_identity<E>, const std::string& part,
                                      const std::function<void()>& f) {
      TESSERA_EXPECT_HOLDS(error_of<E>(f), part);
    };
    constexpr std::type_identity<ValueError> value;
    constexpr std::type_identity<LayoutError> layout;
    constexpr std::type_identity<ShapeError> shape;
    // Heads that no repetition of keys makes equal.
    const CutBatch few(context_options(ContextMethod::ulysses), 16, {}, 2, 1);
    refused(value, "use all_gather or ring", [&] { (void)few.attend(); });
    const CutBatch two(context_options(ContextMethod::ring_ulysses), 16, {}, 3, 3);
    refused(value, "use ring", [&] { (void)two.attend(); });
    // Operands that do not lie as the batch.
    const CutBatch x(context_options(ContextMethod::ring), 16);
    const Tensor whole = numbers({2, 16, 4, 8}),
                 spread = distribute(whole, Layout::of(x.mesh, {S0}));
    refused(layout, "plain", [&] { (void)x.layers.cut->attend(whole, x.k, x.v, {}); });
    refused(layout, "redistribute", [&] { (void)x.layers.cut->attend(spread, x.k, x.v, {}); });
    refused(shape, "query heads", [&] {
      (void)x.layers.cut->attend(x.cut.cut(numbers({2, 16, 3, 8})), x.k, x.v, {});
    });
    // Options, and layouts of the batch.
    const Layout rows = Layout::replicated(x.mesh);
    refused(value, "expected 2", [&] {
      (void)SequenceCut({.method = ContextMethod::ring_ulysses}, rows, {2, 16});
    });
    refused(value, "documents", [&] {
      (void)SequenceCut({.balancer = LoadBalancer::document_head_tail}, rows, {2, 16});
    });
    refused(layout, "over the sequence", [&] {
      (void)SequenceCut({}, Layout::of(x.mesh, {S1}), {2, 16});
    });
    refused(layout, "replicate", [&] { (void)SequenceCut({}, Layout::of(x.mesh, {S0}), {2, 16}); });
    refused(layout, "tokens to be cut", [&] {
      (void)SequenceCut({}, rows, {2, 16}).cut(zeros({2, 15}));
    });
    refused(layout, "is not cut", [&] { (void)x.cut.join(spread); });
    // Metadata.
    refused(value, "already", [&] { (void)x.cut.metadata(x.layers); });
    refused(value, "position 3", [&] { (void)x.cut.metadata({.start = 3}); });
    refused(std::type_identity<IndexError>(), "that the map has", [&] {
      const BlockMap small =
          make_block_map({.queries = 1, .keys = 1}, [](auto...) { return true; });
      (void)SequenceCut({}, rows, {2, 65}).metadata({.block_map = small});
    });
    refused(shape, "documents", [&] {
      (void)x.cut.metadata({.documents = zeros({2, 17}, DType::i64)});
    });
    refused(std::type_identity<DTypeError>(), "documents must be i64: given i32[2, 16]", [&] {
      (void)x.cut.metadata({.documents = zeros({2, 16}, DType::i32)});
    });
    // A cache of generation.
    GenerationCut generation({});
    const AttentionMetadata all;
    const auto step =
        generation.next(distribute(zeros({2, 16}, DType::i64), rows), 0, std::span(&all, 1));
    refused(value, "of tokens after 0 others: expected a cache of so many, given none",
            [&] { (void)step.kinds[0].cut->attend(x.q, x.k, x.v, {}); });
    KvCache used{.capacity = 16, .length = 3};
    refused(value, "of tokens after 0 others: expected a cache of so many, given one of 3",
            [&] { (void)step.kinds[0].cut->attend(x.q, x.k, x.v, {.cache = &used}); });
    Attention attention({.dim = 4, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4, .rotary = false});
    initialize(attention, 1);
    refused(value, "no cache follows", [&] {
      const NoGrad guard;
      KvCache cache{.capacity = 16};
      (void)attention(zeros({2, 16, 4}), x.layers, &cache);
    });
    EXPECT_EQ(trace.count(), 0) << trace;
  });
}

}  // namespace
}  // namespace tessera::nn
