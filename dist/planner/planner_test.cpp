// SPDX-License-Identifier: Apache-2.0
// The planner: which layouts come out, what is refused and how it reads, what is sent on request
// and in backward, what the plan cache keeps.
#include "tessera/dist/planner/planner.h"

#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/plan_cache_impl.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using test::on_ranks;

template <class E, class F> std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

Tensor ramp(const Shape& shape, DType dtype = DType::f64) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i % 17) - 6);
  return from_values(values, shape, dtype);
}
std::string lies(const Tensor& x) { return layout_of(x).placements_text(); }

TEST(Planner, OutputsFollowFromTheRules) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const auto on = [&](const Shape& s, Placement dp, Placement tp) {
      return distribute(ramp(s), Layout::of(m, {dp, tp}));
    };
    const Placement R = Replicate(), S0 = Shard(0), S1 = Shard(1);
    const Tensor x = on({6, 8}, S0, R), w = on({8, 4}, R, S1);
    const Tensor y = matmul(x, w);
    EXPECT_EQ(lies(y), "{dp: Shard(0), tp: Shard(1)}");
    EXPECT_EQ(full_tensor(y).values(), matmul(ramp({6, 8}), ramp({8, 4})).values());
    const Tensor k = matmul(on({6, 8}, S0, S1), on({8, 4}, R, S0));
    EXPECT_EQ(lies(k), "{dp: Shard(0), tp: Partial()}");
    EXPECT_EQ(full_tensor(k).values(), full_tensor(y).values());
    EXPECT_EQ(lies(add(k, k)), "{dp: Shard(0), tp: Partial()}");
    EXPECT_EQ(lies(mul(k, tensor(2.0, DType::f64))), "{dp: Shard(0), tp: Partial()}");
    EXPECT_EQ(lies(sum(k, {0})), "{dp: Partial(), tp: Partial()}");
    // A replicated bias on a partial sum counts once: it is zero on all ranks but one.
    const Tensor b = on({4}, R, R);
    const Tensor kb = add(k, b);
    EXPECT_EQ(lies(kb), "{dp: Shard(0), tp: Partial()}");
    EXPECT_EQ(full_tensor(kb).values(), add(full_tensor(k), ramp({4})).values());
  });
}

TEST(Planner, RefusesToSendAndNamesTheFix) {
  on_ranks(4, [](World& world) {
    const Mesh m = Mesh::make({{"dp", 2}, {"tp", 2}});
    const Tensor a = distribute(ramp({4, 8}, DType::f32), Layout::of(m, {Shard(0), Shard(1)}));
    const Tensor b = distribute(ramp({4, 8}, DType::f32), Layout::of(m, {Shard(0), Shard(0)}));
    const std::string text = message_of<LayoutError>([&] { (void)add(a, b); });
    for (const char* part : {"[add]", "\"tp\"", "input 0: f32[4, 8]", "input 1: f32[4, 8]",
                             "redistribute(input", "AutoRedistribute", "mesh(dp=2, tp=2)"})
      EXPECT_NE(text.find(part), text.npos) << part << " in " << text;
    EXPECT_TRUE(text.ends_with("planner choose, while an AutoRedistribute lives")) << text;
    const std::string soft = message_of<LayoutError>([&] { (void)softmax(a, -1); });
    EXPECT_NE(soft.find("redistribute(input 0, {Shard(0), Shard(0)})"), soft.npos) << soft;
    // The call that it names works.
    EXPECT_EQ(full_tensor(softmax(redistribute(a, {Shard(0), Shard(0)}), -1)).shape(),
              (Shape{4, 8}));
    (void)world;
  });
}

TEST(Planner, RefusesPlainTensorsAndOtherMeshes) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 4}});
    const Mesh other = Mesh::make({{"x", 2}, {"y", 2}});
    const Tensor a = distribute(ramp({4, 8}, DType::f32), Layout::of(m, {Shard(0)}));
    const Tensor c = distribute(ramp({4, 8}, DType::f32), Layout::replicated(other));
    const std::string plain = message_of<LayoutError>([&] {
      (void)add(a, ramp({4, 8}, DType::f32));
    });
    EXPECT_NE(plain.find("plain"), plain.npos);
    EXPECT_NE(plain.find("distribute(x, layout)"), plain.npos) << plain;
    EXPECT_NE(message_of<LayoutError>([&] { (void)add(a, c); }).find("different meshes"),
              std::string::npos);
    Tensor scalar = tensor(2.0);
    EXPECT_EQ(full_tensor(mul(a, scalar)).values(), mul(ramp({4, 8}, DType::f32), scalar).values());
    scalar.set_requires_grad();
    EXPECT_THROW((void)mul(a, scalar), LayoutError);
    for (const auto& read : std::vector<std::function<void()>>{
             [&] { (void)a.data<float>(); }, [&] { (void)a.strides(); }, [&] { (void)a.item(); },
             [&] { (void)a.values(); }, [&] { (void)a.offset(); }}) {
      const std::string text = message_of<LayoutError>(read);
      EXPECT_NE(text.find("full_tensor()"), text.npos) << text;
    }
  });
}

TEST(Planner, AutoRedistributeSendsTheCheapestAndSaysSo) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"tp", 4}});
    Tensor a = distribute(ramp({8, 8}), Layout::of(m, {Shard(1)}));
    a.set_requires_grad();
    const CommTrace trace;
    {
      const AutoRedistribute wish;
      const Tensor y = softmax(a, -1);
      EXPECT_EQ(trace.count(), 1) << trace.table();
      const Tensor reference = softmax(ramp({8, 8}), -1);
      EXPECT_EQ(full_tensor(y).values(), reference.values());
      backward(sum(mul(y, y)));
    }
    Tensor plain = ramp({8, 8});
    plain.set_requires_grad();
    const Tensor y = softmax(plain, -1);
    backward(sum(mul(y, y)));
    EXPECT_EQ(layout_of(a.grad()), layout_of(a));
    const auto got = full_tensor(a.grad()).values(), want = plain.grad().values();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12);
    EXPECT_GT(trace.count({}, "grad"), 0) << trace.table();
    EXPECT_THROW((void)softmax(a, -1), LayoutError);
  });
}

TEST(Planner, DataParallelGradientsArePartialUntilReduced) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"dp", 4}});
    Tensor w = distribute(ramp({8, 3}), Layout::of(m, {Replicate()}));
    w.set_requires_grad();
    const Tensor x = distribute(ramp({6, 8}), Layout::of(m, {Shard(0)}));  // uneven: 2, 2, 2, 0
    const CommTrace trace;
    const Tensor loss = sum(mul(matmul(x, w), matmul(x, w)));
    EXPECT_EQ(lies(loss), "{dp: Partial()}");
    backward(loss);
    backward(sum(matmul(x, w)));  // accumulates without sending
    EXPECT_EQ(lies(w.grad()), "{dp: Partial()}");
    EXPECT_EQ(trace.count(), 0) << trace.table();
    const Tensor g = redistribute(w.grad(), layout_of(w));
    EXPECT_EQ(trace.count("all_reduce"), 1);
    Tensor v = ramp({8, 3});
    v.set_requires_grad();
    const Tensor y = matmul(ramp({6, 8}), v);
    backward(sum(mul(y, y)));
    backward(sum(matmul(ramp({6, 8}), v)));
    EXPECT_EQ(full_tensor(g).values(), v.grad().values());
  });
}

TEST(Planner, ViewsOfCutDimsAliasOrThrow) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor x = distribute(ramp({4, 6}), Layout::of(m, {Shard(0)}));
    EXPECT_THROW((void)slice(x, 0, {0, 2}), LayoutError);
    const Tensor t = transpose(x, 0, 1);
    EXPECT_EQ(lies(t), "{a: Shard(1)}");
    EXPECT_EQ(&t.storage(), &x.storage());
    const Tensor columns = slice(x, 1, {1, 3});
    EXPECT_EQ(&columns.storage(), &x.storage());
    EXPECT_EQ(full_tensor(columns).values(), slice(ramp({4, 6}), 1, {1, 3}).values());
    const Tensor r = reshape(x, {2, 2, 6});
    EXPECT_EQ(lies(r), "{a: Shard(0)}");
    EXPECT_THROW((void)reshape(t, {24}), LayoutError);  // its parts would lie in stripes
    const Tensor c = slice(distribute(ramp({4, 6}), Layout::of(m, {Shard(1)})), 0, {1, 3});
    EXPECT_EQ(full_tensor(reshape(c, {1, 2, 6})).values(), slice(ramp({4, 6}), 0, {1, 3}).values());
    (void)world;
  });
}

TEST(Planner, KeepsPlansApartByAttributesShapesAndDTypes) {
  on_ranks(2, [](World& world) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor x = distribute(ramp({4, 6}), Layout::of(m, {Shard(0)}));
    const Planner& planner = world.planner();
    EXPECT_EQ(full_tensor(sum(x, {1})).values(), sum(ramp({4, 6}), {1}).values());
    EXPECT_EQ(full_tensor(sum(x, {0})).values(), sum(ramp({4, 6}), {0}).values());
    EXPECT_EQ(full_tensor(x * 2.0).values(), (ramp({4, 6}) * 2.0).values());
    EXPECT_EQ(full_tensor(x * -5.0).values(), (ramp({4, 6}) * -5.0).values());
    const Tensor f = distribute(ramp({4, 6}, DType::f32), layout_of(x));
    EXPECT_EQ(add(f, f).dtype(), DType::f32);
    EXPECT_EQ(add(x, x).dtype(), DType::f64);
    const auto before = planner.counts();
    for (int i = 0; i < 10; ++i) (void)add(x, x);
    EXPECT_EQ(planner.counts().misses, before.misses);
    EXPECT_EQ(planner.counts().hits, before.hits + 10);
    // A value that changes with each step fills the table to its bound and no further.
    for (int i = 0; i < 6000; ++i) (void)(x * (1.0 + i));
    EXPECT_LE(planner.counts().plans, 4096u);
  });
}

TEST(PlanCache, KeepsPlansWhoseHashesCollide) {
  PlanCache cache;
  const op::Add add;
  const OpRow& row = RowOf<op::Add>::row;
  const auto hash = [](uint64_t i) {
    return 4094 + (i << 20);
  };  // wraps around the end of the table
  for (uint64_t i = 0; i < 8; ++i) {
    auto entry = std::make_unique<PlanCache::Entry>();
    entry->hash = hash(i);
    entry->row = &row;
    entry->op = detail::copy_of(row, &add);
    entry->plan.asks = i % 2 == 1;
    cache.insert(std::move(entry));
  }
  EXPECT_EQ(cache.size(), 8u);
  for (uint64_t i = 0; i < 8; ++i) {
    const OpPlan* plan = cache.find(hash(i), row, &add, {}, LayoutId::none);
    ASSERT_TRUE(plan) << i;
    EXPECT_EQ(plan->asks, i % 2 == 1);
  }
  EXPECT_FALSE(cache.find(hash(8), row, &add, {}, LayoutId::none));
}

TEST(Planner, EmptyPartsAddNothing) {
  on_ranks(4, [](World&) {
    const Mesh m = Mesh::make({{"a", 4}});
    for (int64_t n : {0, 1, 2, 5}) {
      const Tensor x = distribute(ramp({n, 3}), Layout::of(m, {Shard(0)}));
      EXPECT_EQ(full_tensor(sum(x, {0})).values(), sum(ramp({n, 3}), {0}).values()) << n;
      const Tensor y = matmul(transpose(x, 0, 1), x);
      EXPECT_EQ(full_tensor(y).values(),
                matmul(transpose(ramp({n, 3}), 0, 1), ramp({n, 3})).values())
          << n;
      if (n == 0) continue;
      const auto got = full_tensor(mean(x, {0})).values(), want = mean(ramp({n, 3}), {0}).values();
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << n;
    }
  });
}

// An op without inputs, of which no rank can make a part.
struct Whole {
  static constexpr std::string_view name = "whole";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotShardable sharding{"a test"};
  static constexpr NotDifferentiable vjp{"a test"};
  static constexpr NotOnCuda cuda{"a test"};
  MetaList meta(Metas) const { return {{{4}, DType::f32, kCpu}}; }
  void cpu(Tensors, Outputs y) const { std::fill_n(y[0].data<float>(), y[0].numel(), 1.0F); }
  static std::vector<Sample<Whole>> samples() { return {}; }
};

// A copy whose rule lets rows be cut, and whose local form makes one row too many.
struct RowTooMany {
  int64_t more = 0;
  static constexpr std::string_view name = "row_too_many";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{"a test"};
  static constexpr NotOnCuda cuda{"a test"};
  auto attributes() const { return std::tie(more); }
  MetaList meta(Metas in) const { return {{{in[0].shape[0] + more}, in[0].dtype, in[0].device}}; }
  ShardingRule sharding(Metas in) const { return rule("a -> a", in); }
  RowTooMany local(const Piece&) const { return {more + 1}; }
  void cpu(Tensors, Outputs) const {}
  static std::vector<Sample<RowTooMany>> samples() { return {}; }
};

}  // namespace
}  // namespace tessera

TESSERA_ROOM(tessera::Whole)
TESSERA_ROOM(tessera::RowTooMany)

namespace tessera {
namespace {

TEST(Planner, WhatIsMadeIsNotPartialAndIsCutOnlyIfItsOpCanBe) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    EXPECT_EQ(message_of<LayoutError>(
                  [&] { (void)full({4}, 1, DType::f32, Layout::of(m, {Partial()})); }),
              "[fill] cannot make a partial tensor {a: Partial()}");
    EXPECT_EQ(message_of<LayoutError>([&] { (void)call_on(Whole(), Layout::of(m, {Shard(0)})); }),
              "[whole] is not shardable: a test");
    EXPECT_EQ(local(call_on(Whole(), Layout::replicated(m))).shape(), (Shape{4}));
  });
}

// Its values would be wrong without a word.
TEST(Planner, ARoomWhoseLocalFormIsNotAsItsRuleSaysIsRefused) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor x = distribute(ramp({6}), Layout::of(m, {Shard(0)}));
    EXPECT_EQ(message_of<LayoutError>([&] { (void)call(RowTooMany(), {x}); }),
              "[row_too_many] its local form makes f64[4] where its sharding rule (a) -> (a) "
              "expects f64[3] of the global f64[6]: the room's sharding() and local() disagree");
  });
}

// Columns of a cut tensor have gaps, which the merged rows cannot express: each rank copies them.
TEST(Planner, AViewOfCopiedPartsIsNotWritten) {
  on_ranks(2, [](World&) {
    const Mesh m = Mesh::make({{"a", 2}});
    const Tensor x = distribute(ramp({4, 6}), Layout::of(m, {Shard(0)}));
    const Tensor merged = reshape(slice(x, 1, {1, 3}), {8});
    EXPECT_EQ(full_tensor(merged).values(), reshape(slice(ramp({4, 6}), 1, {1, 3}), {8}).values());
    EXPECT_EQ(message_of<InPlaceError>([&] { scale_({merged}, 2); }),
              "[scale_] would write f64[8], a view whose part had to be copied or sent: what it "
              "views would not change; write that tensor itself");
    EXPECT_EQ(full_tensor(x).values(), ramp({4, 6}).values());
  });
}

}  // namespace
}  // namespace tessera
