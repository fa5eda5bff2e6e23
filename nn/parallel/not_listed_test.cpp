// SPDX-License-Identifier: Apache-2.0
// A parameter that visit() leaves out gets no layout from fully_shard, and the error says so.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

constexpr int64_t kIn = 4, kRows = 6;

class Gated final : public Layer<Gated> {
 public:
  void visit(Visitor& v) override { v.child("inner", inner); }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return inner(x) * gate; }
  Linear inner{kIn, kIn, Init::normal(1), DType::f64};
  Tensor gate = parameter({kIn}, DType::f64);  // which visit() should list
};

TEST(FullyShard, AParameterThatIsNotListedHasNoLayout) {
  run_fake(2, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Gated net;
    fully_shard(net, mesh, {{"dp"}, {}});
    const Tensor x = make_distributed(empty({kRows / 2, kIn}, DType::f64, kMeta), {kRows, kIn},
                                      Layout::of(mesh, {Shard(0)}));
    const std::string text = test::error_of<LayoutError>([&] { (void)net(x); });
    EXPECT_NE(
        text.find("; visit() lists no tensor that is plain: this one is an input, a constant, or a "
                  "member that visit() leaves out"),
        text.npos)
        << text;
  });
}

}  // namespace
}  // namespace tessera::nn
