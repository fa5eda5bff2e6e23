// SPDX-License-Identifier: Apache-2.0
// What all optimizers share: who takes part in a step, groups, states, faults, ranks.
#include "tessera/nn/optim/optimizer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

namespace tessera::optim {
namespace {

using test::error_of;

using Names = std::vector<std::string>;

class OptimizerTest : public testing::Test {
 protected:
  static Tensor leaf(std::initializer_list<Scalar> values) {
    return tensor(values).set_requires_grad();
  }
  static Names names_of(const OptimizerState& state) {
    Names names;
    for (const auto& entry : state.tensors) names.push_back(entry.name);
    return names;
  }
  static void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas no: " << part;
  }
  Session session_;
};

TEST_F(OptimizerTest, TrainsAModule) {
  nn::Linear net(3, 1, nn::Init::normal(1));
  nn::initialize(net, 1);
  AdamW optimizer(nn::parameters(net), {.lr = 0.1, .weight_decay = 0});
  const Tensor x = normal({64, 3}, {.seed = 2}), y = sum(x, {1}, true);
  Tensor loss;
  for (int i = 0; i < 300; ++i) {
    const Tensor gap = net(x) - y;
    backward(loss = mean(gap * gap));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_LT(loss.item(), 1e-4);
  EXPECT_FALSE(net.weight.grad().defined());
  EXPECT_EQ(optimizer.steps(), 300);
  EXPECT_EQ(optimizer.names(), Names{"0"});
}

TEST_F(OptimizerTest, WithoutAGradientAParameterIsPassedOverAndItsStepsDoNotCount) {
  Tensor late = leaf({1, 2}), fresh = leaf({1, 2}), other = leaf({3});
  AdamW optimizer({late, other}), reference({fresh});
  optimizer.step();  // nobody has one yet
  for (int i = 0; i < 2; ++i) {
    other.set_grad(tensor({1}));
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_EQ(late.values(), (std::vector<double>{1, 2}));
  }
  for (int i = 0; i < 2; ++i) {
    for (Tensor* p : {&late, &fresh}) p->set_grad(tensor({0.5, -3}));
    other.set_grad(tensor({1}));
    optimizer.step();
    reference.step();
    // The correction of its bias begins with its own first step.
    EXPECT_EQ(late.values(), fresh.values());
  }
  EXPECT_EQ(optimizer.parameter_steps(), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(optimizer.steps(), 5);
}

TEST_F(OptimizerTest, GroupsHaveOptionsOfTheirOwn) {
  Tensor a = leaf({1}), b = leaf({1}), c = leaf({1});
  SGD optimizer({{{a, b}, {.lr = 0.5}}, {{c}, {.lr = 0.25, .weight_decay = 1}}});
  const auto step = [&] {
    for (Tensor* p : {&a, &b, &c}) p->set_grad(tensor({1}));
    optimizer.step();
  };
  step();
  EXPECT_EQ(a.item(), 0.5);
  EXPECT_EQ(b.item(), 0.5);
  EXPECT_EQ(c.item(), 0.5);
  EXPECT_EQ(optimizer.group_count(), 2u);
  Optimizer& any = optimizer;
  any.set_lr(0, 1);
  any.set_lr_factor(0.5);
  EXPECT_EQ(any.lr(1), 0);
  const double first = any.lr();
  any.set_lr(2 * first);  // of group 0
  EXPECT_EQ(any.lr(0), 2 * first);
  any.set_lr(first);
  step();
  EXPECT_EQ(a.item(), 0.25);
  EXPECT_EQ(c.item(), 0.5);
  optimizer.set_options({.lr = 1, .maximize = true}, 1);
  step();
  EXPECT_EQ(c.item(), 1);
}

TEST_F(OptimizerTest, NamesAreNumbersAcrossGroupsWhereNoneAreGiven) {
  const AdamW optimizer({{{leaf({1}), leaf({2})}}, {{leaf({3})}}});
  EXPECT_EQ(optimizer.names(), (Names{"0", "1", "2"}));
  EXPECT_EQ(names_of(optimizer.state()), (Names{"0.exp_avg", "0.exp_avg_sq", "1.exp_avg",
                                                "1.exp_avg_sq", "2.exp_avg", "2.exp_avg_sq"}));
}

// Runs `steps` steps in which the second parameter has a gradient every other time.
void run(Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    const auto at = static_cast<double>(optimizer.steps());
    for (size_t p = 0; p < 2; ++p) {
      Tensor parameter = optimizer.parameters()[p];
      if (p == 0 || optimizer.steps() % 2 == 1) parameter.set_grad(tensor({at + 1, 2 - at}));
    }
    optimizer.step();
    optimizer.zero_grad();
  }
}

template <class Kind, class Options> void state_goes_round(const Options& options) {
  const auto make = [&] {
    std::vector<nn::NamedParameter> named{{"a", tensor({1, 2})}, {"b", tensor({3, 4})}};
    for (auto& p : named) p.tensor.set_requires_grad();
    return std::make_unique<Kind>(named, options);
  };
  const auto whole = make(), first = make(), second = make();
  run(*whole, 6);
  run(*first, 3);
  for (size_t i = 0; i < 2; ++i) copy_bytes(second->parameters()[i], first->parameters()[i]);
  const OptimizerState state = first->state();
  EXPECT_EQ(state.tensors.back().name, "b.step");
  EXPECT_EQ(state.tensors.back().tensor.item(), 1);
  second->load_state(state);
  run(*first, 3);  // what was loaded is a copy
  run(*second, 3);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(second->parameters()[i].values(), whole->parameters()[i].values());
  EXPECT_EQ(second->parameter_steps(), whole->parameter_steps());
}

TEST_F(OptimizerTest, StateGoesRound) {
  state_goes_round<AdamW>(AdamWOptions{.lr = 0.1});
  state_goes_round<AdamW>(AdamWOptions{.lr = 0.1, .state_dtype = DType::bf16, .seed = 5});
  state_goes_round<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9});
  state_goes_round<SGD>(SGDOptions{.lr = 0.1});
}

TEST_F(OptimizerTest, AStateSaysAllThatDoesNotFit) {
  AdamW optimizer(std::vector<nn::NamedParameter>{{"a", leaf({1})}, {"b", leaf({1, 2})}});
  OptimizerState state = optimizer.state();
  state.tensors[1].tensor = tensor({1}, DType::bf16);
  state.tensors[2].tensor = tensor({1});
  state.tensors[3].name = "c.exp_avg_sq";
  state.tensors.push_back({"a.step", tensor({1, 2}, DType::i64)});
  const std::string error = error_of<DataError>([&] { optimizer.load_state(state); });
  for (const char* part :
       {"[AdamW]", "a.exp_avg_sq is bf16[1], expected f32[1]", "b.exp_avg is f32[1]",
        "b.exp_avg_sq is missing", "c.exp_avg_sq is of no parameter here", "a.step is i64[2]"})
    expect_has(error, part);
  EXPECT_THROW(optimizer.set_steps(-1), ValueError);
  EXPECT_THROW(optimizer.set_steps(1, std::vector<int64_t>{1, 2, 3}), UsageError);
}

TEST_F(OptimizerTest, FrozenParametersGetTheirStatesWhenTheyAreThawed) {
  Tensor a = leaf({1}), b = tensor({1});
  AdamW optimizer({a, b});
  EXPECT_EQ(names_of(optimizer.state()), (Names{"0.exp_avg", "0.exp_avg_sq"}));
  EXPECT_EQ(optimizer.state_bytes(), 8);
  a.set_grad(tensor({1}));
  optimizer.step();
  EXPECT_EQ(optimizer.state().tensors.size(), 2u);
  b.set_requires_grad().set_grad(tensor({1}));
  optimizer.step();
  EXPECT_EQ(b.values(), [] {
    Tensor c = leaf({1});
    AdamW fresh({c});
    c.set_grad(tensor({1}));
    fresh.step();
    return c.values();
  }());
  const OptimizerState state = optimizer.state();
  EXPECT_EQ(names_of(state),
            (Names{"0.exp_avg", "0.exp_avg_sq", "1.exp_avg", "1.exp_avg_sq", "1.step"}));
  AdamW frozen({leaf({1}), tensor({1})});
  frozen.load_state(state);
  EXPECT_EQ(frozen.parameter_steps(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(frozen.state().tensors[3].tensor.values(), state.tensors[3].tensor.values());
}

TEST_F(OptimizerTest, FaultsOfParameters) {
  const Tensor a = leaf({1}), b = leaf({2});
  const auto error = [](const std::function<void()>& f) { return error_of<UsageError>(f); };
  expect_has(error([&] { SGD({}, {}); }), "[SGD] group 0 of 1 has no parameters");
  expect_has(error([&] { SGD{std::vector<SGD::Group>()}; }), "no groups of parameters");
  expect_has(error([&] {
               SGD({{{a}, {}}, {Parameters{}, {}}});
             }),
             "group 1 of 2 has no parameters");
  expect_has(error([&] { AdamW({a, a}); }), "[AdamW] parameter 1 is given twice, before as 0");
  expect_has(error([&] { SGD({{{a, b}}, {{a}}}); }), "parameter 2 is given twice, before as 0");
  expect_has(error([&] {
               SGD(std::vector<nn::NamedParameter>{{"w", a}, {"w", b}});
             }),
             "two parameters are called w");
  expect_has(error([&] { SGD({a, b * 2.0}); }), "parameter 1, f32[1], is not a leaf");
  expect_has(error([&] { SGD({a, Tensor()}); }), "parameter 1 is undefined");
  nn::Linear net(2, 3);
  AdamW early(nn::named_parameters(net));
  nn::initialize(net, 7);
  backward(sum(net(ones({1, 2}))));
  expect_has(error([&] { early.step(); }),
             "parameter weight is on cpu, its states on meta: make the optimizer after the model");
  AdamW optimizer({a});
  EXPECT_THROW((void)optimizer.lr(1), IndexError);
  EXPECT_THROW(optimizer.set_lr(1, 1), IndexError);
  EXPECT_THROW(optimizer.set_lr(-1, 0), ValueError);
  EXPECT_THROW(optimizer.set_lr_factor(-1), ValueError);
  EXPECT_EQ(optimizer.lr(), 1e-3);
}

// What a run will need is known before any of it is there.
TEST_F(OptimizerTest, OnTheMetaDeviceStatesAndStepsTakeNoMemory) {
  nn::Linear net(2, 3);  // a weight without bytes
  for (Tensor p : nn::parameters(net)) p.set_grad(empty(p.shape(), DType::f32, kMeta));
  AdamW adam(nn::named_parameters(net));
  SGD plain(nn::named_parameters(net), {}), heavy(nn::named_parameters(net), {.momentum = 0.9});
  for (Optimizer* o : std::initializer_list<Optimizer*>{&adam, &plain, &heavy}) o->step();
  EXPECT_EQ(adam.state_bytes(), 2 * 4 * 6);
  EXPECT_EQ(plain.state_bytes(), 0);
  EXPECT_EQ(heavy.state_bytes(), 4 * 6);
  EXPECT_TRUE(adam.state().tensors[0].tensor.device().is_meta());
  nn::parameters(net)[0].set_requires_grad(false);
  EXPECT_EQ(AdamW(nn::named_parameters(net)).state_bytes(), 0);
}

// A user's own optimizer is update() and its learning rate.
class Descent final : public Optimizer {
 public:
  Descent(const Parameters& parameters, double lr)
      : Optimizer("Descent", {{parameters, {"last"}}}), lr_(lr) {}
  [[nodiscard]] double lr(size_t) const override { return lr_; }
  void set_lr(double lr, size_t) override { lr_ = lr; }

 private:
  void update(const Update& u) override {
    for (size_t i = 0; i < u.parameters.size(); ++i) {
      const Tensor& p = u.parameters[i];
      const Tensor moved = p - u.grads[i] * u.lr;
      copy_bytes(u.states[0][i], p);
      copy_bytes(p, moved);
    }
  }
  double lr_;
};

TEST_F(OptimizerTest, AnOptimizerOfOnesOwn) {
  Tensor p = leaf({1, 2});
  Descent optimizer({p}, 0.5);
  p.set_grad(tensor({-1, 2}));
  optimizer.step();
  EXPECT_EQ(p.values(), (std::vector<double>{1.5, 1}));
  EXPECT_EQ(optimizer.state().tensors[0].tensor.values(), (std::vector<double>{1, 2}));
  // It knows no factor, so its gradients come multiplied; those of the parameters stay.
  optimizer.step({}, tensor(0.5, DType::f64));
  EXPECT_EQ(p.values(), (std::vector<double>{1.75, 0.5}));
  EXPECT_EQ(p.grad().values(), (std::vector<double>{-1, 2}));
}

// The batches of a loop, of which some are not finite: their steps are skipped, unread by the host,
// and their number is taken back once it knows.
std::vector<double> after_batches(Optimizer& optimizer, const std::vector<double>& batches) {
  const auto bits = [&] {
    std::vector<double> all;
    for (const Tensor& p : optimizer.parameters())
      std::ranges::copy(p.values(), back_inserter(all));
    for (const auto& [name, state] : optimizer.state().tensors)
      if (!name.ends_with(".step")) std::ranges::copy(state.values(), back_inserter(all));
    return all;
  };
  for (const double batch : batches) {
    const bool skip = !std::isfinite(batch);
    for (Tensor p : optimizer.parameters())
      p.set_grad(cast(tensor({batch, -0.3 * batch, batch + 1}), p.dtype()));
    const int64_t steps = optimizer.steps();
    const std::vector<int64_t> each = optimizer.parameter_steps();
    const std::vector<double> before = bits();
    optimizer.step(tensor(skip ? 1 : 0, DType::bool_));
    EXPECT_EQ(bits() == before, skip) << batch;
    if (skip) optimizer.set_steps(steps, each);
  }
  return bits();
}

TEST_F(OptimizerTest, ABatchThatIsSkippedIsAsIfItHadNotBeen) {
  const auto made = [](auto kind, auto options, DType dtype) -> std::unique_ptr<Optimizer> {
    const auto leaf_of = [&](double at) {
      return cast(tensor({at, 2 - at, 0.5}), dtype).set_requires_grad();
    };
    return std::make_unique<typename decltype(kind)::type>(Parameters{leaf_of(1), leaf_of(3)},
                                                           options);
  };
  const std::type_identity<AdamW> adamw;
  const std::type_identity<SGD> sgd;
  const AdamWOptions narrow{.lr = 0.1, .state_dtype = DType::bf16, .seed = 3};
  const std::vector<std::function<std::unique_ptr<Optimizer>()>> all{
      [&] { return made(adamw, AdamWOptions{.lr = 0.1}, DType::f32); },
      [&] { return made(adamw, AdamWOptions{.lr = 0.1, .capturable = true}, DType::f32); },
      [&] { return made(adamw, narrow, DType::bf16); },
      [&] { return made(sgd, SGDOptions{.lr = 0.1, .weight_decay = 0.2}, DType::f32); },
      [&] { return made(sgd, SGDOptions{.lr = 0.1, .momentum = 0.9}, DType::f32); },
      [&] {
        return made(sgd, SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}, DType::f64);
      }};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const auto spoilt = all[i](), clean = all[i]();
    // Also the first batch, which fills states.
    const auto got = after_batches(*spoilt, {NAN, 1, INFINITY, 0.5, -INFINITY, NAN, -2, 0.25});
    EXPECT_EQ(got, after_batches(*clean, {1, 0.5, -2, 0.25}));
    EXPECT_EQ(spoilt->steps(), 4);
  }
}

TEST(OptimizerRanks, ShardsStepAsWholesAndTakeWholeStates) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", world.size()}});
    const Tensor start = normal({5, 3}, {.seed = 1}), g = normal({5, 3}, {.seed = 2});
    const auto make = [&](Tensor p) {
      p.set_requires_grad();
      return std::make_unique<AdamW>(
          std::vector<nn::NamedParameter>{{"w", p}},
          AdamWOptions{.lr = 0.1, .state_dtype = DType::bf16, .seed = 3});
    };
    const auto whole = make(copy(start)),
               cut = make(distribute(start, Layout::of(mesh, {Shard(0)}))),
               loaded = make(distribute(start, Layout::of(mesh, {Shard(1)})));
    const auto step = [&](Optimizer& o) {
      Tensor p = o.parameters()[0];
      p.set_grad(p.is_distributed() ? distribute(g, layout_of(p)) : g);
      o.step();
    };
    step(*whole);
    step(*cut);
    loaded->load_state(whole->state());
    const Tensor p = loaded->parameters()[0];
    copy_bytes(local(p), local(distribute(whole->parameters()[0].detach(), layout_of(p))));
    for (Optimizer* o : {whole.get(), cut.get(), loaded.get()}) step(*o);
    for (Optimizer* o : {cut.get(), loaded.get()}) {
      EXPECT_EQ(full_tensor(o->parameters()[0].detach()).values(), whole->parameters()[0].values());
      EXPECT_EQ(full_tensor(o->state().tensors[1].tensor).values(),
                whole->state().tensors[1].tensor.values());
    }
    EXPECT_EQ(whole->state_bytes(), 2 * 2 * 15);
    EXPECT_EQ(cut->state_bytes(), 2 * 2 * (world.rank() == 0 ? 9 : 6));
  });
}

}  // namespace
}  // namespace tessera::optim
