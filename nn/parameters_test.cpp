// SPDX-License-Identifier: Apache-2.0
// What is done with all tensors of a module: conversion, movement, copies into another module.
#include "tessera/nn/parameters.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/lay_out.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/sgd.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

using test::error_of;

// A parameter, a floating buffer that checkpoints hold and an integer one that they do not.
struct Counted final : Layer<Counted> {
  explicit Counted(DType dtype = DType::f32) : weight(parameter({2}, dtype)) {}
  Tensor weight, mean = empty({2}, DType::f32, kMeta), seen = empty({}, DType::i64, kMeta);
  void visit(Visitor& v) override {
    v.parameter("weight", weight, Init::constant(1.5));
    v.buffer("mean", mean, Init::constant(0.25));
    v.buffer("seen", seen, Init::constant(3), false);
  }
};

class ParametersTest : public testing::Test {
 protected:
  Session session_;
};

TEST_F(ParametersTest, ToConvertsWhatIsFloatingInPlace) {
  Counted m;
  initialize(m, 1);
  const Tensor weight = m.weight;
  backward(sum(m.weight));
  EXPECT_EQ(&m.to(DType::bf16), &m);
  EXPECT_EQ(weight.dtype(), DType::bf16) << "handles stay good";
  EXPECT_EQ(weight.values(), (std::vector<double>{1.5, 1.5}));
  EXPECT_EQ(weight.grad().dtype(), DType::bf16);
  EXPECT_EQ(weight.grad().values(), (std::vector<double>{1, 1}));
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  EXPECT_EQ(m.mean.dtype(), DType::bf16);
  EXPECT_EQ(m.seen.dtype(), DType::i64);
}

TEST_F(ParametersTest, ToConvertsAModelBeforeItHasBytes) {
  Linear m(3, 2);
  m.to(DType::f64);
  EXPECT_EQ(m.weight.dtype(), DType::f64);
  EXPECT_TRUE(m.weight.device().is_meta());
  initialize(m, 1);
  EXPECT_EQ(m(full({1, 3}, 1, DType::f64)).dtype(), DType::f64);
}

TEST_F(ParametersTest, ToTheSameDtypeChangesNothing) {
  Linear m(3, 2);
  initialize(m, 1);
  const void* bytes = m.weight.raw_data();
  m.to(DType::f32).to(kCpu);
  EXPECT_EQ(m.weight.raw_data(), bytes);
}

TEST_F(ParametersTest, ToMeta) {
  Counted m;
  initialize(m, 1);
  m.to(kMeta);
  EXPECT_TRUE(m.weight.device().is_meta() && m.seen.device().is_meta());
  EXPECT_EQ(error_of<DeviceError>([&] { m.to(kCpu); }),
            "[to] weight, f32[2]@meta, has no values to move: call nn::initialize or nn::load");
}

TEST_F(ParametersTest, ToAnIntegerDtypeIsAnError) {
  Counted m;
  EXPECT_EQ(error_of<DTypeError>([&] { m.to(DType::i32); }),
            "[to] parameters have gradients, so they cannot be i32: give a floating dtype");
}

TEST_F(ParametersTest, ZeroGradDropsAllGradients) {
  Sequential m(Linear(2, 3), Tanh(), Linear(3, 1));
  initialize(m, 1);
  backward(sum(m(full({4, 2}, 1))));
  m.zero_grad();
  for (const Tensor& p : parameters(m)) EXPECT_FALSE(p.grad().defined());
}

TEST_F(ParametersTest, CopiesKeepTheBytesAndTheDtypeOfTheTarget) {
  Counted from, to(DType::bf16);
  initialize(from, 1);
  initialize(to, 1);
  copy_values(from.weight, tensor({7, -0.5}));
  copy_values(from.seen, tensor(9, DType::i64));
  const void* bytes = to.weight.raw_data();
  const uint32_t version = to.weight.storage().version();
  copy_parameters(to, from);
  EXPECT_EQ(to.weight.values(), (std::vector<double>{7, -0.5}));
  EXPECT_EQ(to.weight.dtype(), DType::bf16);
  EXPECT_EQ(to.weight.raw_data(), bytes);
  EXPECT_GT(to.weight.storage().version(), version) << "graphs that saved it must notice";
  EXPECT_EQ(to.seen.item(), 9);
  from.weight.data<float>()[0] = 1;
  EXPECT_EQ(to.weight.values()[0], 7) << "bytes are not shared";
}

TEST_F(ParametersTest, ACopyMakesAModelThatHasNoBytes) {
  Counted from, to(DType::f64);
  initialize(from, 1);
  copy_parameters(to, from);
  EXPECT_EQ(to.weight.values(), (std::vector<double>{1.5, 1.5}));
  EXPECT_EQ(to.weight.dtype(), DType::f64);
  EXPECT_EQ(to.seen.item(), 3);
}

TEST_F(ParametersTest, TreesThatDifferAreNamedWhole) {
  struct Pair final : Layer<Pair> {
    Pair(int64_t width, const char* other) : a(2, width), b(1, 1), second(other) {}
    Linear a, b;
    const char* second;
    void visit(Visitor& v) override {
      v.child("a", a);
      v.child(second, b);
    }
  } from(3, "b"), to(4, "c");
  initialize(from, 1);
  EXPECT_EQ(error_of<DataError>([&] { copy_parameters(to, from); }),
            "[copy_parameters] the parameters given do not fit the model: a.weight is f32[3, 2], "
            "expected f32[4, 2]@meta; c.weight is missing; b.weight is not in the model");
}

TEST_F(ParametersTest, AModelThatHasBytesIsNotLaidOut) {
  Counted m;
  initialize(m, 1);
  EXPECT_EQ(error_of<DeviceError>([&] {
              lay_out(m, [](const std::string&, const TensorMeta&) { return Layout(); });
            }),
            "[lay_out] weight, f32[2], has bytes: expected a model on the meta device");
}

TEST(ParametersRanks, CopiesCrossLayouts) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", world.size()}});
    const auto lying = [&](std::initializer_list<Placement> placements) {
      return [layout = Layout::of(mesh, placements)](const std::string&, const TensorMeta&) {
        return layout;
      };
    };
    Linear rows(3, 5), columns(3, 5), plain(3, 5), made(3, 5);
    initialize(rows, 1, lying({Shard(0)}));
    initialize(columns, 2, lying({Shard(1)}));
    initialize(plain, 3);
    copy_parameters(columns, rows);
    copy_parameters(plain, columns);
    copy_parameters(made, columns);
    EXPECT_EQ(layout_of(columns.weight).placement("dp"), Shard(1));
    EXPECT_EQ(layout_of(made.weight).placement("dp"), Shard(1));
    EXPECT_FALSE(plain.weight.is_distributed());
    const auto want = full_tensor(rows.weight.detach()).values();
    EXPECT_EQ(plain.weight.values(), want);
    EXPECT_EQ(full_tensor(made.weight.detach()).values(), want);
    rows.to(DType::f64);
    EXPECT_EQ(full_tensor(rows.weight.detach()).values(), want);
    EXPECT_EQ(local(rows.weight).dtype(), DType::f64);
    EXPECT_EQ(layout_of(rows.weight).placement("dp"), Shard(0));
  });
}

}  // namespace
}  // namespace tessera::nn
