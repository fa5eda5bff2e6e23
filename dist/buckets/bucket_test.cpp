// SPDX-License-Identifier: Apache-2.0
// Buckets beside redistribute, one tensor at a time: the same bits from one collective per list,
// over uneven and empty shards, dtypes, replicas and tensors that tp has cut before.
#include "tessera/dist/buckets/bucket.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/ranks.h"

namespace tessera {
namespace {

const std::vector<Shape> kShapes{{5, 4}, {7, 4}, {3}, {2, 3, 2}, {1, 6}, {6, 4}};

struct List {
  std::vector<Tensor> parameters, shards;
};

// The same values on every mesh.
List parameters(Layout layout, DType dtype = DType::f32,
                const std::vector<Shape>& shapes = kShapes) {
  List list;
  for (size_t i = 0; i < shapes.size(); ++i) {
    list.parameters.push_back(distribute(cast(normal(shapes[i], {1, 10 + i}), dtype), layout));
    list.shards.push_back(local(list.parameters.back()));
  }
  return list;
}

// A gradient of this rank, of the shape of a whole tensor.
std::vector<Tensor> gradients(const Bucket& bucket, int rank, DType dtype, uint64_t salt = 0) {
  std::vector<Tensor> all;
  for (int i = 0; i < bucket.size(); ++i) {
    const auto stream = 100 * salt + 10 * static_cast<uint64_t>(i) + static_cast<uint64_t>(rank);
    all.push_back(cast(normal(bucket.whole_shape(i), {2, stream}), dtype));
  }
  return all;
}

void expect_same(const Tensor& got, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  ASSERT_EQ(got.dtype(), expected.dtype()) << what;
  EXPECT_EQ(got.values(), expected.values()) << what;
}

struct Case {
  std::vector<MeshAxis> axes;
  Bucket::Axes bucket;
  std::vector<Placement> placements;
  std::vector<std::vector<std::string>> orders;
  int ranks = 1;
};
const std::vector<Case> kCases{
    {{{"dp", 1}}, {{"dp"}, {}}, {Shard(0)}, {}, 1},
    {{{"dp", 2}}, {{"dp"}, {}}, {Shard(0)}, {}, 2},
    {{{"dp", 3}}, {{"dp"}, {}}, {Shard(0)}, {}, 3},
    {{{"rep", 2}, {"dp", 1}}, {{"dp"}, {"rep"}}, {Replicate(), Shard(0)}, {}, 2},
    {{{"rep", 2}}, {{}, {"rep"}}, {Replicate()}, {}, 2},
    {{{"rep", 2}, {"dp", 2}}, {{"dp"}, {"rep"}}, {Replicate(), Shard(0)}, {}, 4},
    {{{"a", 2}, {"b", 2}}, {{"a", "b"}, {}}, {Shard(0), Shard(0)}, {}, 4},
    {{{"dp", 2}, {"tp", 2}}, {{"dp"}, {}}, {Shard(0), Shard(0)}, {{"tp", "dp"}}, 4},
};

// The layout after `axes` have become `to`.
Layout with(Layout layout, const std::vector<std::string>& axes, Placement to) {
  for (const std::string& axis : axes) layout = layout.with(axis, to);
  return layout;
}

TEST(Bucket, GathersWhatRedistributeGathers) {
  for (const Case& c : kCases) {
    test::on_ranks(c.ranks, [&](World&) {
      const Mesh mesh = Mesh::make(c.axes);
      const Layout layout = Layout::ordered(mesh, c.placements, c.orders);
      for (const DType param : {DType::f32, DType::bf16}) {
        const List list = parameters(layout);
        Bucket bucket(list.parameters, c.bucket, {.param = param, .reduce = {}});
        EXPECT_FALSE(bucket.gathered());
        EXPECT_THROW((void)bucket.whole(), UsageError);
        bucket.gather(list.shards);
        const std::vector<Tensor> whole = bucket.whole();
        ASSERT_EQ(whole.size(), kShapes.size());
        for (size_t i = 0; i < whole.size(); ++i) {
          const Tensor expected =
              redistribute(list.parameters[i], with(layout, c.bucket.shard, Replicate()));
          expect_same(whole[i], cast(local(expected), param), concat(mesh.text(), " #", i));
          EXPECT_EQ(bucket.whole_shape(static_cast<int>(i)), whole[i].shape());
          const bool apart = i == 0 || &whole[i].storage() != &whole[0].storage();
          if (apart) continue;
          EXPECT_EQ(whole[i].offset(), whole[i - 1].offset() + whole[i - 1].numel());
        }
      }
    });
  }
}

TEST(Bucket, ReducesAsRedistributeDoes) {
  for (const Case& c : kCases) {
    test::on_ranks(c.ranks, [&](World& w) {
      const Mesh mesh = Mesh::make(c.axes);
      const Layout layout = Layout::ordered(mesh, c.placements, c.orders);
      struct DTypes {
        DType own, gradient, sum;
      };
      for (const DTypes d : {DTypes{DType::f32, DType::f32, DType::f32},
                             {DType::f64, DType::f64, DType::f64},
                             {DType::f32, DType::bf16, DType::f32},
                             {DType::f32, DType::bf16, DType::bf16}}) {
        const List list = parameters(layout, d.own);
        Bucket bucket(list.parameters, c.bucket, {.param = d.gradient, .reduce = d.sum});
        std::vector<Tensor> given = gradients(bucket, w.rank(), d.gradient);
        given[1] = {};
        const std::vector<Tensor> shards = bucket.reduce(given);
        given[1] = zeros(bucket.whole_shape(1), d.gradient);
        for (size_t i = 0; i < shards.size(); ++i) {
          // Over the shard axes, then over the replicas.
          const Layout partial =
              with(with(layout, c.bucket.shard, Partial()), c.bucket.replicate, Partial());
          Tensor expected =
              make_distributed(cast(given[i], d.sum), list.parameters[i].shape(), partial);
          Layout scattered = partial;
          for (const std::string& axis : c.bucket.shard)
            scattered = scattered.with(axis, layout.placement(axis));
          expected = redistribute(redistribute(expected, scattered), layout);
          expect_same(shards[i], cast(local(expected), d.own), concat(mesh.text(), " #", i));
        }
      }
    });
  }
}

// Released but for a part, they come back from the neighbours alone, with the same bits.
TEST(Bucket, NeighboursKeepTheWholeTensorsInParts) {
  struct Kept {
    std::vector<MeshAxis> axes;
    Bucket::Axes bucket;
    int ways;
  };
  for (const Kept& c : {Kept{{{"dp", 4}}, {{"dp"}, {}}, 2},
                        {{{"dp", 6}}, {{"dp"}, {}}, 3},
                        {{{"dp", 3}}, {{"dp"}, {}}, 3},
                        {{{"dp", 3}}, {{"dp"}, {}}, 1},
                        {{{"dp", 1}}, {{"dp"}, {}}, 1},
                        {{{"rep", 2}, {"a", 2}, {"b", 2}}, {{"a", "b"}, {"rep"}}, 2}}) {
    int ranks = 1;
    for (const MeshAxis& a : c.axes) ranks *= a.size;
    test::on_ranks(ranks, [&](World&) {
      const Mesh mesh = Mesh::make(c.axes);
      std::vector<Placement> placements(c.axes.size(), Shard(0));
      if (!c.bucket.replicate.empty()) placements[0] = Replicate();
      const List list = parameters(Layout::of(mesh, placements));
      for (const DType param : {DType::f32, DType::bf16}) {
        Bucket bucket(list.parameters, c.bucket, {.param = param, .reduce = {}, .ways = c.ways});
        bucket.release_all_but_part();  // of nothing
        bucket.gather(list.shards);
        const std::vector<Tensor> whole = bucket.whole();
        std::vector<std::vector<double>> values;
        for (const Tensor& x : whole) values.push_back(x.values());
        const uint32_t version = whole[5].storage().version();
        const int64_t before = Context::current().allocator(kCpu)->stats().live;
        bucket.release_all_but_part();
        EXPECT_EQ(bucket.gathered(), !bucket.gathers() && param == DType::f32);
        if (bucket.gathers()) {
          const int64_t freed = before - Context::current().allocator(kCpu)->stats().live;
          EXPECT_NEAR(static_cast<double>(freed),
                      static_cast<double>(bucket.gathered_bytes() * (c.ways - 1) / c.ways), 130);
        }
        const CommTrace trace;
        bucket.gather(list.shards);
        for (size_t i = 0; i < whole.size(); ++i) {
          EXPECT_EQ(bucket.whole()[i].address(), whole[i].address());
          EXPECT_EQ(whole[i].values(), values[i]) << mesh << i;
        }
        EXPECT_EQ(whole[5].storage().version(), version);
        ASSERT_EQ(trace.entries().size(), bucket.gathers() ? 1u : 0u);
        if (bucket.gathers()) {
          EXPECT_EQ(trace.entries()[0].axes.back(), static_cast<char>('0' + c.ways));
          EXPECT_LT(trace.bytes() - bucket.gathered_bytes(), c.ways * item_size(param));
        }
        // The part goes with other values, and with a full release.
        bucket.release_all_but_part();
        assign_(list.shards[5], list.shards[5] * 2);
        bucket.gather(list.shards);
        const std::vector<Tensor> others = bucket.whole();
        EXPECT_EQ(others[5].values()[0], 2 * values[5][0]);
        EXPECT_NE(others[5].storage().version(), version);
      }
    });
  }
}

// What an error interrupts leaves nothing that a later call would add to.
TEST(Bucket, GradientsOfAFailedCallAreGone) {
  test::on_ranks(2, [](World& w) {
    const List list = parameters(Layout::of(Mesh::make({{"dp", 2}}), {Shard(0)}));
    Bucket bucket(list.parameters, {{"dp"}, {}});
    const std::vector<Tensor> given = gradients(bucket, w.rank(), DType::f32);
    const std::vector<Tensor> expected = bucket.reduce(given);
    (void)bucket.reduce(given, Reduce::none);
    int writes = 0;
    Context::current().op_hook = [&](const OpRow&, const void*, Tensors, Tensors) {
      if (++writes == 3) fail<UsageError>("test", "stop");
    };
    EXPECT_THROW((void)bucket.reduce(given, Reduce::none), UsageError);
    Context::current().op_hook = nullptr;
    const std::vector<Tensor> shards = bucket.reduce(given);
    for (size_t i = 0; i < shards.size(); ++i) expect_same(shards[i], expected[i], concat('#', i));
  });
}

TEST(Bucket, OtherDimsAreShardedToo) {
  test::on_ranks(2, [](World& w) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    const Layout layout = Layout::of(mesh, {Shard(1)});
    const List list = parameters(layout, DType::f32, {{3, 5}, {2, 4, 3}, {4, 1}});
    Bucket bucket(list.parameters, {{"dp"}, {}});
    bucket.gather(list.shards);
    const std::vector<Tensor> whole = bucket.whole(),
                              given = gradients(bucket, w.rank(), DType::f32),
                              shards = bucket.reduce(given);
    for (size_t i = 0; i < whole.size(); ++i) {
      expect_same(whole[i], full_tensor(list.parameters[i]), concat('#', i));
      const Tensor partial =
          make_distributed(given[i], whole[i].shape(), Layout::of(mesh, {Partial()}));
      expect_same(shards[i], local(redistribute(partial, layout)), concat('#', i));
    }
  });
}

TEST(Bucket, TheSameValuesKeepTheVersionAndOthersDoNot) {
  for (const int n : {1, 2}) {
    test::on_ranks(n, [n](World&) {
      const Layout layout = Layout::of(Mesh::make({{"dp", n}}), {Shard(0)});
      const List list = parameters(layout);
      Bucket bucket(list.parameters, {{"dp"}, {}}, {.param = DType::bf16, .reduce = {}});
      bucket.gather(list.shards);
      const Tensor first = bucket.whole()[0];
      const std::vector<double> values = first.values();
      const uint32_t version = first.storage().version();
      bucket.gather(list.shards);  // is there
      EXPECT_EQ(bucket.whole()[0].address(), first.address());
      bucket.release();
      EXPECT_FALSE(bucket.gathered());
      EXPECT_TRUE(first.storage().released());
      bucket.gather(list.shards);
      EXPECT_EQ(&bucket.whole()[0].storage(), &first.storage());
      EXPECT_EQ(first.values(), values);
      EXPECT_EQ(first.storage().version(), version);
      bucket.release();
      bucket.release();
      assign_(list.shards[2], list.shards[2] * 2);
      bucket.gather(list.shards);
      (void)bucket.whole();
      EXPECT_NE(first.storage().version(), version);
      const uint32_t after = first.storage().version();
      assign_(list.shards[0], list.shards[0] * 2);  // while it is gathered
      bucket.gather(list.shards);
      (void)bucket.whole();
      EXPECT_NE(first.storage().version(), after);
      EXPECT_EQ(first.values()[0], 2 * values[0]);
    });
  }
}

// One rank without a cast: no bytes move.
TEST(Bucket, ASingleRankCopiesNothing) {
  test::on_ranks(1, [](World&) {
    const Layout layout = Layout::of(Mesh::make({{"dp", 1}}), {Shard(0)});
    const List list = parameters(layout);
    Bucket bucket(list.parameters, {{"dp"}, {}});
    bucket.gather(list.shards);
    EXPECT_EQ(bucket.whole()[3].address(), list.shards[3].address());
    bucket.release();
    EXPECT_EQ(bucket.whole()[3].values(), list.shards[3].values());
    const std::vector<Tensor> given = gradients(bucket, 0, DType::f32);
    EXPECT_EQ(bucket.reduce(given)[3].address(), given[3].address());
  });
}

TEST(Bucket, AddsMicroBatchesUp) {
  for (const Case& c : kCases) {
    test::on_ranks(c.ranks, [&](World& w) {
      const Layout layout = Layout::ordered(Mesh::make(c.axes), c.placements, c.orders);
      const List list = parameters(layout, DType::f64);
      for (const Reduce early : {Reduce::none, Reduce::scatter, Reduce::all}) {
        for (const DType sum_dtype : {DType::f64, DType::f32}) {
          Bucket bucket(list.parameters, c.bucket, {.param = {}, .reduce = sum_dtype});
          std::vector<Tensor> held(kShapes.size()), total;
          for (uint64_t micro = 0; micro < 3; ++micro) {
            const std::vector<Tensor> given = gradients(bucket, w.rank(), DType::f64, micro);
            for (size_t i = 0; i < given.size(); ++i) {
              if (micro == 0) total.push_back(given[i]);
              else total[i] = total[i] + given[i];
            }
            const auto shards = bucket.reduce(given, micro == 2 ? Reduce::all : early, held);
            for (size_t i = 0; i < shards.size(); ++i) {
              const bool gives = (micro == 2 || early == Reduce::all) && !held[i].defined();
              EXPECT_EQ(shards[i].defined(), gives);
              if (gives) held[i] = shards[i];
            }
          }
          const std::vector<Tensor> expected = bucket.reduce(total);
          for (size_t i = 0; i < held.size(); ++i) {
            const double far = norm({held[i] - expected[i]}).item(),
                         whole = norm({expected[i]}).item();
            EXPECT_LE(far, (sum_dtype == DType::f64 ? 1e-14 : 1e-6) * whole + 1e-30);
          }
        }
      }
    });
  }
}

TEST(Bucket, ForgetsWhatWasAddedUpForAParameter) {
  for (const Case& c : kCases) {
    test::on_ranks(c.ranks, [&](World& w) {
      const Layout layout = Layout::ordered(Mesh::make(c.axes), c.placements, c.orders);
      const List list = parameters(layout);
      Bucket bucket(list.parameters, c.bucket);
      const auto given = [&](uint64_t micro) {
        return gradients(bucket, w.rank(), DType::f32, micro);
      };
      const std::vector<Tensor> last = bucket.reduce(given(2));
      for (const Reduce early : {Reduce::none, Reduce::scatter}) {
        const auto added = [&](const std::vector<int>& forgotten) {
          (void)bucket.reduce(given(0), early);
          (void)bucket.reduce(given(1), early);
          for (const int i : forgotten) bucket.forget(i);
          return bucket.reduce(given(2));
        };
        const std::vector<Tensor> all = added({}), some = added({1, 4}),
                                  none = added({5, 4, 3, 2, 1, 0, 0});
        for (size_t i = 0; i < last.size(); ++i) {
          expect_same(some[i], (i == 1 || i == 4 ? last : all)[i], concat('#', i));
          expect_same(none[i], last[i], concat('#', i));
        }
      }
    });
  }
}

// bf16 cannot count beyond 256.
TEST(Bucket, AddsMicroBatchesInTheDtypeOfTheParameters) {
  constexpr int kBatches = 400;
  for (const Case& c : kCases) {
    test::on_ranks(c.ranks, [&](World&) {
      const Layout layout = Layout::ordered(Mesh::make(c.axes), c.placements, c.orders);
      const List list = parameters(layout);
      double expected = kBatches;
      for (const auto* axes : {&c.bucket.shard, &c.bucket.replicate})
        for (const std::string& axis : *axes) expected *= layout.mesh().size(axis);
      for (const Reduce early : {Reduce::none, Reduce::scatter, Reduce::all}) {
        for (const DType given : {DType::f32, DType::bf16}) {
          Bucket bucket(list.parameters, c.bucket, {.param = given, .reduce = DType::bf16});
          std::vector<Tensor> held(kShapes.size()), ones;
          for (int i = 0; i < bucket.size(); ++i)
            ones.push_back(full(bucket.whole_shape(i), 1, given));
          for (int micro = 1; micro <= kBatches; ++micro) {
            auto shards = bucket.reduce(ones, micro == kBatches ? Reduce::all : early, held);
            for (size_t i = 0; i < shards.size(); ++i)
              if (shards[i].defined()) held[i] = std::move(shards[i]);
          }
          for (const Tensor& g : held) {
            EXPECT_EQ(g.dtype(), DType::f32);
            for (const double v : g.values())
              EXPECT_NEAR(v, expected, expected / 100) << c.ranks << " ranks";
          }
        }
      }
    });
  }
}

// Values that were not gathered are never taken for those that were, wherever they lie.
TEST(Bucket, GathersNewStoragesAtOldAddresses) {
  test::on_ranks(2, [](World& w) {
    const Layout layout = Layout::of(Mesh::make({{"dp", 2}}), {Shard(0)});
    Bucket bucket(std::vector{distribute(zeros({4}), layout)}, {{"dp"}, {}});
    for (int i = 0; i < 20; ++i) {
      bucket.gather(std::vector{full({2}, 10 * i + w.rank())});
      const double a = 10 * i, b = a + 1;
      EXPECT_EQ(bucket.whole()[0].values(), (std::vector<double>{a, a, b, b}));
    }
  });
}

TEST(Bucket, AGatherThatFailsToStartLeavesNothing) {
  test::on_ranks(2, [](World&) {
    const Layout layout = Layout::of(Mesh::make({{"dp", 2}}), {Shard(0)});
    const List list = parameters(layout);
    Bucket bucket(list.parameters, {{"dp"}, {}});
    const std::vector<double> values = list.shards[1].values();
    const auto live = [] { return Context::current().allocator(kCpu)->stats().live; };
    list.shards[1].storage().release_bytes();
    const int64_t before = live();
    EXPECT_THROW(bucket.gather(list.shards), StorageError);
    EXPECT_FALSE(bucket.gathered());
    EXPECT_EQ(live(), before);
    EXPECT_THROW((void)bucket.whole(), UsageError);
    {
      const Storage::Refill refill(list.shards[1].storage());
      copy_bytes(list.shards[1], from_values(values, list.shards[1].shape(), DType::f32));
    }
    bucket.gather(list.shards);
    EXPECT_EQ(bucket.whole().size(), list.shards.size());
  });
}

// A gradient is a storage of its own, which a leaf keeps, and a later call adds to in place.
TEST(Bucket, GivesGradientsThatLeavesKeep) {
  for (const int n : {1, 2, 3}) {
    test::on_ranks(n, [n](World& w) {
      const Mesh mesh = Mesh::make({{"dp", n}});
      const Layout layout = Layout::of(mesh, {Shard(0)});
      const List list = parameters(layout);
      Bucket bucket(list.parameters, {{"dp"}, {}});
      std::vector<Tensor> leaves;
      for (const Tensor& p : list.parameters) leaves.push_back(p.detach().set_requires_grad());
      const void* given = nullptr;
      const Function unshard{
          "unshard",
          [&](FunctionContext&, Tensors in) {
            std::vector<Tensor> shards;
            for (const Tensor& x : in) shards.push_back(local(x));
            bucket.gather(shards);
            TensorList out;
            for (size_t i = 0; i < in.size(); ++i) {
              out.push_back(make_distributed(bucket.whole()[i], in[i].shape(),
                                             Layout::of(mesh, {Replicate()})));
            }
            return out;
          },
          [&](FunctionContext&, const Grads& dy) {
            std::vector<Tensor> parts, into;
            for (size_t i = 0; i < dy.size(); ++i) {
              parts.push_back(dy[i].defined() ? local(dy[i]) : Tensor());
              into.push_back(leaves[i].grad().defined() ? local(leaves[i].grad()) : Tensor());
            }
            std::vector<Tensor> shards = bucket.reduce(parts, Reduce::all, into);
            given = shards[0].defined() ? shards[0].address() : given;
            Grads out;
            for (size_t i = 0; i < shards.size(); ++i) {
              out.push_back(shards[i].defined() ? make_distributed(std::exchange(shards[i], {}),
                                                                   leaves[i].shape(), layout)
                                                : Tensor());
            }
            return out;
          }};
      for (int micro = 1; micro <= 3; ++micro) {
        const TensorList whole = tessera::apply(unshard, leaves);
        const Tensor mine = local(whole[0]);
        EXPECT_EQ(mine.values(), full_tensor(leaves[0]).values());
        // Each rank's own share of a sum over the ranks.
        const Tensor x =
            make_distributed(full({2, 5}, w.rank() + 1), {2 * n, 5}, Layout::of(mesh, {Shard(0)}));
        backward(sum(matmul(x, whole[0])));
        bucket.release();
        EXPECT_EQ(local(leaves[0].grad()).address(), given) << "a copy was made";
        const double expected = micro * 2.0 * n * (n + 1) / 2;
        for (const double v : local(leaves[0].grad()).values()) EXPECT_EQ(v, expected);
        for (const double v : local(leaves[5].grad()).values()) EXPECT_EQ(v, 0);
      }
    });
  }
}

TEST(Bucket, ItsCollectivesAreOnePerListAndRecorded) {
  test::on_ranks(4, [](World& w) {
    const Mesh mesh = Mesh::make({{"rep", 2}, {"dp", 2}});
    const Layout layout = Layout::of(mesh, {Replicate(), Shard(0)});
    const List list = parameters(layout);
    Bucket bucket(list.parameters, {{"dp"}, {"rep"}}, {.param = DType::bf16, .reduce = DType::f32});
    const uint64_t recorded = w.group().recorder().count();
    const CommTrace trace;
    bucket.gather(list.shards);
    bucket.gather(list.shards);
    (void)bucket.whole();
    (void)bucket.reduce(gradients(bucket, w.rank(), DType::bf16));
    bucket.wait();
    // First members' blocks: 3 x 4 + 4 x 4 + 2 + 1 x 6 + 6 + 3 x 4 elements.
    constexpr int64_t kPart = 54;
    ASSERT_EQ(trace.entries().size(), 3u);
    const auto expect = [&](size_t i, const char* op, const char* axes, int64_t bytes) {
      EXPECT_EQ(trace.entries()[i].op, op);
      EXPECT_EQ(trace.entries()[i].axes, axes);
      EXPECT_EQ(trace.entries()[i].bytes, bytes);
    };
    expect(0, "all_gather", "dp", 2 * kPart * 2);
    expect(1, "reduce_scatter", "dp", 2 * kPart * 4);
    expect(2, "all_reduce", "rep", kPart * 4);
    EXPECT_EQ(bucket.gradient_bytes(), 2 * kPart * 4);
    EXPECT_EQ(bucket.reduced_bytes(), kPart * 4);
    EXPECT_EQ(w.group().recorder().count() - recorded, 3u);
  });
}

TEST(Bucket, HoldsNoBytesBetweenSteps) {
  test::on_ranks(2, [](World& w) {
    const Layout layout = Layout::of(Mesh::make({{"dp", 2}}), {Shard(0)});
    const List list = parameters(layout, DType::f32, {{64, 64}, {31, 64}});
    Bucket bucket(list.parameters, {{"dp"}, {}});
    const auto live = [&] { return Context::current().allocator(kCpu)->stats().live; };
    const auto step = [&] {
      bucket.gather(list.shards);
      (void)bucket.whole();
      (void)bucket.reduce(gradients(bucket, w.rank(), DType::f32));
      bucket.wait();
      bucket.release();
    };
    step();
    const int64_t before = live();
    step();
    EXPECT_EQ(live(), before);
    bucket.gather(list.shards);
    (void)bucket.whole();
    EXPECT_LT(std::abs(live() - before - bucket.gathered_bytes()), 1024);  // a block's rounding
  });
}

TEST(Bucket, RefusesWhatDoesNotFit) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 1}});
    const auto on = [&](std::vector<Placement> p) {
      return distribute(zeros({4, 4}), Layout::of(mesh, p));
    };
    const std::vector<Tensor> good{on({Shard(0), Replicate()})},
        replicated{on({Replicate(), Replicate()})}, plain{zeros({4})},
        mixed{good[0], cast(good[0], DType::bf16)}, last{on({Shard(0), Shard(0)})};
    EXPECT_THROW(Bucket({}, {{"dp"}, {}}), UsageError);
    EXPECT_THROW(Bucket(plain, {{"dp"}, {}}), LayoutError);
    EXPECT_THROW(Bucket(replicated, {{"dp"}, {}}), LayoutError);
    EXPECT_THROW(Bucket(good, {{}, {"dp"}}), LayoutError);
    EXPECT_THROW(Bucket(last, {{"dp"}, {}}), LayoutError);  // tp cuts inside dp
    EXPECT_THROW(Bucket(mixed, {{"dp"}, {}}), DTypeError);
    EXPECT_THROW(Bucket(good, {{"ep"}, {}}), LayoutError);
    for (const int ways : {-1, 3, 4})
      EXPECT_THROW(Bucket(good, {{"dp"}, {}}, {{}, {}, ways}), LayoutError);
    Bucket bucket(good, {{"dp"}, {}});
    EXPECT_THROW(bucket.gather(plain), ShapeError);
    EXPECT_THROW(bucket.gather({}), UsageError);
    EXPECT_THROW((void)bucket.reduce(plain), ShapeError);
    EXPECT_THROW((void)bucket.reduce({}), UsageError);
  });
}

}  // namespace
}  // namespace tessera
