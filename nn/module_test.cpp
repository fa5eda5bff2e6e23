// SPDX-License-Identifier: Apache-2.0
// What a module cannot forget: paths and hooks of every call, names in visit(), bytes of its
// parameters, its mode; and the modules that hold others. What hooks do is wrapping_test's.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/dropout/dropout.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

namespace tessera::nn {
namespace {

struct Factors {
  double of_a = 1, of_b = 1;
};
struct Both {
  Tensor sum, product;
};

// Two inputs, an attribute by value, a default, and a child.
struct Mix final : Layer<Mix> {
  Linear inner{3, 3};
  void visit(Visitor& v) override { v.child("inner", inner); }
  [[nodiscard]] Tensor forward(const Tensor& a, const Tensor& b, const Factors& f,
                               const double* bias = nullptr) const {
    const Tensor y = inner(a * f.of_a) + b * f.of_b;
    return bias ? y + *bias : y;
  }
};

struct Outer final : Layer<Outer> {
  ModuleList<Mix> layers{2};
  void visit(Visitor& v) override { v.children("layers", layers); }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Mix& layer : layers) y = layer(y, x, Factors{0.5, 2});
    return y;
  }
};

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return concat(e.kind(), ' ', e.what());
  }
  return "nothing was thrown";
}

size_t times(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

class ModuleTest : public testing::Test {
 protected:
  Session session_;
  Tensor x_ = normal({2, 3}, {1, 1});
};

TEST_F(ModuleTest, ACallHasPathAndHooksByItself) {
  Outer net;
  initialize(net, 1);
  std::vector<std::string> paths;
  std::vector<size_t> inputs;
  Context::current().op_hook = [&](const OpRow&, const void*, Tensors, Tensors) {
    std::string path;
    for (const auto& part : Context::current().module_path) path += part + '/';
    if (paths.empty() || paths.back() != path) paths.push_back(path);
  };
  net.layers[1].register_forward_pre_hook(
      [&](const Module&, TensorList& in) { inputs.push_back(in.size()); });
  (void)net(x_);
  Context::current().op_hook = nullptr;
  EXPECT_EQ(inputs, std::vector<size_t>{2});
  EXPECT_EQ(paths, (std::vector<std::string>{"/layers.0/", "/layers.0/inner/", "/layers.0/",
                                             "/layers.1/", "/layers.1/inner/", "/layers.1/"}));
}

TEST_F(ModuleTest, EveryKindOfWrappingGetsAllTensorsAndKeepsTheRest) {
  Mix mix;
  initialize(mix, 1);
  const double bias = 3;
  Tensor a = x_.detach().set_requires_grad(), b = (x_ * 2.0).detach().set_requires_grad();
  const Tensor plain = mix(a, b, Factors{2, 3}, &bias);
  backward(sum(plain * plain));
  const auto ga = a.grad().values(), gb = b.grad().values();
  a.set_grad({});
  b.set_grad({});
  mix.set_checkpoint(CheckpointOptions{});
  size_t arounds = 0, backwards = 0;
  mix.register_around_hook([&](const Module&, const CheckpointedFunction& forward, Tensors in) {
    ++arounds;
    return forward(in);
  });
  mix.register_backward_hook([&](const Module&, const Grads& in, const Grads&) {
    ++backwards;
    EXPECT_EQ(in.size(), 2u);
  });
  const Tensor y = [&] {  // what is no tensor is copied
    const Factors factors{2, 3};
    return mix(a, b, factors, &bias);
  }();
  EXPECT_EQ(y.values(), plain.values());
  backward(sum(y * y));
  EXPECT_EQ(arounds, 2u);  // in forward and in recompute
  EXPECT_EQ(backwards, 1u);
  EXPECT_EQ(a.grad().values(), ga);
  EXPECT_EQ(b.grad().values(), gb);
}

TEST_F(ModuleTest, PreHooksReplaceAnyInputButKeepTheirNumber) {
  Mix mix;
  initialize(mix, 1);
  const auto expected = mix(x_, x_ * 2.0, Factors{}).values();
  HookHandle doubles =
      mix.register_forward_pre_hook([](const Module&, TensorList& in) { in[1] = in[1] * 2.0; });
  EXPECT_EQ(mix(x_, x_, Factors{}).values(), expected);
  doubles.remove();
  mix.register_forward_pre_hook([](const Module&, TensorList& in) { in.push_back(in[0]); });
  const std::string text = error_of([&] { (void)mix(x_, x_, Factors{}); });
  EXPECT_SAYS(text, "UsageError [module] a hook left 3 inputs where there were 2");
}

// Results and arguments of every form, plain and through hooks.
template <class Result> struct Forms final : Layer<Forms<Result>> {
  void visit(Visitor&) override {}
  [[nodiscard]] Result forward(Tensors list, const std::array<Tensor, 2>& pair,
                               std::string_view text) const {
    EXPECT_EQ(text, "text");
    return {list[0] + pair[0], list[1] * pair[1]};
  }
};

template <class Result> void through_hooks(const Tensor& x) {
  Forms<Result> forms;
  const auto run = [&] {
    const std::vector<Tensor> list{x, x * 2.0};
    const Result made = forms(Tensors(list), std::array{x, x}, "text");
    if constexpr (requires { made.product; }) return std::vector{made.sum, made.product};
    else if constexpr (requires { made.first; }) return std::vector{made.first, made.second};
    else return std::vector{made[0], made[1]};
  };
  const std::vector<Tensor> plain = run();
  forms.set_checkpoint(CheckpointOptions{});
  size_t inputs = 0, outputs = 0;
  forms.register_forward_hook([&](const Module&, Tensors in, TensorList& out) {
    inputs = in.size();
    outputs = out.size();
    out[1] = out[1] * 2.0;
  });
  const std::vector<Tensor> hooked = run();
  EXPECT_EQ(inputs, 4u);
  EXPECT_EQ(outputs, 2u);
  EXPECT_EQ(hooked[0].values(), plain[0].values());
  EXPECT_EQ(hooked[1].values(), (plain[1] * 2.0).values());
  backward(sum(hooked[0] + hooked[1]));  // computes it again, after the lists are gone
}

TEST_F(ModuleTest, InputsAndResultsHaveManyForms) {
  const Tensor x = x_.detach().set_requires_grad();
  through_hooks<TensorList>(x);
  through_hooks<std::vector<Tensor>>(x);
  through_hooks<std::array<Tensor, 2>>(x);
  through_hooks<std::pair<Tensor, Tensor>>(x);
  through_hooks<Both>(x);
}

// A model whose loss is an entry of its own, virtual and without Layer, and which computes for its
// head.
class Port : public Module {
 public:
  Linear head{3, 4};
  void visit(Visitor& v) override { v.child("head", head); }
  [[nodiscard]] Both loss(const Tensor& x, double factor) const {
    return run(&Port::loss_of, x, factor);
  }

 private:
  [[nodiscard]] virtual Both loss_of(const Tensor& x, double factor) const = 0;
};
class Family final : public Port {
  [[nodiscard]] Both loss_of(const Tensor& x, double factor) const override {
    const Tensor y =
        head.run([](const Tensor& in, const Linear* m) { return linear(in, m->weight); }, x, &head);
    return {sum(y) * factor, y};
  }
};

TEST_F(ModuleTest, OtherEntriesRunThroughHooksToo) {
  Family model;
  initialize(model, 1);
  const Both plain = model.loss(x_, 0.5);
  std::vector<std::string> order;
  model.register_forward_hook(
      [&](const Module&, Tensors, TensorList& out) { order.push_back(concat("m", out.size())); });
  model.head.register_forward_pre_hook(
      [&](const Module&, TensorList& in) { order.push_back(concat("head", in.size())); });
  model.set_checkpoint(CheckpointOptions{});
  const Both hooked = model.loss(x_, 0.5);
  EXPECT_EQ(order, (std::vector<std::string>{"head1", "m2"}));
  EXPECT_EQ(hooked.sum.item(), plain.sum.item());
  backward(hooked.sum);
  EXPECT_TRUE(model.head.weight.grad().defined());
  const std::string text = error_of([&] { (void)model.loss(normal({2, 5}, {1, 1}), 1); });
  EXPECT_SAYS(text, "(in head)");
}

TEST_F(ModuleTest, ErrorsNameTheInnermostModuleOnce) {
  Outer net;
  initialize(net, 1);
  net.layers[1].inner.weight = zeros({3, 5});
  for (int wrapped = 0; wrapped < 2; ++wrapped) {
    const std::string text = error_of([&] { (void)net(x_); });
    EXPECT_TRUE(text.starts_with("ShapeError [")) << text;
    EXPECT_TRUE(text.ends_with(" (in layers.1.inner)")) << text;
    EXPECT_EQ(times(text, "(in "), 1u) << text;
    net.layers[1].set_checkpoint(CheckpointOptions{});
  }
  // Not only ops': whatever a forward throws, and from recompute.
  Outer other;
  initialize(other, 1);
  other.layers[0].set_checkpoint(CheckpointOptions{});
  int calls = 0;
  other.layers[0].inner.register_forward_pre_hook([&](const Module&, TensorList&) {
    if (++calls == 2) throw NumericError("stop");
  });
  const Tensor y = other(x_.detach().set_requires_grad());
  EXPECT_EQ(error_of([&] { backward(sum(y)); }), "NumericError stop (in layers.0.inner)");
  EXPECT_EQ(error_of([&] { (void)Linear(2, 2)(1.0 * x_); }).find("(in "), std::string::npos);
}

TEST_F(ModuleTest, AnUninitialisedModelIsNamed) {
  Outer net;
  const std::string text = error_of([&] { (void)net(x_); });
  EXPECT_SAYS(text,
              "; visit() lists layers.0.inner.weight, which has no bytes: call nn::initialize or "
              "nn::load; in a dry run, ");
  initialize(net, 1);
  net.layers[1].inner.weight = parameter({3, 3}, DType::f32);
  const std::string one = error_of([&] { (void)net(x_); });
  EXPECT_SAYS(one, "visit() lists weight, which has no bytes: call");
  EXPECT_TRUE(one.ends_with("(in layers.1.inner)")) << one;
  EXPECT_EQ(times(one, "visit() lists"), 1u) << one;
  // A plan of shapes alone needs no bytes.
  EXPECT_EQ(Outer()(empty({2, 3}, DType::f32, kMeta)).shape(), (Shape{2, 3}));
}

// A scale that visit() lists or not.
struct Scaled final : Layer<Scaled> {
  explicit Scaled(Tensor by, bool lists = false) : scale(std::move(by)), lists_(lists) {}
  void visit(Visitor& v) override {
    v.child("inner", inner);
    if (lists_) v.parameter("scale", scale, Init::normal(1));
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return inner(x) * scale; }
  Linear inner{3, 3};
  Tensor scale;

 private:
  bool lists_;
};

TEST_F(ModuleTest, ADryRunIsToldWhichTensorIsElsewhere) {
  const Scaled net(ones({3}));
  const std::string text = error_of([&] { (void)net(empty({2, 3}, DType::f32, kMeta)); });
  EXPECT_SAYS(text, "f32[2, 3]@meta on meta, f32[3] on cpu; move one with to_device");
  EXPECT_SAYS(text, "; visit() lists inner.weight, which has no bytes: call");
  EXPECT_SAYS(text, "in a dry run, read no values and make every other tensor on the meta device");
}

TEST_F(ModuleTest, AParameterThatIsNotListedIsFoundWhenItIsUsed) {
  Scaled net(parameter({3}, DType::f32)), listed(parameter({3}, DType::f32), true);
  initialize(net, 1);
  initialize(listed, 1);
  const std::string text = error_of([&] { (void)net(x_); });
  EXPECT_SAYS(text, "f32[3]@meta on meta");
  EXPECT_SAYS(text,
              "; visit() lists no tensor that is on meta: this one is an input, a constant, or a "
              "member that visit() leaves out");
  EXPECT_EQ(listed(x_).shape(), x_.shape());
}

// Autograd's apply is what a member finds, too.
struct Doubled final : Layer<Doubled> {
  void visit(Visitor&) override {}
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    return apply({"double", [](FunctionContext&, Tensors in) { return TensorList{in[0] * 2.0}; },
                  [](FunctionContext&, const Grads& dy) { return Grads{dy[0] * 2.0}; }},
                 {x})[0];
  }
};

TEST_F(ModuleTest, AForwardAppliesAFunction) {
  Tensor x = ones({2});
  x.set_requires_grad();
  backward(sum(Doubled()(x)));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{2, 2}));
}

struct Listed final : Layer<Listed> {
  explicit Listed(std::function<void(Visitor&, Listed&)> list) : list_(std::move(list)) {}
  void visit(Visitor& v) override { list_(v, *this); }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return second(first(x)); }
  Linear first{3, 3}, second{3, 3};

 private:
  std::function<void(Visitor&, Listed&)> list_;
};

struct Holder final : Layer<Holder> {
  explicit Holder(std::function<void(Visitor&, Listed&)> list) : held(std::move(list)) {}
  void visit(Visitor& v) override { v.child("held", held); }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return held(x); }
  Listed held;
};

TEST_F(ModuleTest, ANameListedTwiceOrEmptyIsAnError) {
  const auto listing = [](const char* name) {
    Holder net([name](Visitor& v, Listed& m) {
      v.child("first", m.first);
      v.child(name, m.second);
    });
    return error_of([&] { initialize(net, 1); });
  };
  EXPECT_SAYS(listing("first"), "UsageError [visit] held.first is listed twice");
  EXPECT_SAYS(listing(""), "UsageError [visit] a member of held is listed under an empty name");
  EXPECT_EQ(listing("second"), "nothing was thrown");
}

TEST_F(ModuleTest, AChildThatIsNotListedIsFoundWhenItRuns) {
  const auto only_first = [](Visitor& v, Listed& m) { v.child("first", m.first); };
  Holder net(only_first);
  initialize(net, 1);
  const std::string text = error_of([&] { (void)net(x_); });
  EXPECT_SAYS(text, "UsageError [module] a tessera::nn::Linear runs inside a module whose visit()");
  EXPECT_TRUE(text.ends_with("(in held)")) << text;
  Listed root(only_first);
  initialize(root, 1);
  EXPECT_SAYS(error_of([&] { (void)root(x_); }), "runs inside the root module whose visit()");
  // A tree that was never walked, and a module that is a root of its own, are nobody's fault.
  Listed fresh(only_first);
  EXPECT_EQ(fresh(empty({2, 3}, DType::f32, kMeta)).shape(), (Shape{2, 3}));
  Linear probe(3, 3);
  initialize(probe, 1);
  Outer watched;
  initialize(watched, 1);
  watched.layers[0].register_forward_hook(
      [&](const Module&, Tensors, TensorList& out) { (void)probe(out[0]); });
  EXPECT_EQ(error_of([&] { (void)watched(x_); }), "nothing was thrown");
}

TEST_F(ModuleTest, MembersOfModulesPassedOverAreListedAllTheSame) {
  struct Shallow final : Visitor {
    bool on_module(const std::string& path, Module&) override {
      paths.push_back(path);
      return false;
    }
    void on_parameter(const std::string& path, Tensor&, const Init&) override {
      paths.push_back(path);
    }
    std::vector<std::string> paths;
  } shallow;
  Outer net;
  shallow.walk(net);
  EXPECT_EQ(shallow.paths, (std::vector<std::string>{"layers.0", "layers.1"}));
  EXPECT_EQ(net.layers[0].inner.name(), "inner");
}

TEST_F(ModuleTest, DropoutFollowsTheModeNotTheRecording) {
  struct Net final : Layer<Net> {
    Sequential body{Dropout(0.5), Tanh()};
    void visit(Visitor& v) override { v.child("body", body); }
    [[nodiscard]] Tensor forward(const Tensor& x) const { return body(x); }
  } net;
  const Tensor x = ones({64});
  const auto zeros_of = [&] {
    int n = 0;
    for (double v : net(x).values()) n += v == 0;
    return n;
  };
  EXPECT_GT(zeros_of(), 0);
  {
    const NoGrad quiet;
    EXPECT_GT(zeros_of(), 0);
  }
  net.eval();
  EXPECT_FALSE(net.body[0].is_training());
  EXPECT_EQ(zeros_of(), 0);
  net.train();
  EXPECT_GT(zeros_of(), 0);
  net.body[1].eval();
  {
    const EvalMode evaluating(net);
    EXPECT_EQ(zeros_of(), 0);
  }
  EXPECT_TRUE(net.is_training() && net.body[0].is_training());
  EXPECT_FALSE(net.body[1].is_training());
}

TEST_F(ModuleTest, MasksInTrainingAreTheOpsOfPathAndCall) {
  struct Net final : Layer<Net> {
    Dropout dropout{0.5};
    void visit(Visitor& v) override { v.child("dropout", dropout); }
    [[nodiscard]] Tensor forward(const Tensor& x) const { return dropout(x); }
  } net;
  net.train();
  const Tensor x = ones({64});
  CallKeys& keys = Context::current().call_keys;
  keys.set_seed(5);
  const auto got = net(x).values();
  keys.set_seed(5);
  EXPECT_EQ(got, dropout(x, 0.5, keys.next({"", "dropout"})).values());
}

TEST_F(ModuleTest, ASequenceRunsAndNamesItsModules) {
  Sequential net(Linear(3, 4), Tanh(), Sequential(Linear(4, 2, Init::normal(1), DType::f32, true)));
  std::vector<std::string> names;
  for (const auto& p : named_parameters(net)) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "2.0.weight", "2.0.bias"}));
  initialize(net, 1);
  EXPECT_EQ(net.size(), 3u);
  const auto& first = dynamic_cast<const Linear&>(net[0]);
  const auto& last = dynamic_cast<Linear&>(dynamic_cast<Sequential&>(net[2])[0]);
  EXPECT_EQ(net(x_).values(), last(tanh(first(x_))).values());
  backward(sum(net(x_)));
  for (const auto& p : named_parameters(net)) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
  net.push_back(Relu());
  for (double v : net(x_).values()) EXPECT_GE(v, 0);
  EXPECT_TRUE(error_of([&] { (void)net(normal({2, 5}, {1, 1})); }).ends_with("(in 0)"));
}

TEST_F(ModuleTest, AListHoldsItsModulesInPlace) {
  ModuleList<Module> mixed;
  Linear& first = mixed.emplace_back<Linear>(3, 3);
  for (int i = 0; i < 20; ++i) mixed.emplace_back<Tanh>();
  EXPECT_EQ(mixed.size(), 21u);
  EXPECT_EQ(&mixed[0], &first);
  size_t count = 0;
  for (const Module& m : std::as_const(mixed)) count += dynamic_cast<const Tanh*>(&m) != nullptr;
  EXPECT_EQ(count, 20u);
  mixed.remove(0);
  mixed.remove(20);
  EXPECT_EQ(mixed.size(), 21u);
  EXPECT_FALSE(mixed.has(0) || mixed.has(20) || mixed.has(21));
  EXPECT_EQ(std::distance(mixed.begin(), mixed.end()), 19);
  EXPECT_THROW((void)mixed[0], IndexError);
  EXPECT_THROW(mixed.remove(21), IndexError);
  struct Stage final : Layer<Stage> {
    ModuleList<Mix> layers{3};
    void visit(Visitor& v) override { v.children("layers", layers); }
  } stage;
  stage.layers.remove(1);
  const auto parameters = named_parameters(stage);  // the others keep their names
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[1].name, "layers.2.inner.weight");
}

TEST_F(ModuleTest, AWrappedModuleStaysWhereItIs) {
  Linear layer(3, 3);
  initialize(layer, 1);
  const auto values = layer(x_).values();
  Linear moved = std::move(layer);
  EXPECT_EQ(moved(x_).values(), values);
  moved.register_forward_hook([](const Module&, Tensors, TensorList&) {});
  EXPECT_SAYS(error_of([&] { const Linear again = std::move(moved); }),
              "UsageError [module] a module with hooks");
}

}  // namespace
}  // namespace tessera::nn
