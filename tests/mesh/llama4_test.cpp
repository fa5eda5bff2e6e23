// SPDX-License-Identifier: Apache-2.0
// The debug model of Llama 4 with fully_shard, tensor parallelism and experts in bf16: every tensor
// of a grouped product is of the dtype that it says, and numbers of tokens that change with every
// step need no new plans and no memory from the system.
#include "tessera/models/llama4/llama4.h"

#include "tessera/core/context.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/grouped_mm/grouped_mm.h"
#include "tessera/tests/mesh/dense.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera::mesh_tests {
namespace {

class Llama4DebugModel : public test::FolderTest, public testing::WithParamInterface<Degrees> {
 protected:
  [[nodiscard]] train::Config config(int64_t steps, int64_t length) const {
    train::Config c = dense("llama4", GetParam(), DType::bf16, Mode::none, folder_);
    c.model = models::find_family(models::families(), "llama4").flavor("debugmodel");
    c.model.as<llama4::Config>().moe.load_balance_coeff = 1e-3;
    c.training.local_batch_size = 1;
    c.training.seq_len = length;
    c.training.steps = steps;
    return c;
  }
};

// What a tensor says of its dtype is what its bytes are.
void expect_dtype_of_bytes(const Tensor& t, DType dtype) {
  EXPECT_EQ(t.dtype(), dtype);
  EXPECT_EQ((t.is_distributed() ? local(t) : t).dtype(), dtype);
}

TEST_P(Llama4DebugModel, TrainsInBf16AndNoDTypeLies) {
  constexpr int64_t kSteps = 2;
  std::vector<int> products(static_cast<size_t>(GetParam().ranks()));
  const auto watch = [&](models::LanguageModel& model, int64_t step) {
    if (step > 0) return;
    int& seen = products[static_cast<size_t>(World::current().rank())];
    Context::current().op_hook = [&seen](const OpRow& row, const void*, Tensors in, Tensors out) {
      if (!row.name.starts_with("grouped_")) return;
      ++seen;
      for (const Tensor& t : {in[0], in[1], out[0]}) expect_dtype_of_bytes(t, DType::bf16);
      const Tensor made = out[0].is_distributed() ? local(out[0]) : out[0];
      EXPECT_EQ(made.storage().bytes(), made.numel() * item_size(DType::bf16));
    };
    for (const auto& p : nn::named_parameters(model)) expect_dtype_of_bytes(p.tensor, DType::f32);
  };
  const Outcome run = trained(config(kSteps, 272), GetParam(), watch);  // more than a chunk
  ASSERT_EQ(run.losses.size(), static_cast<size_t>(kSteps));
  for (const double loss : run.losses) EXPECT_TRUE(loss > 0 && loss < 20) << loss;
  // Gate, up and down of three layers, forward and both gradients.
  for (const int seen : products) EXPECT_EQ(seen, kSteps * 3 * 9);
}

// The first steps make plans and fill the cache of blocks.
constexpr int64_t kWarm = 5;

TEST_P(Llama4DebugModel, LoadsThatVaryNeedNoNewPlansAndNoNewMemory) {
  struct Seen {
    int64_t held = 0, taken = 0;  // bytes from the system: now, and in steps after the first
    uint64_t misses = 0;
    std::set<std::vector<double>> loads;
  };
  std::vector<Seen> seen(static_cast<size_t>(GetParam().ranks()));
  const auto watch = [&](models::LanguageModel&, int64_t step) {
    World& world = World::current();
    Seen& mine = seen[static_cast<size_t>(world.rank())];
    const uint64_t misses = world.planner().counts().misses;
    if (step > kWarm) {
      EXPECT_EQ(misses, mine.misses) << "step " << step;
    }
    mine.misses = misses;
    if (step == kWarm) mine.taken = 0;
    Context& context = Context::current();
    context.op_hook = [&mine, &context](const OpRow& row, const void*, Tensors, Tensors out) {
      const MemoryStats memory = context.allocator(kCpu)->stats();
      mine.taken += std::max<int64_t>(memory.live + memory.cached - mine.held, 0);
      mine.held = memory.live + memory.cached;
      if (row.name == "bincount" && !out[0].is_distributed()) mine.loads.insert(out[0].values());
    };
  };
  (void)trained(config(12, 64), GetParam(), watch);
  for (const Seen& one : seen) {
    EXPECT_GT(one.loads.size(), 30u);
    EXPECT_EQ(one.taken, 0) << "of " << one.held;
  }
}

INSTANTIATE_TEST_SUITE_P(OnMeshes, Llama4DebugModel,
                         testing::Values(Degrees{.shard = 2, .tp = 2},
                                         Degrees{.shard = 2, .tp = 2, .ep = 4}),
                         [](const auto& test) { return test.param.text(); });

// There is no way to say a dtype: a layout has none, and nothing that makes a distributed tensor
// takes one.
template <class T>
concept HasDType = requires(const T& t) {
  t.dtype();
};
static_assert(!HasDType<Layout>);
template <class... Arguments>
concept Wraps = requires(Arguments... a) {
  from_local(a...);
}
|| requires(Arguments... a) { wrap_local(a...); }
|| requires(Arguments... a) { distribute(a...); };
static_assert(Wraps<Tensor, Layout>);
static_assert(!Wraps<Tensor, Layout, DType>);
static_assert(!Wraps<Tensor, Layout, Shape, DType>);
static_assert(!Wraps<Tensor, Layout, TensorMeta>);

TEST(DTypesOfExperts, CannotBeForced) {
  test::on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"ep", 2}});
    const Layout cut = Layout::of(mesh, {Shard(0)}), whole = Layout::of(mesh, {Replicate()});
    const DType unlike = world.rank() == 0 ? DType::f32 : DType::bf16;
    TESSERA_EXPECT_HOLDS(trial::error_of<LayoutError>([&] {
                           (void)from_local(full({1, 3, 4}, 1, unlike, kCpu), cut);
                         }),
                         "disagree");
    const Tensor w = distribute(full({2, 3, 4}, 1, DType::f32, kCpu), cut),
                 x = distribute(full({5, 4}, 1, DType::bf16, kCpu), whole),
                 offsets = distribute(from_values({2, 5}, {2}, DType::i64), whole);
    EXPECT_THROW((void)grouped_mm(x, w, offsets), DTypeError);
    nn::copy_values(w, full({2, 3, 4}, 3, DType::bf16, kCpu));  // values are converted
    expect_dtype_of_bytes(w, DType::f32);
    EXPECT_EQ(local(w).values(), std::vector<double>(12, 3));
  });
}

}  // namespace
}  // namespace tessera::mesh_tests
