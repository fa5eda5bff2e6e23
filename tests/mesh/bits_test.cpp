// SPDX-License-Identifier: Apache-2.0
// FSDP, HSDP and replicate give the same bits, and those of the plain path: parameters that are
// distributed tensors, replicated over the data axes, whose gradients are redistributed one by one.
// On powers of two, where sums over two axes are those over one. A step of one micro-batch has no
// mode of accumulation; with several, those of one mode are equal.
#include "tessera/autograd/autograd.h"
#include "tessera/core/draws.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/tests/mesh/dense.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/config/optimizer.h"
#include "tessera/train/config/schedule.h"

namespace tessera::mesh_tests {
namespace {

enum class Pass : uint8_t { none, fully_shard, replicate };

void wrap(models::LanguageModel& model, Mesh mesh, const train::Config& c, Pass pass,
          nn::Accumulation how) {
  nn::MixedPrecision precision;
  if (c.training.mixed_precision_param != DType::f32)
    precision.param = c.training.mixed_precision_param;
  if (pass == Pass::fully_shard) {
    models::fully_shard(model, mesh, {{"dp_shard"}, {"dp_replicate"}},
                        {.precision = precision, .accumulation = how});
  } else if (pass == Pass::replicate) {
    models::replicate(model, mesh, "dp_replicate", {.precision = precision, .accumulation = how});
  } else if (precision.param) {
    nn::mixed_precision(model, model.units(), precision);
  }
}

Tensor whole_gradient(const nn::NamedParameter& p) {
  return redistribute(p.tensor.grad(), layout_of(p.tensor));
}

// What `trained` gives, by a loop of its own over `batches` micro-batches.
Outcome looped(const train::Config& c, const Degrees& degrees, Pass pass = Pass::none,
               nn::Accumulation how = nn::Accumulation::whole, int batches = 1) {
  Outcome result;
  const auto on_rank = [&](World& world) {
    const Mesh mesh = Mesh::make(c.parallelism.axes(world.size()));
    const auto seed = static_cast<uint64_t>(c.debug.seed);
    const auto model = c.model.make();
    if (degrees.tp > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
    nn::apply_activation_checkpoint(model->units(), c.activation_checkpoint);
    wrap(*model, mesh, c, pass, how);
    nn::initialize(*model, seed, nn::laid_out(*model, mesh));
    const auto parameters = nn::named_parameters(*model);
    const auto optimizer = train::make_optimizer(c.optimizer, parameters, seed);
    Context::current().call_keys.set_seed(seed);
    const Layout by_rows = train::data_share(mesh).by_rows;
    const int64_t at_once = c.training.local_batch_size * degrees.data_parts() / batches;
    const models::Metadata metadata = model->metadata(c.training.seq_len);
    Outcome run;
    run.initial = whole_parameters(*model);
    for (int64_t step = 0; step < c.training.steps; ++step) {
      const int64_t first = step * batches * at_once;
      int64_t counted = 0;
      for (const double id : rows(first, batches * at_once).targets.values()) counted += id >= 0;
      const Tensor scale = full({}, 1.0 / static_cast<double>(counted));
      std::vector<Tensor> sums(parameters.size());
      double step_loss = 0;
      for (int b = 0; b < batches; ++b) {
        const train::Batch batch = rows(first + b * at_once, at_once);
        begin_micro_batch(static_cast<uint64_t>(step), b * at_once);
        const nn::MicroBatch micro(b + 1 == batches);
        const models::Loss loss = model->loss(distribute(batch.tokens, by_rows),
                                              distribute(batch.targets, by_rows), metadata);
        const Tensor mean = loss.sum * scale;
        backward(mean);
        step_loss += full_tensor(mean).item();
        if (pass != Pass::none || how == nn::Accumulation::whole) continue;
        const NoGrad guard;
        for (size_t i = 0; i < sums.size(); ++i) {
          Tensor x = parameters[i].tensor;
          const Tensor g = whole_gradient(parameters[i]);
          sums[i] = sums[i].defined() ? sums[i] + g : g;
          x.set_grad({});
        }
      }
      for (size_t i = 0; i < sums.size() && pass == Pass::none; ++i) {
        Tensor x = parameters[i].tensor;
        x.set_grad(sums[i].defined() ? sums[i] : whole_gradient(parameters[i]));
      }
      run.norms.push_back(
          optim::clip_grad_norm_(nn::parameters(*model), c.training.max_norm).item());
      optimizer->set_lr_factor(train::lr_factor(c.lr_scheduler, step, c.training.steps));
      optimizer->step();
      optimizer->zero_grad();
      run.losses.push_back(step_loss);
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
    const Outcome want = looped(config(), degrees);
    for (; degrees.shard > 0; degrees.replicate *= 2, degrees.shard /= 2) {
      const std::string what = concat(GetParam(), " on ", degrees.text(), ", ", name(compute),
                                      ", checkpoint mode ", static_cast<int>(mode));
      expect_equal(trained(config(), degrees), want, what);
    }
  }
  // Two micro-batches a step, on four ranks.
  void check_micro_batches(int tp, DType compute, nn::Accumulation how) const {
    const int data = 4 / tp;
    const auto run = [&](int replicate, Pass pass) {
      const Degrees degrees{.replicate = replicate, .shard = data / replicate, .tp = tp};
      train::Config config = dense(GetParam(), degrees, compute, Mode::none, folder_);
      config.training.steps = 2;
      return looped(config, degrees, pass, how, 2);
    };
    const std::string what = concat(GetParam(), " on ", data, " x tp ", tp, ", ", name(compute),
                                    ", accumulation ", static_cast<int>(how));
    const Outcome sharded = run(1, Pass::fully_shard);
    if (data > 2) expect_equal(run(2, Pass::fully_shard), sharded, what + ", hybrid");
    expect_equal(run(data, Pass::replicate), sharded, what + ", replicate");
    // The plain path adds whole gradients before it sums over tp; the passes sum over tp at once.
    if (tp == 1 || how == nn::Accumulation::shards)
      expect_equal(run(1, Pass::none), sharded, what + ", plain");
  }

 private:
  static void expect_equal(const Outcome& run, const Outcome& want, const std::string& what) {
    EXPECT_EQ(run.losses, want.losses) << what;
    EXPECT_EQ(run.norms, want.norms) << what;
    for (const auto& [name, values] : want.initial)
      EXPECT_TRUE(run.initial.at(name) == values) << what << ": initial " << name;
    for (const auto& [name, values] : want.last)
      EXPECT_TRUE(run.last.at(name) == values) << what << ": " << name;
  }
};

TEST_P(MeshBits, FsdpHsdpAndReplicateAreThePlainPath) {
  size_t turn = 0;
  for (const auto& [data, tp] : {std::pair(2, 2), {4, 1}, {2, 1}, {2, 4}, {4, 2}, {8, 1}}) {
    if (!test::long_form() && data * tp != 4) continue;
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const Mode mode : modes(turn++)) check(data, tp, compute, mode);
    }
  }
}

TEST_P(MeshBits, MicroBatchesOfOneModeOfAccumulationAreThePlainPath) {
  for (const auto how : {nn::Accumulation::shards, nn::Accumulation::whole}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const int tp : {1, 2}) check_micro_batches(tp, compute, how);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MeshBits, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tessera::mesh_tests
