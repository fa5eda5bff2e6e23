// SPDX-License-Identifier: Apache-2.0
// What fully_shard and replicate promise of any module: where parameters lie, which are frozen,
// ignored, uneven or shared, when bytes are freed, how micro-batches add up, what ranks do that use
// different parts, and all faults in one error.
#include "tessera/nn/parallel/fully_shard.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parallel/replicate.h"
#include "tessera/nn/parallel/unit_impl.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

namespace tessera::nn {
namespace {

using test::error_of;

constexpr int64_t kIn = 4, kHidden = 5, kRows = 6;

// Two branches and a head, f64; sizes that two ranks do not divide.
class Net final : public Layer<Net> {
 public:
  void visit(Visitor& v) override {
    v.child("a", a);
    v.child("b", b);
    v.child("norm", norm);
    v.child("head", head);
  }
  [[nodiscard]] std::array<Tensor, 2> forward(const Tensor& x) const {
    return {head(norm(a(x))), b(x)};
  }
  [[nodiscard]] Tensor features(const Tensor& x) const { return norm(a(x)); }
  Linear a{kIn, kHidden, Init::normal(1), DType::f64}, b{kIn, 3, Init::normal(1), DType::f64};
  RmsNorm norm{kHidden, 1e-5, DType::f64};
  Linear head{kHidden, 1, Init::normal(1), DType::f64};
};

const DataAxes kAxes{{"dp"}, {}};

Tensor rows(Mesh mesh) {
  return distribute(normal({kRows, kIn}, RngKey{3, 1}, 0, 1, DType::f64),
                    Layout::of(mesh, {Shard(0)}));
}

using Gradients = std::vector<std::pair<std::string, std::vector<double>>>;

Gradients gradients_of(Module& net) {
  Gradients all;
  for (const auto& p : named_parameters(net)) {
    const Tensor g = p.tensor.grad();
    all.emplace_back(p.name, g.defined() ? full_tensor(g).values() : std::vector<double>());
  }
  return all;
}

// Gradients of the sum of squares of the outputs in `uses`, by plain replicated parameters.
Gradients plain(Mesh mesh, const std::function<Tensor(const std::array<Tensor, 2>&)>& loss_of) {
  Net net;
  initialize(net, 3, laid_out(net, mesh));
  backward(loss_of(net(rows(mesh))));
  for (Tensor& p : parameters(net)) {
    if (p.grad().defined()) p.set_grad(redistribute(p.grad(), layout_of(p)));
  }
  return gradients_of(net);
}

Tensor squares(const Tensor& y) { return sum(y * y); }
Tensor both(const std::array<Tensor, 2>& y) { return squares(y[0]) + squares(y[1]); }

void expect_near(const Gradients& got, const Gradients& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].second.size(), want[i].second.size()) << got[i].first;
    for (size_t j = 0; j < got[i].second.size(); ++j)
      EXPECT_NEAR(got[i].second[j], want[i].second[j], 1e-12 * (1 + std::abs(want[i].second[j])))
          << got[i].first;
  }
}

void shard(Net& net, Mesh mesh, const ShardPolicy& policy = {}) {
  fully_shard(net.a, mesh, kAxes, policy);
  fully_shard(net.b, mesh, kAxes, policy);
  const std::vector<Module*> last{&net.norm, &net.head};
  fully_shard(last, mesh, kAxes, policy);
}

TEST(FullyShard, ParametersAreShardsFromTheFirstByteOn) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net, whole;
    shard(net, mesh);
    for (const auto& p : named_parameters(net)) {
      EXPECT_TRUE(p.tensor.device().is_meta());
      EXPECT_EQ(layout_of(p.tensor), Layout::of(mesh, {Shard(0)})) << p.name;
      EXPECT_TRUE(p.tensor.requires_grad());
    }
    EXPECT_EQ(error_of([&] { (void)net.a(rows(mesh)); }),
              "[fully_shard] 1 parameter has no values yet (weight): call nn::initialize(model, "
              "seed, nn::laid_out(model, mesh)) or nn::load before the first forward (in a)");
    initialize(net, 3, laid_out(net, mesh));
    initialize(whole, 3);
    const auto expected = named_parameters(whole);
    const auto got = named_parameters(net);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(full_tensor(got[i].tensor).values(), expected[i].tensor.values());
      EXPECT_EQ(got[i].tensor.impl().local->meta.shape[0],
                chunk({0, expected[i].tensor.size(0), 0}, 2, world.rank()).size);
    }
    Net filled;  // with values already
    initialize(filled, 3);
    shard(filled, mesh);
    EXPECT_EQ(full_tensor(filled.a.weight).values(), whole.a.weight.values());
    expect_near(
        [&] {
          backward(both(filled(rows(mesh))));
          return gradients_of(filled);
        }(),
        plain(mesh, both));
  });
}

TEST(FullyShard, UnevenListedAndUnusedUnitsGiveThePlainGradients) {
  for (const int ranks : {1, 2, 3, 4}) {
    test::on_ranks(ranks, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp", ranks}});
      for (const bool root : {false, true}) {
        Net net;
        shard(net, mesh);
        if (root) fully_shard(net, mesh, kAxes);
        initialize(net, 3, laid_out(net, mesh));
        for (int step = 0; step < 2; ++step) {
          net.zero_grad();
          backward(both(net(rows(mesh))));
          expect_near(gradients_of(net), plain(mesh, both));
        }
      }
    });
  }
}

TEST(FullyShard, RanksThatUseDifferentPartsStayTogether) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    shard(net, mesh, {.reshard_after_forward = Reshard::always});
    fully_shard(net, mesh, kAxes);
    initialize(net, 3, laid_out(net, mesh));
    const CommTrace trace;
    const auto y = net(rows(mesh));
    // A loss that only this rank's part of the graph reaches.
    backward(squares(y[world.rank() == 0 ? 0 : 1]));
    EXPECT_EQ(trace.count("reduce_scatter"), 3);
    // One rank's sum of both losses, each of that rank's rows.
    Net alone;
    initialize(alone, 3);
    const Tensor x = full_tensor(rows(mesh));
    backward(squares(alone(slice(x, 0, {0, kRows / 2}))[0]) +
             squares(alone(slice(x, 0, {kRows / 2, kRows}))[1]));
    Gradients want;
    for (const auto& p : named_parameters(alone))
      want.emplace_back(p.name, p.tensor.grad().values());
    expect_near(gradients_of(net), want);
  });
}

// Numbers must not depend on the number of ranks: an optimizer decays a parameter whose gradient is
// zero, and skips one that has none.
TEST(FullyShard, AUnitThatRanForNothingHasZerosOnEveryMesh) {
  for (const int ranks : {1, 2}) {
    for (const bool shards : {true, false}) {
      test::on_ranks(ranks, [&](World&) {
        const Mesh mesh = Mesh::make({{"dp", ranks}});
        Net net;
        for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head}) {
          if (shards) fully_shard(*m, mesh, kAxes);
          else replicate(*m, mesh, "dp");
        }
        fully_shard(net, mesh, kAxes);
        initialize(net, 3, laid_out(net, mesh));
        for (int step = 1; step <= 2; ++step) {
          backward(squares(net(rows(mesh))[0]));
          EXPECT_GT(squares(full_tensor(net.a.weight.grad())).item(), 0);
          ASSERT_TRUE(net.b.weight.grad().defined());
          EXPECT_EQ(full_tensor(net.b.weight.grad()).values(), std::vector<double>(3 * kIn, 0));
        }
      });
    }
  }
}

// Bytes are those of whole parameters alone: nothing else stays of a forward without a graph.
TEST(FullyShard, AForwardThatFailsOrStopsEarlyLeavesNothingWhole) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    const Tensor x = rows(mesh);
    // Once the gathers that were given up under way have ended.
    const auto live = [&] {
      mesh.group(0, "gather").barrier()->wait();
      return Context::current().allocator(kCpu)->stats().live;
    };
    for (const Reshard reshard : {Reshard::automatic, Reshard::always, Reshard::never}) {
      Net net;
      shard(net, mesh, {.reshard_after_forward = reshard});
      fully_shard(net, mesh, kAxes, {.reshard_after_forward = reshard});
      initialize(net, 3, laid_out(net, mesh));
      const auto forward = [&] {
        const NoGrad guard;
        (void)net(x);
      };
      forward();
      nn::reshard(net);
      const int64_t nothing = live();
      for (Module* fails : std::initializer_list<Module*>{&net.a, &net.norm, &net.head, &net.b}) {
        for (const bool graph : {false, true}) {
          auto hook = fails->register_forward_pre_hook(
              [](const Module&, TensorList&) { throw std::runtime_error("stop"); });
          EXPECT_THROW(graph ? (void)net(x) : forward(), std::runtime_error);
          hook.remove();
          EXPECT_EQ(live(), nothing) << fails->name();
        }
        forward();  // prefetches in the whole order again
        nn::reshard(net);
        EXPECT_EQ(live(), nothing);
      }
      if (reshard == Reshard::never) continue;
      const NoGrad guard;
      (void)net.run(&Net::features, x);
      EXPECT_EQ(live(), nothing);
    }
  });
}

TEST(FullyShard, FrozenAndIgnoredParametersGetNoGradient) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    const auto ignore = [](const std::string& name, const Tensor&) { return name == "weight"; };
    net.b.weight =
        distribute(normal({3, kIn}, RngKey{1, 1}, 0, 1, DType::f64), Layout::replicated(mesh));
    set_requires_grad(net.a, false);
    fully_shard(net.a, mesh, kAxes);
    fully_shard(net.b, mesh, kAxes, {.ignore = ignore});
    fully_shard(net, mesh, kAxes);
    EXPECT_EQ(layout_of(net.b.weight), Layout::replicated(mesh));
    initialize(net, 3, laid_out(net, mesh));
    backward(both(net(rows(mesh))));
    EXPECT_FALSE(net.a.weight.grad().defined());
    EXPECT_FALSE(net.b.weight.grad().defined());
    EXPECT_TRUE(net.head.weight.grad().defined());
    // Thawed, it is part of the next step.
    set_requires_grad(net.a, true);
    backward(both(net(rows(mesh))));
    EXPECT_TRUE(net.a.weight.grad().defined());
  });
}

TEST(FullyShard, BytesOfWholeParametersAreFreedAndComeBack) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    for (const Reshard reshard : {Reshard::automatic, Reshard::always, Reshard::never}) {
      Net net;
      shard(net, mesh, {.reshard_after_forward = reshard});
      fully_shard(net, mesh, kAxes, {.reshard_after_forward = reshard});
      initialize(net, 3, laid_out(net, mesh));
      Tensor a, b;
      Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors) {
        if (row.name != "linear" && row.name != "matmul") return;
        for (const Tensor& t : in) {
          if (t.shape() == Shape{kHidden, kIn}) a = t.detach();
          if (t.shape() == Shape{3, kIn}) b = t.detach();
        }
      };
      const auto y = net(rows(mesh));
      Context::current().op_hook = nullptr;
      ASSERT_TRUE(a.defined() && b.defined());
      EXPECT_EQ(layout_of(a), Layout::replicated(mesh));
      EXPECT_EQ(a.storage().released(), reshard != Reshard::never);
      // b is the last to run.
      EXPECT_EQ(b.storage().released(), reshard == Reshard::always);
      const uint32_t version = a.storage().version();
      backward(both(y));
      EXPECT_TRUE(a.storage().released());
      EXPECT_TRUE(b.storage().released());
      unshard(net.a);
      (void)net(rows(mesh));
      EXPECT_EQ(a.storage().version(), version);
      nn::reshard(net);
      EXPECT_TRUE(a.storage().released());
    }
  });
}

// A pipeline stage runs several micro-batches between its gather and its release.
TEST(FullyShard, HeldParametersAreGatheredOnceForAllMicroBatches) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    for (const Reshard reshard : {Reshard::automatic, Reshard::always, Reshard::never}) {
      Net nets[2];
      Gradients gradients[2];
      for (const bool held : {false, true}) {
        Net& net = nets[held];
        shard(net, mesh, {.reshard_after_forward = reshard});
        fully_shard(net, mesh, kAxes, {.reshard_after_forward = reshard});
        initialize(net, 3, laid_out(net, mesh));
        if (held) net.a.set_checkpoint(CheckpointOptions());
        const CommTrace trace;
        if (held) hold(net);
        for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
          backward(both(net(rows(mesh))));
          EXPECT_EQ(whole_parameter_bytes(net) > 0, held);
        }
        if (held) {
          EXPECT_EQ(trace.count("all_gather"), 3);  // one for each unit that has parameters
        }
        nn::reshard(net);
        EXPECT_EQ(whole_parameter_bytes(net), 0);
        gradients[held] = gradients_of(net);
      }
      EXPECT_EQ(gradients[0], gradients[1]);
    }
    Net plain;
    EXPECT_THROW(hold(plain), UsageError);
  });
}

TEST(FullyShard, GroupsOfRanksKeepACopyBetweenForwardAndBackward) {
  for (const int replicas : {1, 2}) {
    test::on_ranks(4 * replicas, [&](World&) {
      const Mesh mesh = Mesh::make({{"replicas", replicas}, {"dp", 4}});
      const DataAxes axes{{"dp"}, {"replicas"}};
      const Layout by_row = Layout::of(mesh, {Shard(0), Shard(0)});
      const Tensor x = distribute(normal({8, kIn}, RngKey{3, 1}, 0, 1, DType::f64), by_row);
      const auto run = [&](Reshard reshard) {
        Net net;
        for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head})
          fully_shard(*m, mesh, axes, {.reshard_after_forward = reshard});
        fully_shard(net, mesh, axes, {.reshard_after_forward = reshard});
        initialize(net, 3, laid_out(net, mesh));
        std::vector<std::string> gathers;
        for (int step = 0; step < 2; ++step) {
          net.zero_grad();
          const auto y = net(x);
          const CommTrace trace;
          backward(both(y));
          gathers.clear();
          for (const CommEntry& e : trace.entries())
            if (e.op == "all_gather") gathers.push_back(e.axes);
        }
        {  // without backward nobody keeps a part
          const NoGrad guard;
          (void)net(x);
          const CommTrace trace;
          (void)net(x);
          for (const CommEntry& e : trace.entries()) EXPECT_EQ(e.axes, "dp");
        }
        return std::pair(gradients_of(net), gathers);
      };
      const auto always = run(Reshard::always), never = run(Reshard::never),
                 halves = run(Reshard::among(2));
      EXPECT_EQ(halves.first, always.first);
      EXPECT_EQ(halves.second.size(), always.second.size());
      EXPECT_EQ(std::ranges::count(halves.second, "dp:2"), 4);
      EXPECT_EQ(std::ranges::count(always.second, "dp:2"), 0);
      EXPECT_EQ(run(Reshard::among(4)), always);
      EXPECT_EQ(run(Reshard::among(1)), never);
    });
  }
}

TEST(FullyShard, ATextNamesThePolicy) {
  EXPECT_EQ(parse_reshard("default"), Reshard::automatic);
  EXPECT_EQ(parse_reshard("always"), Reshard::always);
  EXPECT_EQ(parse_reshard("never"), Reshard::never);
  EXPECT_EQ(parse_reshard("1"), Reshard::never);
  EXPECT_EQ(parse_reshard("12"), Reshard::among(12));
  for (const int ways : {0, -1}) EXPECT_THROW((void)Reshard::among(ways), ValueError);
  for (const char* text : {"", "0", "-1", "2.0", "2 ", "zero1", "99999999999"}) {
    EXPECT_EQ(error_of([&] { (void)parse_reshard(text, "field"); }),
              concat("[field] '", text,
                     "' is not one of default | always | never, nor a number of ranks that keep "
                     "the gathered parameters between forward and backward; ZeRO-1, which shards "
                     "optimizer states alone, is not offered: never (ZeRO-2) sends no more and "
                     "shards gradients too"));
  }
}

TEST(FullyShard, MicroBatchesAddUpInEveryWay) {
  for (const auto accumulation :
       {Accumulation::shards, Accumulation::whole, Accumulation::replicas}) {
    test::on_ranks(4, [&](World&) {
      const Mesh mesh = Mesh::make({{"replicas", 2}, {"dp", 2}});
      const DataAxes axes{{"dp"}, {"replicas"}};
      const Layout by_row = Layout::of(mesh, {Shard(0), Shard(0)});
      const auto run = [&](bool sharded, int batches) {
        Net net;
        if (sharded) {
          for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head})
            fully_shard(*m, mesh, axes, {.accumulation = accumulation});
          fully_shard(net, mesh, axes);
        }
        initialize(net, 3, laid_out(net, mesh));
        int scattered = 0, reduced = 0;
        for (int b = 0; b < batches; ++b) {
          const Tensor x = distribute(
              normal({8, kIn}, RngKey{3, static_cast<uint64_t>(b)}, 0, 1, DType::f64), by_row);
          const MicroBatch micro(b + 1 == batches);
          const auto y = net(x);
          const CommTrace trace;
          backward(both(y));
          scattered += trace.count("reduce_scatter");
          reduced += trace.count("all_reduce");
        }
        if (sharded) {
          EXPECT_EQ(scattered, accumulation == Accumulation::whole ? 4 : 4 * batches);
          EXPECT_EQ(reduced, accumulation == Accumulation::shards ? 4 * batches : 4);
        } else {
          for (Tensor& p : parameters(net)) p.set_grad(redistribute(p.grad(), layout_of(p)));
        }
        return gradients_of(net);
      };
      expect_near(run(true, 3), run(false, 3));
    });
  }
}

// Gradients that a bucket keeps are not in grad(), but zero_grad() clears them too.
TEST(FullyShard, AStepThatFailedLeavesNothingBehind) {
  for (const auto accumulation :
       {Accumulation::shards, Accumulation::whole, Accumulation::replicas}) {
    for (const bool shards : {true, false}) {
      if (!shards && accumulation == Accumulation::replicas) continue;
      test::on_ranks(4, [&](World&) {
        const Mesh mesh = Mesh::make({{"replicas", shards ? 2 : 4}, {"dp", shards ? 2 : 1}});
        const Layout by_row = Layout::of(mesh, {Shard(0), Shard(0)});
        Net net;
        for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head}) {
          if (shards) fully_shard(*m, mesh, {{"dp"}, {"replicas"}}, {.accumulation = accumulation});
          else replicate(*m, mesh, "replicas", {{}, accumulation});
        }
        initialize(net, 3, laid_out(net, mesh));
        int left = 100;  // forwards of the head until one fails
        net.head.register_forward_pre_hook([&](const Module&, TensorList&) {
          if (left-- == 0) fail<UsageError>("test", "stop");
        });
        const auto step = [&](uint64_t seed) {
          for (uint64_t b = 0; b < 3; ++b) {
            const MicroBatch micro(b == 2);
            const Tensor x = normal({8, kIn}, RngKey{seed, b}, 0, 1, DType::f64);
            backward(both(net(distribute(x, by_row))));
          }
        };
        optim::SGD optimizer(named_parameters(net), {.lr = 1});
        net.zero_grad();
        step(3);
        const Gradients want = gradients_of(net);
        for (const int at : {1, 2}) {
          for (const bool by_module : {true, false}) {
            left = at;
            EXPECT_THROW(step(4), UsageError);
            if (by_module) net.zero_grad();
            else optimizer.zero_grad();
            step(3);
            EXPECT_EQ(gradients_of(net), want);
            optimizer.zero_grad();
          }
        }
      });
    }
  }
}

// A step sends parameters and gradients alone, also with fewer rows than columns, and axes of size
// 1 around the one that shards change nothing.
TEST(FullyShard, AStepSendsNoActivations) {
  for (const int ranks : {2, 3, 4}) {
    test::on_ranks(ranks, [&](World&) {
      const auto sent = [](Mesh mesh, const DataAxes& axes, const std::vector<Placement>& by_row) {
        Net net;
        for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head})
          fully_shard(*m, mesh, axes, {.reshard_after_forward = Reshard::never});
        fully_shard(net, mesh, axes);
        initialize(net, 3, laid_out(net, mesh));
        const Tensor x = normal({kRows, kIn}, RngKey{3, 1}, 0, 1, DType::f64);
        const CommTrace trace;
        backward(both(net(distribute(x, Layout::of(mesh, by_row)))));
        std::vector<std::string> lines;
        for (const CommEntry& e : trace.entries())
          lines.push_back(concat(e.op, ' ', e.axes, ' ', e.bytes, ' ', e.tag));
        return lines;
      };
      std::vector<std::string> expected;
      const auto add = [&](std::string_view op, int64_t count, int64_t columns,
                           std::string_view tag) {
        const int64_t padded = (count + ranks - 1) / ranks * ranks;
        expected.push_back(concat(op, " dp ", padded * columns * 8, ' ', tag));
      };
      // In the order of use: a, norm, head, b; their gradients backwards.
      const std::vector<std::pair<int64_t, int64_t>> units{
          {kHidden, kIn}, {kHidden, 1}, {1, kHidden}, {3, kIn}};
      for (const auto& [rows, columns] : units) add("all_gather", rows, columns, "forward");
      for (size_t i = units.size(); i-- > 0;)
        add("reduce_scatter", units[i].first, units[i].second, "grad");
      EXPECT_EQ(sent(Mesh::make({{"dp", ranks}}), kAxes, {Shard(0)}), expected);
      EXPECT_EQ(sent(Mesh::make({{"replicas", 1}, {"dp", ranks}, {"cp", 1}, {"tp", 1}}),
                     {{"dp"}, {"replicas"}}, {Shard(0), Shard(0), Shard(1), Replicate()}),
                expected);
    });
  }
}

TEST(FullyShard, GradDifferentiatesParametersAndLeavesTheirGradientsAlone) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    shard(net, mesh);
    fully_shard(net, mesh, kAxes);
    initialize(net, 3, laid_out(net, mesh));
    backward(both(net(rows(mesh))));
    const auto before = full_tensor(net.a.weight.grad()).values();
    const auto g = grad({both(net(rows(mesh)))}, {net.a.weight});
    EXPECT_EQ(layout_of(g[0]), layout_of(net.a.weight));
    EXPECT_EQ(full_tensor(g[0]).values(), before);
    EXPECT_EQ(full_tensor(net.a.weight.grad()).values(), before);
  });
}

TEST(FullyShard, RefusesGradientsOfGradientsOfParameters) {
  for (const int ranks : {1, 2}) {
    test::on_ranks(ranks, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp", ranks}});
      Net net;
      shard(net, mesh);
      fully_shard(net, mesh, kAxes);
      initialize(net, 3, laid_out(net, mesh));
      EXPECT_EQ(error_of([&] {
                  (void)grad({both(net(rows(mesh)))}, {net.a.weight}, {.create_graph = true});
                }),
                "[unshard] gradients of gradients of parameters need plain parameters: leave "
                "create_graph away, or do not wrap the model");
    });
  }
}

// A gradient that somebody keeps has the same values after the next backward, as without a wrapper.
TEST(FullyShard, AGradientThatIsHeldElsewhereStays) {
  for (const int ranks : {1, 2, 3}) {
    test::on_ranks(ranks, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp", ranks}});
      Net net;
      shard(net, mesh);
      fully_shard(net, mesh, kAxes);
      initialize(net, 3, laid_out(net, mesh));
      const auto step = [&] { backward(both(net(rows(mesh)))); };
      const auto times = [](double n, std::vector<double> values) {
        for (double& v : values) v *= n;
        return values;
      };
      step();
      const Tensor held = net.a.weight.grad(), part = local(net.b.weight.grad());
      const std::vector<double> once = full_tensor(held).values(), mine = part.values();
      step();
      EXPECT_EQ(full_tensor(held).values(), once);
      EXPECT_EQ(part.values(), mine);
      EXPECT_EQ(full_tensor(net.a.weight.grad()).values(), times(2, once));
      EXPECT_EQ(local(net.b.weight.grad()).values(), times(2, mine));
      // One whose rows do not lie one after another.
      const Layout layout = layout_of(net.a.weight);
      const Shape here = local(net.a.weight).shape();
      net.a.weight.set_grad(make_distributed(
          transpose(full({here[1], here[0]}, 0, DType::f64), 0, 1), net.a.weight.shape(), layout));
      step();
      EXPECT_EQ(full_tensor(net.a.weight.grad()).values(), once);
    });
  }
}

TEST(FullyShard, ModulesThatAreGoneAreForgotten) {
  test::on_ranks(1, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 1}});
    const auto& holders = Context::current().state<detail::UnitFlow>().holders;
    for (int i = 0; i < 4; ++i) {
      Net net;
      fully_shard(net, mesh, kAxes);
      EXPECT_EQ(holders.size(), parameters(net).size());
    }
  });
}

TEST(FullyShard, AGraphOutlivesItsModules) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    std::vector<Tensor> kept;
    Tensor loss;
    {
      Net net;
      shard(net, mesh, {.reshard_after_forward = Reshard::always});
      fully_shard(net, mesh, kAxes);
      initialize(net, 3, laid_out(net, mesh));
      kept = parameters(net);
      loss = both(net(rows(mesh)));
    }
    backward(loss);
    const Gradients want = plain(mesh, both);
    Gradients got;
    for (size_t i = 0; i < kept.size(); ++i)
      got.emplace_back(want[i].first, full_tensor(kept[i].grad()).values());
    expect_near(got, want);
  });
}

TEST(FullyShard, PrefetchFollowsTheListsThatWereSet) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    shard(net, mesh, {.reshard_after_forward = Reshard::always});
    fully_shard(net, mesh, kAxes);
    initialize(net, 3, laid_out(net, mesh));
    const std::vector<Module*> b{&net.b}, none;
    set_forward_prefetch(net.a, b);
    set_backward_prefetch(net.b, none);
    (void)net(rows(mesh));
    const CommTrace trace;
    backward(both(net(rows(mesh))));
    const auto paths = [&trace](std::string_view op, std::string_view tag) {
      std::vector<std::string> of;
      for (const CommEntry& e : trace.entries()) {
        if (e.op == op && e.tag == tag) of.push_back(e.path);
      }
      return of;
    };
    // The root starts a, a starts b, and norm with head is gathered where it begins; each gather
    // and each reduction has the name of its unit.
    using Paths = std::vector<std::string>;
    EXPECT_EQ(paths("all_gather", "forward"), (Paths{"a", "b", "norm"}));
    EXPECT_EQ(paths("all_gather", "grad"), (Paths{"b", "norm", "a"}));
    EXPECT_EQ(paths("reduce_scatter", "grad"), (Paths{"b", "norm", "a"}));
  });
}

TEST(FullyShard, AGatherBeforeAnyForwardHasTheNameOfItsUnit) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    shard(net, mesh);
    initialize(net, 3, laid_out(net, mesh));
    const CommTrace trace;
    unshard(net.b);
    ASSERT_EQ(trace.count("all_gather"), 1);
    EXPECT_EQ(trace.entries()[0].path, "b");
  });
}

TEST(FullyShard, InitialisesByTheLayoutsThatItGave) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net, told;
    for (Net* each : {&net, &told}) {
      shard(*each, mesh);
      fully_shard(*each, mesh, kAxes);
    }
    initialize(told, 3, laid_out(told, mesh));
    for (int again = 0; again < 2; ++again) {
      initialize(net, 3);
      const auto got = named_parameters(net), want = named_parameters(told);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(layout_of(got[i].tensor), layout_of(want[i].tensor)) << want[i].name;
        EXPECT_EQ(local(got[i].tensor).values(), local(want[i].tensor).values()) << want[i].name;
      }
      backward(both(net(rows(mesh))));
    }
  });
}

TEST(FullyShard, ComputesAndReducesInTheDtypesOfItsPolicy) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    const ShardPolicy policy{
        .precision = {.param = DType::f32, .reduce = DType::f32, .output = DType::f64}};
    shard(net, mesh, policy);
    fully_shard(net, mesh, kAxes, {.precision = {.param = DType::f32}});
    initialize(net, 3, laid_out(net, mesh));
    bool linear = false;
    Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors) {
      if (row.name != "linear" && row.name != "matmul") return;
      linear = true;
      for (const Tensor& t : in) EXPECT_EQ(t.dtype(), DType::f32);
    };
    const auto y = net(rows(mesh));
    Context::current().op_hook = nullptr;
    EXPECT_TRUE(linear);
    EXPECT_EQ(y[1].dtype(), DType::f64);
    backward(both(y));
    for (const auto& p : named_parameters(net)) {
      EXPECT_EQ(p.tensor.dtype(), DType::f64);
      EXPECT_EQ(p.tensor.grad().dtype(), DType::f64);
    }
  });
}

TEST(Replicate, ParametersLieOnTheirAxisAlone) {
  test::on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 4}, {"dp_shard", 1}, {"tp", 1}});
    Net net;
    for (Module* m : std::initializer_list<Module*>{&net.a, &net.b, &net.norm, &net.head})
      replicate(*m, mesh, "dp");
    replicate(net, mesh, "dp");
    initialize(net, 3, laid_out(net, mesh));
    for (const auto& p : named_parameters(net))
      EXPECT_EQ(layout_of(p.tensor), Layout::replicated(mesh["dp"])) << p.name;
    EXPECT_EQ(compute_mesh(net), mesh);
    const Layout by_row = Layout::of(mesh, {Shard(0), Replicate(), Replicate()});
    const CommTrace trace;
    backward(both(net(distribute(normal({kRows, kIn}, RngKey{3, 1}, 0, 1, DType::f64), by_row))));
    EXPECT_EQ(trace.count("all_reduce", "grad"), 4);
    EXPECT_EQ(trace.count("all_gather"), 0);
    const Mesh line = mesh["dp"];
    expect_near(gradients_of(net), plain(line, both));
  });
}

TEST(FullyShard, NamesAllFaultsBeforeAnyCommunication) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net, other;
    for (Net* n : {&net, &other}) (void)parameter_count(*n);  // gives names
    fully_shard(net.a, mesh, kAxes);
    replicate(net.b, mesh, "dp");
    const std::vector<Module*> wrapped{&net.a, &net.b};
    EXPECT_EQ(error_of([&] {
                fully_shard(wrapped, mesh, {{"dp", "ep"}, {"dp"}});
              }),
              "[fully_shard] mesh(dp=2) has no axis ep; axis dp is given twice; a is wrapped by "
              "fully_shard already: wrap a module once, by one pass; b is wrapped by replicate "
              "already: wrap a module once, by one pass");
    fully_shard(other, mesh, kAxes);
    EXPECT_EQ(error_of([&] { fully_shard(other.a, mesh, kAxes); }),
              "[fully_shard] a lies in a module that fully_shard has wrapped: wrap children before "
              "their parent");
    EXPECT_THROW(replicate(net, mesh, std::vector<std::string>{"dp", "tp"}), UsageError);
    Net odd;
    for (const int ways : {3, 4}) {
      EXPECT_EQ(error_of([&] {
                  fully_shard(odd, mesh, kAxes, {.reshard_after_forward = Reshard::among(ways)});
                }),
                "[fully_shard] reshard_after_forward: " + std::to_string(ways) +
                    " ranks cannot keep the gathered parameters of 2 ranks between forward and "
                    "backward: give a divisor of 2, always or never");
    }
    EXPECT_THROW(unshard(net.head), UsageError);
    Net tied;
    tied.head.weight = tied.norm.weight;
    fully_shard(tied.norm, mesh, kAxes);
    EXPECT_EQ(error_of([&] { fully_shard(tied.head, mesh, kAxes); }),
              "[fully_shard] weight is shared with a module that another call has wrapped: give "
              "both to one call, or leave them to their common parent");
  });
}

}  // namespace
}  // namespace tessera::nn
