// SPDX-License-Identifier: Apache-2.0
// Attention over cut sequences against one rank, in f64: every mask, method and balancer on 1 to 4
// ranks, with batches or heads cut beside, documents of unequal lengths and parts without tokens.
// The long form takes them all, the short form a part that the seed chooses.
#include "tessera/nn/context/context_parallel.h"

#include "tessera/core/draws.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/seen_blocks.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"

#include <functional>
#include <numeric>

namespace tessera::nn {
namespace {

using namespace trial;
using test::on_ranks;
using Random = std::mt19937;

constexpr int64_t kHeads = 12, kHeadDim = 4, kValueDim = 3;
const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1), S2 = Shard(2);

struct MaskCase {
  std::string name;
  AttentionMask mask;
  bool documents = false, sink = false;
  AttentionPredicate sees = {};
  double soft_cap = 0;
};
std::vector<MaskCase> mask_cases() {
  const AttentionMask causal = AttentionMask::causal();
  return {{"all", {}},
          {"causal", causal},
          {"causal in documents", causal, true},
          {"documents", {}, true},
          {"window", causal & AttentionMask::window(17)},
          {"chunk", causal & AttentionMask::chunk(30)},
          {"prefix", causal | AttentionMask::prefix(21)},
          {"and, or", (causal & AttentionMask::window(9)) | AttentionMask::prefix(5), true},
          {"sink", causal & AttentionMask::window(40), true, true},
          {"predicate",
           {},
           false,
           true,
           [](int64_t b, int64_t q, int64_t k) {
             return k <= q && (q + 2 * k + b) % 3 != 0 && k / 50 != 1;
           }},
          {"capped", causal, true, true, {}, 0.7}};
}

struct MeshCase {
  int dp, cp, tp;
  [[nodiscard]] int ranks() const { return dp * cp * tp; }
};

struct Trial {
  MaskCase mask;
  ContextMethod method;
  LoadBalancer balancer;
  MeshCase mesh;
  [[nodiscard]] std::string text(const Shape& shape, unsigned seed) const {
    return concat(mask.name, ", ", method, ", ", balancer, ", dp ", mesh.dp, ", cp ", mesh.cp,
                  ", tp ", mesh.tp, ", q ", shape, ", seed ", seed);
  }
};

int64_t between(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<unsigned>(high - low + 1));
}

// (B, T) i64: documents of random lengths in order, their ids rising but for one row in four.
Tensor random_documents(Random& random, int64_t batches, int64_t length) {
  const Tensor ids = empty({batches, length}, DType::i64);
  for (int64_t b = 0; b < batches; ++b) {
    const int64_t step = random() % 4 == 0 ? -1 : 1, most = between(random, 1, length + 1);
    int64_t id = 7, left = 0;
    for (int64_t i = 0; i < length; ++i, --left) {
      if (left == 0) {
        id += step;
        left = between(random, 1, most);
      }
      ids.data<int64_t>()[b * length + i] = id;
    }
  }
  return ids;
}

struct Heads {
  Tensor q, k, v, sink;
};

Tensor result_of(const Heads& x, const std::array<Tensor, 2>& attended, bool sink) {
  const Tensor y = sink ? attention_sink(attended[0], attended[1], x.sink, true) : attended[0];
  backward(sum(mul(y, mul(y, y))));
  return y;
}

void expect_as_one_rank(const Trial& t, unsigned seed) {
  Random random(seed);
  const int64_t lengths[] = {0, 1, 2, 3, 5, 7, 65, 90, 131, 200};
  const int64_t batches = between(random, 1, 3), length = lengths[random() % std::size(lengths)];
  const int64_t key_heads = std::array{2, 4, 6, 12}[random() % 4];
  const Heads whole{numbers({batches, length, kHeads, kHeadDim}, seed % 7),
                    numbers({batches, length, key_heads, kHeadDim}, 1),
                    numbers({batches, length, key_heads, kValueDim}, 2), numbers({kHeads}, 3)};
  SCOPED_TRACE(t.text(whole.q.shape(), seed));
  const Tensor documents = random_documents(random, batches, length);
  AttentionMetadata metadata{.mask = t.mask.mask};
  AttentionOptions plain{
      .mask = t.mask.mask, .heads_inner = true, .scale = 0.9, .soft_cap = t.mask.soft_cap};
  if (t.mask.documents) {
    plain.mask = t.mask.mask & AttentionMask::document();
    plain.query_documents = plain.key_documents = documents;
  }
  // Positions that are those of the tokens' places, or any.
  Tensor positions;
  if (random() % 3 == 0) {
    positions = empty({batches, length}, DType::i64);
    for (int64_t i = 0; i < positions.numel(); ++i)
      positions.data<int64_t>()[i] = between(random, 0, 2 * length);
    plain.query_positions = plain.key_positions = positions;
  }
  if (t.mask.sees) {
    metadata.block_map = plain.block_map =
        make_block_map({.batches = batches, .queries = length, .keys = length}, t.mask.sees);
  }
  Heads one{variable(whole.q), variable(whole.k), variable(whole.v), variable(whole.sink)};
  const Tensor want = result_of(
      one, scaled_dot_product_attention_with_lse(one.q, one.k, one.v, plain), t.mask.sink);

  // One axis of the sequence, or two.
  const bool two = t.method == ContextMethod::ring_ulysses;
  Mesh mesh = Mesh::make({{"dp", t.mesh.dp}, {"cp", t.mesh.cp}, {"tp", t.mesh.tp}});
  if (two) {
    const int ring = t.mesh.cp % 2 == 0 && random() % 3 > 0 ? t.mesh.cp / 2
                     : random() % 2 == 0                    ? t.mesh.cp
                                                            : 1;
    mesh = mesh.unflatten("cp", {{"ring", ring}, {"heads", t.mesh.cp / ring}});
  }
  const Layout rows = Layout::replicated(mesh).with("dp", S0);
  metadata.documents = distribute(documents, rows);
  if (positions.defined()) metadata.token_positions = distribute(positions, rows);
  if (t.mask.sees) metadata.block_map.blocks = distribute(plain.block_map.blocks, rows);
  ContextParallelOptions options{.method = t.method, .balancer = t.balancer};
  if (two) options.axes = {"ring", "heads"};
  const SequenceCut cut(options, rows, {batches, length}, metadata);
  if (!t.mask.documents) metadata.documents = {};
  const AttentionMetadata layers = cut.metadata(metadata);

  const auto part = [&](const Tensor& x) {
    const Tensor y = cut.cut(distribute(x, rows));
    Tensor z = redistribute(y, layout_of(y).with("tp", S2)).detach();
    return z.set_requires_grad();
  };
  Heads parts{part(whole.q), part(whole.k), part(whole.v),
              variable(whole.sink, Layout::replicated(mesh).with("tp", S0))};
  const auto attended = layers.cut->attend(
      parts.q, parts.k, parts.v, {.scale = 0.9, .soft_cap = t.mask.soft_cap, .lse = t.mask.sink});
  EXPECT_EQ(layout_of(attended[0]), layout_of(parts.q));
  const Tensor got = result_of(parts, attended, t.mask.sink);
  expect_same(cut.join(got), want, 1e-10);
  expect_same(cut.join(parts.q.grad()), one.q.grad(), 1e-10);
  expect_same(cut.join(parts.k.grad()), one.k.grad(), 1e-10);
  expect_same(cut.join(parts.v.grad()), one.v.grad(), 1e-10);
  if (t.mask.sink) expect_same(parts.sink.grad(), one.sink.grad(), 1e-10);
}

TEST(ContextParallel, EveryMaskMethodAndBalancerIsAttentionOfOneRank) {
  std::vector<Trial> all;
  for (const MeshCase& mesh :
       {MeshCase{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {2, 2, 1}, {1, 2, 2}}) {
    for (const MaskCase& mask : mask_cases()) {
      for (const auto method : {ContextMethod::all_gather, ContextMethod::ring,
                                ContextMethod::ulysses, ContextMethod::ring_ulysses}) {
        for (const auto balancer : {LoadBalancer::none, LoadBalancer::head_tail,
                                    LoadBalancer::document_head_tail, LoadBalancer::round_robin}) {
          all.push_back({mask, method, balancer, mesh});
        }
      }
    }
  }
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const unsigned seed = given ? static_cast<unsigned>(std::atoll(given)) : std::random_device{}();
  // One in eight: of masks, methods and balancers about each pair on each mesh.
  const size_t step = test::long_form() ? 1 : 8;
  Random random(seed);
  std::ranges::stable_sort(all, {}, [](const Trial& t) { return t.mesh.ranks(); });
  for (size_t i = random() % step; i < all.size();) {
    const int ranks = all[i].mesh.ranks();
    std::vector<std::pair<Trial, unsigned>> together;
    for (; i < all.size() && all[i].mesh.ranks() == ranks; i += 1 + random() % (2 * step - 1)) {
      for (int again = 0; again < (test::long_form() ? 3 : 1); ++again)
        together.emplace_back(all[i], static_cast<unsigned>(random()));
    }
    on_ranks(ranks, [&](World&) {
      for (const auto& [trial, number] : together) {
        if (!testing::Test::HasFailure()) expect_as_one_rank(trial, number);
      }
    });
  }
}

// The sweep may pass over some of these.
TEST(ContextParallel, CappedScoresAreThoseOfOneRankByEveryMethod) {
  const MaskCase capped = mask_cases().back();
  ASSERT_GT(capped.soft_cap, 0);
  on_ranks(4, [&](World&) {
    for (const auto method : {ContextMethod::all_gather, ContextMethod::ring,
                              ContextMethod::ulysses, ContextMethod::ring_ulysses}) {
      for (unsigned seed = 1; seed <= 4 && !testing::Test::HasFailure(); ++seed)
        expect_as_one_rank({capped, method, LoadBalancer::head_tail, {1, 4, 1}}, seed);
    }
  });
}

}  // namespace
}  // namespace tessera::nn
