// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/optim/averaged_model.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/layers.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::optim {
namespace {

using Values = std::vector<double>;

struct Net final : nn::Layer<Net> {
  explicit Net(DType dtype = DType::f32) : weight(nn::parameter({2}, dtype)) {}
  Tensor weight, mean = empty({1}, DType::f32, kMeta), seen = empty({}, DType::i64, kMeta);
  void visit(nn::Visitor& v) override {
    v.parameter("weight", weight, nn::Init::constant(0));
    v.buffer("mean", mean, nn::Init::constant(0));
    v.buffer("seen", seen, nn::Init::constant(0));
  }
  void set(double w0, double w1, double m = 0, double n = 0) const {
    nn::copy_values(weight, tensor({w0, w1}));
    nn::copy_values(mean, tensor({m}));
    nn::copy_values(seen, tensor(n, DType::i64));
  }
};

class AveragedModelTest : public testing::Test {
 protected:
  AveragedModelTest() { nn::initialize(net_, 1); }
  Session session_;
  Net net_, shadow_;
};

TEST_F(AveragedModelTest, TheFirstUpdateCopies) {
  AveragedModel average(shadow_, {.decay = 0.5});
  EXPECT_EQ(average.n_averaged(), 0);
  net_.set(4, 8, 3, 2);
  average.update_parameters(net_);
  EXPECT_EQ(shadow_.weight.values(), (Values{4, 8}));
  EXPECT_EQ(shadow_.mean.item(), 3);
  EXPECT_EQ(average.n_averaged(), 1);
}

TEST_F(AveragedModelTest, AnExponentialAverageForgetsByItsDecay) {
  AveragedModel average(shadow_, {.decay = 0.75});
  for (double w : {4.0, 8.0, 0.0}) {
    net_.set(w, 1);
    average.update_parameters(net_);
  }
  EXPECT_EQ(shadow_.weight.values(), (Values{3.75, 1}));  // ((4 * 3 + 8) / 4 * 3 + 0) / 4
}

TEST_F(AveragedModelTest, WithoutDecayItIsTheMean) {
  AveragedModel average(shadow_);
  for (double w : {1.0, 2.0, 6.0, 7.0}) {
    net_.set(w, -w);
    average.update_parameters(net_);
  }
  EXPECT_NEAR(shadow_.weight.values()[0], 4, 1e-6);
  EXPECT_NEAR(shadow_.weight.values()[1], -4, 1e-6);
  EXPECT_EQ(average.n_averaged(), 4);
}

TEST_F(AveragedModelTest, BuffersAreCopiedUnlessTheyAreAveraged) {
  Net other;
  AveragedModel copied(shadow_, {.decay = 0.5}),
      averaged(other, {.decay = 0.5, .use_buffers = true});
  for (double m : {4.0, 8.0}) {
    net_.set(0, 0, m, m);
    copied.update_parameters(net_);
    averaged.update_parameters(net_);
  }
  EXPECT_EQ(shadow_.mean.item(), 8);
  EXPECT_EQ(other.mean.item(), 6);
  EXPECT_EQ(other.seen.item(), 8) << "integers are never averaged";
}

TEST_F(AveragedModelTest, AnF32AverageOfABf16ModelKeepsSmallSteps) {
  Net net(DType::bf16);
  nn::initialize(net, 1);
  AveragedModel average(shadow_, {.decay = 0.999});
  net.set(1, 1);
  average.update_parameters(net);
  net.set(2, 1);
  average.update_parameters(net);
  EXPECT_EQ(shadow_.weight.dtype(), DType::f32);
  EXPECT_NEAR(shadow_.weight.values()[0], 1.001, 1e-6);
}

TEST_F(AveragedModelTest, UpdatesAreNotRecorded) {
  AveragedModel average(shadow_);
  average.update_parameters(net_);
  average.update_parameters(net_);
  EXPECT_TRUE(shadow_.weight.is_leaf());
  EXPECT_FALSE(net_.weight.grad().defined());
}

TEST_F(AveragedModelTest, StateGoesRound) {
  AveragedModel average(shadow_);
  for (double w : {1.0, 3.0}) {
    net_.set(w, w, w, w);
    average.update_parameters(net_);
  }
  const auto state = average.state();
  std::vector<std::string> names;
  for (const auto& s : state) names.push_back(s.name);
  EXPECT_EQ(names, (std::vector<std::string>{"module.weight", "module.mean", "module.seen",
                                             "n_averaged"}));
  Net other;
  AveragedModel resumed(other);
  resumed.load_state(state);
  EXPECT_EQ(resumed.n_averaged(), 2);
  EXPECT_EQ(other.weight.values(), (Values{2, 2}));
  net_.set(8, 8);
  average.update_parameters(net_);
  resumed.update_parameters(net_);
  EXPECT_EQ(other.weight.values(), shadow_.weight.values());
}

TEST_F(AveragedModelTest, FaultsAreNamed) {
  for (double decay : {-0.1, 1.1, std::nan("")})
    EXPECT_THROW(AveragedModel(shadow_, {.decay = decay}), ValueError);
  AveragedModel average(shadow_);
  average.update_parameters(net_);
  nn::Linear other(2, 2);
  nn::initialize(other, 1);
  EXPECT_THROW(average.update_parameters(other), DataError);
  EXPECT_EQ(average.n_averaged(), 1);
  auto state = average.state();
  state.pop_back();
  EXPECT_THROW(average.load_state(state), DataError) << "n_averaged is missing";
  state = average.state();
  state[0].name = "weight";
  EXPECT_THROW(average.load_state(state), DataError);
}

TEST(AveragedModelRanks, AveragesLieAsTheModelOrAsTheirModuleDoes) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", world.size()}});
    const auto lying = [&](Placement placement) {
      return [layout = Layout::of(mesh, {placement})](const std::string&, const TensorMeta&) {
        return layout;
      };
    };
    nn::Linear net(3, 5), made(3, 5), whole(3, 5);
    nn::initialize(net, 1, lying(Shard(0)));
    nn::initialize(whole, 1, lying(Replicate()));
    AveragedModel a(made, {.decay = 0.5}), b(whole, {.decay = 0.5});
    for (uint64_t seed : {1, 2}) {
      nn::initialize(net, seed, lying(Shard(0)));
      a.update_parameters(net);
      b.update_parameters(net);
    }
    EXPECT_EQ(layout_of(made.weight).placement("dp"), Shard(0));
    EXPECT_EQ(layout_of(whole.weight).placement("dp"), Replicate());
    EXPECT_EQ(full_tensor(made.weight.detach()).values(),
              full_tensor(whole.weight.detach()).values());
  });
}

}  // namespace
}  // namespace tessera::optim
