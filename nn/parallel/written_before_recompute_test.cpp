// SPDX-License-Identifier: Apache-2.0
// A parameter that is written between forward and its recompute is an error that names it, in units
// of every pass, whether or not a gradient needs its values.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parallel/replicate.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

// tanh(x W + b): the gradient needs W and the result, not b.
struct Block final : Layer<Block> {
  void visit(Visitor& v) override { v.child("linear", linear); }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return tanh(linear(x)); }
  Linear linear{4, 4, Init::normal(1), DType::f32, true};
};

enum class How { plain, shard, replicate, cast };

TEST(WrittenBeforeRecompute, IsAnErrorThatNamesTheParameter) {
  for (const How how : {How::plain, How::shard, How::replicate, How::cast}) {
    for (const bool bias : {false, true}) {
      test::on_ranks(2, [how, bias](World&) {
        const Mesh mesh = Mesh::make({{"dp", 2}});
        Block block;
        const std::vector<Module*> all{&block};
        apply_activation_checkpoint(all, {.mode = ActivationCheckpointConfig::Mode::full});
        if (how == How::shard)
          fully_shard(block, mesh, {{"dp"}, {}}, {.precision = {.param = DType::bf16}});
        if (how == How::replicate) replicate(block, mesh, "dp");
        if (how == How::cast) mixed_precision(block, {}, {.param = DType::bf16});
        initialize(block, 1, laid_out(block, mesh));
        const Tensor x =
            normal({4, 4}, {.seed = 2}, 0, 1, DType::f32, Layout::of(mesh, {Shard(0)}));
        const Tensor y = sum(block(x));
        {
          const NoGrad guard;
          scale_({bias ? block.linear.bias : block.linear.weight}, 2);
        }
        const std::string text = test::error_of<InPlaceError>([&] { backward(y); });
        EXPECT_NE(text.find("was written in place"), text.npos) << text;
        EXPECT_NE(text.find("write it after backward"), text.npos) << text;
        if (how != How::plain) {
          EXPECT_NE(text.find(bias ? "linear.bias" : "linear.weight"), text.npos) << text;
        }
      });
    }
  }
}

}  // namespace
}  // namespace tessera::nn
