// SPDX-License-Identifier: Apache-2.0
// The engine's behaviour: accumulation, hooks, versions, reentrance, user-defined functions,
// anomaly mode.
#include "tessera/autograd/autograd.h"

#include "tessera/autograd/checkpoint.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera {
namespace {

Tensor variable(std::initializer_list<Scalar> v) { return tensor(v).set_requires_grad(); }

TEST(Autograd, AccumulatesOverPathsAndBackwards) {
  const Session session;
  Tensor x = variable({1, 2});
  backward(sum(x * x + x));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{3, 5}));
  backward(sum(x * 2));
  EXPECT_EQ(x.grad().values(), (std::vector<double>{5, 7}));
}

TEST(Autograd, LeavesOfOneGradientDoNotShareIt) {
  const Session session;
  Tensor a = variable({1, 2}), b = variable({3, 4});
  backward(sum(a + b));
  scale_({a.grad()}, 10);
  EXPECT_EQ(b.grad().values(), (std::vector<double>{1, 1}));
}

TEST(Autograd, GradientOfGradient) {
  const Session session;
  Tensor x = variable({2});
  const Tensor y = x * x * x;
  const auto g = grad({y}, {x}, {.create_graph = true});
  const auto gg = grad({g[0]}, {x}, {.create_graph = true});
  EXPECT_EQ(g[0].item(), 12);
  EXPECT_EQ(gg[0].item(), 12);
  EXPECT_EQ(grad({gg[0]}, {x})[0].item(), 6);
}

TEST(Autograd, GradOfIntermediatesLeavesLeavesAlone) {
  const Session session;
  Tensor x = variable({3});
  const Tensor mid = x * 2, out = sum(mid * mid);
  EXPECT_EQ(grad({out}, {mid})[0].item(), 12);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Autograd, UnusedInputsAreAnErrorUnlessAllowed) {
  const Session session;
  Tensor x = variable({3}), y = variable({4});
  const Tensor out = sum(x);
  EXPECT_THROW((void)grad({out}, {y}), AutogradError);
  EXPECT_FALSE(grad({sum(x)}, {y}, {.allow_unused = true})[0].defined());
}

TEST(Autograd, ASecondBackwardNeedsRetainGraph) {
  const Session session;
  Tensor x = variable({3});
  const Tensor y = sum(x * x);
  backward(y, {.retain_graph = true});
  backward(y);
  EXPECT_EQ(x.grad().item(), 12);
  EXPECT_THROW(backward(y), AutogradError);
}

TEST(Autograd, BackwardNeedsOneElementOrAGradient) {
  const Session session;
  Tensor x = variable({3, 4});
  EXPECT_THROW(backward(x * x), AutogradError);
  EXPECT_THROW(backward(tensor(1)), AutogradError);
  EXPECT_THROW(backward(x * x, {.gradient = tensor({1})}), AutogradError);
}

TEST(Autograd, GradNeedsAGradientForEachOutput) {
  const Session session;
  Tensor x = variable({3});
  EXPECT_EQ(test::error_of<AutogradError>([&] {
              (void)grad({sum(x)}, {x}, {.grad_outputs = {tensor(1), tensor(2)}});
            }),
            "[grad] 1 output but 2 grad_outputs");
}

TEST(Autograd, ABareContextHasNoTape) {
  const Context context;
  Tensor x = variable({3});
  EXPECT_EQ(test::error_of<UsageError>([&] { backward(x); }),
            "[autograd] this Context has no tape: make a tessera::Session instead of a bare "
            "Context");
}

TEST(Autograd, WritingWhatBackwardNeedsIsCaught) {
  const Session session;
  Tensor x = variable({3, 4});
  EXPECT_THROW(scale_({x}, 2), InPlaceError);
  Tensor h = x * x;
  const Tensor y = sum(h * h);
  EXPECT_THROW(scale_({h}, 2), InPlaceError);
  {
    const NoGrad guard;
    scale_({h}, 2);
  }
  try {
    backward(y);
    FAIL() << "expected InPlaceError";
  } catch (const InPlaceError& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "[mul] a tensor saved for backward, f32[2], was written in place"),
              std::string::npos)
        << e.what();
  }
}

TEST(Autograd, NoGradRecordsNothing) {
  const Session session;
  Tensor x = variable({3});
  const NoGrad guard;
  EXPECT_FALSE((x * x).requires_grad());
}

TEST(Autograd, PrintedResultsNameTheirOp) {
  const Session session;
  const Tensor x = variable({3, 0.5});
  EXPECT_EQ(concat(x + x), "tensor([6., 1.], grad_fn=<add>)");
  EXPECT_EQ(concat(exp(x * 0.0)), "tensor([1., 1.], grad_fn=<exp>)");
  EXPECT_EQ(concat((x + x).detach()), "tensor([6., 1.])");
}

TEST(Autograd, OnlyFloatingLeavesAreVariables) {
  const Session session;
  EXPECT_THROW(tensor(1, DType::i64).set_requires_grad(), DTypeError);
  Tensor x = variable({1});
  Tensor y = x * 2;
  EXPECT_THROW(y.set_requires_grad(), AutogradError);
}

TEST(Hooks, ReplaceGradientsOfLeavesAndResultsUntilRemoved) {
  const Session session;
  Tensor x = variable({1});
  HookHandle leaf = register_hook(x, [](const Tensor& g) { return g * 10; });
  const Tensor mid = x * 3;
  register_hook(mid, [](const Tensor& g) { return g * 2; });
  backward(sum(mid));
  EXPECT_EQ(x.grad().item(), 60);
  leaf.remove();
  backward(sum(x * 1));
  EXPECT_EQ(x.grad().item(), 61);
}

TEST(Hooks, AReplacementMustHaveTheGradientsShapeAndDtype) {
  const Session session;
  const auto message = []<class Error>(const Tensor& replacement, bool of_leaf) {
    Tensor x = variable({1, 2, 3});
    const Tensor y = x * 3;
    register_hook(of_leaf ? x : y, [&](const Tensor&) { return replacement; });
    try {
      backward(sum(y));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error of this type");
  };
  EXPECT_EQ(message.operator()<ShapeError>(tensor({1, 2}), true),
            "[hook] gave a gradient of another shape for the leaf f32[3]: given f32[2], expected "
            "f32[3]");
  EXPECT_NE(message.operator()<ShapeError>(tensor(1), false).find("for output 0 of affine"),
            std::string::npos);
  EXPECT_NE(message.operator()<DTypeError>(tensor({1, 2, 3}, DType::f64), true).find("cast it"),
            std::string::npos);
  EXPECT_EQ(message.operator()<DeviceError>(empty({3}, DType::f32, kMeta), true),
            "[hook] gave a gradient of another device for the leaf f32[3]: given f32[3]@meta, "
            "expected f32[3]");
}

TEST(Hooks, ATensorOfTheWrongKindTakesNone) {
  const Session session;
  const Tensor constant = tensor({1}), leaf = variable({1, 2}), result = leaf * 2;
  EXPECT_EQ(test::error_of<AutogradError>(
                [&] { register_hook(constant, [](const Tensor& g) { return g; }); }),
            "[register_hook] f32[1] does not require grad: it will have no gradient");
  EXPECT_EQ(test::error_of<AutogradError>(
                [&] { register_post_accumulate_hook(result, [](const Tensor&) {}); }),
            "[register_post_accumulate_hook] f32[2] is not a leaf that requires grad");
  EXPECT_EQ(test::error_of<AutogradError>(
                [&] { register_node_hook(leaf, [](const Grads&, const Grads&) {}); }),
            "[register_node_hook] f32[2] was not made by a recorded op");
}

TEST(Hooks, PostAccumulateNodeAndFinalCallbacksRunInOrder) {
  const Session session;
  std::string order;
  Tensor x = variable({1});
  register_post_accumulate_hook(x, [&](const Tensor& leaf) {
    order += leaf.grad().item() == 2 ? "accumulated " : "wrong ";
    queue_final_callback([&] { order += "final "; });
  });
  const Tensor y = x * 2;
  register_node_hook(y, [&](const Grads& dx, const Grads& dy) {
    order += dx.size() == 1 && dy.size() == 1 ? "node " : "wrong ";
  });
  backward(sum(y));
  EXPECT_EQ(order, "node accumulated final ");
  EXPECT_THROW(queue_final_callback([] {}), UsageError);
}

TEST(Hooks, ALeafIsReadyBeforeTheRestOfBackwardRuns) {
  const Session session;
  const Tensor x = variable({2}), first = variable({3}), last = variable({5});
  const Tensor h = x * first;
  std::string order;
  register_node_hook(h, [&](const Grads&, const Grads&) { order += "h "; });
  for (const Tensor& leaf : {x, first, last})
    register_post_accumulate_hook(
        leaf, [&](const Tensor& t) { order += t.handle() == last.handle() ? "last " : "leaf "; });
  backward(h * last);
  EXPECT_EQ(order, "last h leaf leaf ");
}

TEST(Hooks, AllGradientsArriveOnceEvenWhenSomeTakeNoPart) {
  const Session session;
  Tensor a = variable({1}), b = variable({2}), c = variable({3});
  int calls = 0;
  std::vector<bool> defined;
  register_all_gradients_hook({a, b, c}, [&](const std::vector<Tensor>& g) {
    ++calls;
    defined = {g[0].defined(), g[1].defined(), g[2].defined()};
  });
  backward(sum(a * b));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(defined, (std::vector<bool>{true, true, false}));
  backward(sum(a * b * c));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(defined, (std::vector<bool>{true, true, true}));
}

TEST(Hooks, ABackwardMayRunInsideAnother) {
  const Session session;
  Tensor x = variable({2}), z = variable({5});
  const Tensor shared = x * x;
  register_hook(shared, [&](const Tensor& g) {
    const GradMode record(true);  // a pass records nothing itself
    backward(sum(z * z));
    return g;
  });
  backward(sum(shared * 3));
  EXPECT_EQ(x.grad().item(), 12);
  EXPECT_EQ(z.grad().item(), 10);
}

TEST(SavedTensors, PassThroughPackAndUnpack) {
  const Session session;
  int packs = 0, unpacks = 0;
  Tensor x = variable({3});
  Tensor y;
  {
    const SavedTensorHooks hooks(
        [&](const Tensor& t) { return ++packs, std::any(cast(t.detach(), DType::bf16)); },
        [&](const std::any& a) { return ++unpacks, cast(std::any_cast<Tensor>(a), DType::f32); });
    y = sum(x * x);
  }
  backward(y);
  EXPECT_EQ(packs, 2);
  EXPECT_EQ(unpacks, 2);
  EXPECT_EQ(x.grad().item(), 6);
}

TEST(Functions, UserDefinedForwardAndBackward) {
  const Session session;
  const Function cube{"cube",
                      [](FunctionContext& c, Tensors in) {
                        c.save({in[0]});
                        return TensorList{in[0] * in[0] * in[0]};
                      },
                      [](FunctionContext& c, const Grads& dy) {
                        return Grads{dy[0] * c.saved()[0] * c.saved()[0] * 3};
                      }};
  Tensor x = variable({2});
  const Tensor y = apply(cube, {x})[0];
  backward(sum(y), {.retain_graph = true});
  EXPECT_EQ(x.grad().item(), 12);
  backward(sum(y));
  EXPECT_THROW(backward(sum(y)), AutogradError);
}

TEST(Functions, AGradientOfTheWrongShapeIsNamed) {
  const Session session;
  const Function bad{"bad", [](FunctionContext&, Tensors in) { return TensorList{in[0] * 1}; },
                     [](FunctionContext&, const Grads&) { return Grads{zeros({7})}; }};
  Tensor x = variable({2});
  EXPECT_THROW(backward(apply(bad, {x})[0]), AutogradError);
}

TEST(Functions, WhatAFunctionLacksIsNamed) {
  const Session session;
  const auto forward = [](FunctionContext&, Tensors in) { return TensorList{in[0] * 1}; };
  const auto error_of = [](const Function& function) -> std::string {
    Tensor x = variable({2}), y = variable({2});
    try {
      backward(sum(apply(function, {x, y})[0]));
    } catch (const Error& error) {
      return concat(error.kind(), ' ', error.what());
    }
    return "no error";
  };
  EXPECT_EQ(
      error_of({"f", forward, [](FunctionContext&, const Grads& dy) { return dy; }}),
      "AutogradError [f] gave 1 gradient for 2 inputs; give one per input, undefined if it is "
      "zero");
  EXPECT_EQ(error_of({"f", forward,
                      [](FunctionContext&, const Grads& dy) {
                        return Grads{dy[0], dy[0], dy[0]};
                      }}),
            "AutogradError [f] gave 3 gradients for 2 inputs");
  EXPECT_EQ(error_of({"f", forward, [](FunctionContext&, const Grads&) { return Grads{}; }}),
            "no error");
  EXPECT_EQ(error_of({"f", forward, {}}), "UsageError [f] is a Function without backward");
  EXPECT_EQ(error_of({"f", {}, [](FunctionContext&, const Grads& dy) { return dy; }}),
            "UsageError [f] is a Function without forward");
  EXPECT_EQ(error_of({"f", [](FunctionContext&, Tensors) { return TensorList{Tensor()}; },
                      [](FunctionContext&, const Grads& dy) { return dy; }}),
            "AutogradError [f] output 0 is undefined");
}

// y = x * w, for the order in which functions run.
Tensor noted(const Tensor& x, double w, std::vector<std::string>& order, const std::string& name,
             bool always = false) {
  return apply({name, [w](FunctionContext&, Tensors in) { return TensorList{in[0] * w}; },
                [w, &order, name](FunctionContext&, const Grads& dy) {
                  order.push_back(dy[0].defined() ? name : name + " without");
                  return Grads{dy[0].defined() ? dy[0] * w : Tensor()};
                },
                always},
               {x})[0];
}

TEST(Regions, BeginBeforeTheirFirstOpAndEndAfterTheirLeaves) {
  const Session session;
  Tensor x = variable({1, 2}), w = variable({3, 4});
  std::vector<std::string> order;
  const auto region = [&](const std::string& name) {
    return std::make_unique<BackwardRegion>([&order, name] { order.push_back("+" + name); },
                                            [&order, name] { order.push_back("-" + name); });
  };
  register_post_accumulate_hook(w, [&](const Tensor&) { order.emplace_back("leaf"); });
  Tensor y = noted(x, 2, order, "a"), side;
  {
    const auto outer = region("outer");
    y = noted(y, 2, order, "b");
    {
      const auto inner = region("inner");
      side = noted(w, 3, order, "side");  // no input of the region needs a gradient
    }
    y = noted(y, 2, order, "c");
    const auto unused = region("unused");
    (void)noted(w, 2, order, "d");
  }
  const Tensor loss = sum(y) + sum(side);
  for (int twice = 0; twice < 2; ++twice) {
    backward(loss, {.retain_graph = true});
    EXPECT_EQ(order, (std::vector<std::string>{"+outer", "c", "+inner", "side", "leaf", "-inner",
                                               "b", "-outer", "a"}));
    order.clear();
  }
  // A pass that only needs one part runs no other; a result may leave a region on another way.
  (void)grad({loss}, {w}, {.retain_graph = true});
  EXPECT_EQ(order, (std::vector<std::string>{"+outer", "+inner", "side", "-inner", "-outer"}));
}

TEST(Regions, BeginBeforeTheRecomputeOfTheirCheckpoint) {
  const Session session;
  Tensor x = variable({1, 2});
  std::vector<std::string> order;
  int runs = 0;
  Tensor y;
  {
    const BackwardRegion region([&] { order.push_back("before, runs " + std::to_string(runs)); },
                                [&] { order.push_back("after, runs " + std::to_string(runs)); });
    y = checkpoint(
        [&runs](Tensors in) {
          ++runs;
          return TensorList{in[0] * in[0]};
        },
        {x})[0];
  }
  backward(sum(y));
  EXPECT_EQ(order, (std::vector<std::string>{"before, runs 1", "after, runs 2"}));
}

TEST(Functions, ThatAlwaysRunDoSoAtTheirPlace) {
  const Session session;
  const auto run = [](bool uses_b, bool always) {
    std::vector<std::string> order;
    Tensor w = variable({1, 2});
    const Tensor a = noted(w, 2, order, "a", always), b = noted(w, 3, order, "b", always);
    const Tensor c = noted(w, 4, order, "c", always);
    const Tensor y = reaching({uses_b ? a + b + c : a + c}, {a, b, c})[0];
    backward(sum(y));
    EXPECT_EQ(w.grad().values(), std::vector<double>(2, uses_b ? 9 : 6));
    return order;
  };
  EXPECT_EQ(run(true, true), (std::vector<std::string>{"c", "b", "a"}));
  EXPECT_EQ(run(false, true), (std::vector<std::string>{"c", "b without", "a"}));
  EXPECT_EQ(run(false, false), (std::vector<std::string>{"c", "a"}));
}

TEST(Anomaly, NamesTheOpAndModuleThatMadeNan) {
  Session session({.anomaly = true});
  Tensor x = variable({-1});
  const ModuleScope layer("layers.0");
  try {
    (void)log(x);
    FAIL() << "expected NumericError";
  } catch (const NumericError& e) {
    EXPECT_STREQ(e.what(),
                 "[log] made NaN in its output f32[1] from inputs without NaN (in layers.0)");
  }
}

TEST(Anomaly, NamesTheFunctionWhoseGradientIsNan) {
  const Session session({.anomaly = true});
  const Function broken{"broken",
                        [](FunctionContext&, Tensors in) { return TensorList{in[0] * 1}; },
                        [](FunctionContext&, const Grads&) {
                          return Grads{tensor({1, std::numeric_limits<double>::quiet_NaN()})};
                        }};
  Tensor x = variable({2, 3});
  const ModuleScope layer("layers.0");
  const Tensor y = sum(apply(broken, {x})[0]);
  EXPECT_EQ(test::error_of<NumericError>([&] { backward(y); }),
            "[broken] made NaN in the gradient of input 0, f32[2] (in layers.0)");
}

TEST(Graph, AMillionOpsAreFreedWithoutDeepRecursion) {
  const Session session;
  Tensor x = variable({1});
  Tensor y = x;
  for (int i = 0; i < 300000; ++i) y = y * 1;
  backward(y);
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Graph, InputAndWeightPartsOfBackwardAreTwoNeeds) {
  const Session session;
  Tensor x = normal({3, 4}, {1, 1}).set_requires_grad(),
         w = normal({5, 4}, {1, 2}).set_requires_grad();
  const Tensor y = linear(x, w), dy = normal({3, 5}, {1, 3});
  Node& node = *edge_of(y).node;
  const NoGrad guard;
  Needs input(2), weight(2), both(2, true);
  input.set(0);
  weight.set(1);
  const Grads a = node.apply({dy}, input), b = node.apply({dy}, weight), c = node.apply({dy}, both);
  EXPECT_FALSE(a[1].defined());
  EXPECT_FALSE(b[0].defined());
  EXPECT_EQ(a[0].values(), c[0].values());
  EXPECT_EQ(b[1].values(), c[1].values());
}

}  // namespace
}  // namespace tessera
