// SPDX-License-Identifier: Apache-2.0
// FSDP, HSDP and replicate give the same bits, and those of the plain path: parameters that are
// distributed tensors, replicated over the data axes, whose gradients are redistributed one by one.
// On powers of two, where sums over two axes are those over one; a step of one micro-batch has no
// mode of accumulation.
#include "tessera/autograd/autograd.h"
#include "tessera/core/draws.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/tests/mesh/dense.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/run/optimizer.h"
#include "tessera/train/run/schedule.h"

namespace tessera::mesh_tests {
namespace {

// What `trained` gives, by a loop of its own.
Outcome plain(const train::Config& c, const Degrees& degrees) {
  Outcome result;
  const auto on_rank = [&](World& world) {
    const Mesh mesh = Mesh::make(c.parallelism.axes(world.size()));
    const auto seed = static_cast<uint64_t>(c.debug.seed);
    const auto model = c.model.make();
    if (degrees.tp > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
    nn::apply_activation_checkpoint(model->units(), c.activation_checkpoint);
    if (c.training.mixed_precision_param != DType::f32)
      nn::mixed_precision(*model, model->units(), c.training.mixed_precision_param);
    nn::initialize(*model, seed, nn::laid_out(*model, mesh));
    const auto parameters = nn::named_parameters(*model);
    const auto optimizer = train::make_optimizer(c.optimizer, parameters, seed);
    Context::current().call_keys.set_seed(seed);
    const Layout by_rows = train::data_share(mesh).by_rows;
    const int64_t at_once = c.training.local_batch_size * degrees.data_parts();
    const models::Metadata metadata = model->metadata(c.training.seq_len);
    Outcome run;
    run.initial = whole_parameters(*model);
    for (int64_t step = 0; step < c.training.steps; ++step) {
      const train::Batch batch = rows(step * at_once, at_once);
      begin_micro_batch(static_cast<uint64_t>(step));
      const models::Loss loss = model->loss(distribute(batch.tokens, by_rows),
                                            distribute(batch.targets, by_rows), metadata);
      const Tensor scale = [&] {
        const NoGrad guard;
        return cast(reciprocal(cast(full_tensor(loss.count), DType::f64)), DType::f32);
      }();
      const Tensor mean = loss.sum * scale;
      backward(mean);
      for (const auto& p : parameters) {
        Tensor x = p.tensor;
        x.set_grad(redistribute(x.grad(), layout_of(x)));
      }
      run.norms.push_back(
          optim::clip_grad_norm_(nn::parameters(*model), c.training.max_norm).item());
      optimizer->set_lr_factor(train::lr_factor(c.lr_scheduler, step, c.training.steps));
      optimizer->step();
      optimizer->zero_grad();
      run.losses.push_back(full_tensor(mean).item());
    }
    run.last = whole_parameters(*model);
    if (world.rank() == 0) result = std::move(run);
  };
  run_ranks(degrees.ranks(), on_rank, train::world_options(c));
  return result;
}

class MeshBits : public test::FolderTest, public testing::WithParamInterface<const char*> {
 protected:
  // On `data` parts, cut in every way over the two axes.
  void check(int data, int tp, DType compute, Mode mode) const {
    Degrees degrees{.shard = data, .tp = tp};
    const auto config = [&] { return dense(GetParam(), degrees, compute, mode, folder_); };
    const Outcome want = plain(config(), degrees);
    for (; degrees.shard > 0; degrees.replicate *= 2, degrees.shard /= 2) {
      const std::string what = concat(GetParam(), " on ", degrees.text(), ", ", name(compute),
                                      ", checkpoint mode ", static_cast<int>(mode));
      const Outcome run = trained(config(), degrees);
      EXPECT_EQ(run.losses, want.losses) << what;
      EXPECT_EQ(run.norms, want.norms) << what;
      for (const auto& [name, values] : want.initial)
        EXPECT_TRUE(run.initial.at(name) == values) << what << ": initial " << name;
      for (const auto& [name, values] : want.last)
        EXPECT_TRUE(run.last.at(name) == values) << what << ": " << name;
    }
  }
};

TEST_P(MeshBits, FsdpHsdpAndReplicateAreThePlainPath) {
  size_t turn = 0;
  for (const auto& [data, tp] : {std::pair(2, 2), {4, 1}, {2, 1}, {2, 4}, {4, 2}, {8, 1}}) {
    if (!long_form() && data * tp != 4) continue;
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const Mode mode : modes(turn++)) check(data, tp, compute, mode);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MeshBits, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tessera::mesh_tests
