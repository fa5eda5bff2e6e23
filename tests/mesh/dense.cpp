// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/mesh/dense.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/draws.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/step/build_model.h"

#include <gtest/gtest.h>

namespace tessera::mesh_tests {
namespace {

constexpr int64_t kRows = 24, kLength = 32;
constexpr uint64_t kSeed = 5;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSteps = 2;  // which see all of the code
#else
constexpr int64_t kSteps = 10;
#endif

}  // namespace

std::vector<Mode> modes(size_t turn) {
  const std::vector<Mode> all{Mode::none, Mode::full, Mode::selective};
  return test::long_form() ? all : std::vector<Mode>{all[turn % all.size()]};
}

train::Config dense(const std::string& family, const Degrees& degrees, DType compute, Mode mode,
                    const std::string& dump_folder) {
  train::Config c;
  c.model = test::mesh_decoder(family, compute == DType::f64 ? DType::f64 : DType::f32);
  c.dump_folder = dump_folder;
  c.overwrite = true;
  c.threads = 1;
  c.training.steps = kSteps;
  c.training.local_batch_size = kRows / degrees.data_parts();
  c.training.seq_len = kLength;
  c.training.mixed_precision_param = compute;
  c.lr_scheduler.warmup_steps = 2;
  c.parallelism = degrees.parallelism();
  if (family == "gpt2") c.parallelism.context_parallel_load_balancer = nn::LoadBalancer::none;
  c.activation_checkpoint.mode = mode;
  c.debug.seed = kSeed;
  c.debug.deterministic = true;
  c.metrics.measure_ceiling = false;
  c.sample.tokens = 0;
  return c;
}

train::Batch rows(int64_t first, int64_t count, int64_t length) {
  std::vector<double> tokens, targets;
  for (int64_t row = first; row < first + count; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const auto token = [&](int64_t i) {
        return static_cast<double>(test::mix(static_cast<uint64_t>(row * (length + 1) + i)) %
                                   test::kMeshVocabulary);
      };
      tokens.push_back(token(t));
      targets.push_back(t + row % 5 < length ? token(t + 1) : -100);
    }
  }
  return {from_values(tokens, {count, length}, DType::i64),
          from_values(targets, {count, length}, DType::i64)};
}

train::Batch padded(const train::Batch& rows, int64_t places, bool documents) {
  const int64_t count = rows.tokens.size(0), length = rows.tokens.size(1);
  const auto behind = [&](const Tensor& x, double value) {
    return cat({x, full({count, places}, value, x.dtype())}, 1);
  };
  const auto counting = [&](int64_t n) { return expand(arange(n, DType::i64), {count, n}); };
  train::Batch longer{behind(rows.tokens, 0), behind(rows.targets, -100)};
  longer.padding =
      contiguous(expand(arange(length + places, DType::i64) >= length, {count, length + places}));
  if (!documents) return longer;
  longer.positions = cat({counting(length), counting(places)}, 1);
  longer.documents = behind(zeros({count, length}, DType::i64), 1);
  return longer;
}

Values whole_parameters(nn::Module& model) {
  Values all;
  for (const auto& p : nn::named_parameters(model)) all[p.name] = full_tensor(p.tensor).values();
  return all;
}

Outcome trained(const train::Config& config, const Degrees& degrees, const Watch& watch) {
  Outcome result;
  const auto source = [&](int64_t first, int64_t count) {
    return rows(first, count, config.training.seq_len);
  };
  const auto on_rank = [&](World& world) {
    train::Trainer trainer(config, {}, nullptr, source);
    Outcome run;
    if (watch) watch(trainer.model(), 0);
    run.initial = whole_parameters(trainer.model());
    for (int64_t i = 0; i < config.training.steps; ++i) {
      const train::StepRecord r = trainer.step();
      if (watch) watch(trainer.model(), i + 1);
      run.losses.push_back(r.loss);
      run.norms.push_back(r.grad_norm);
    }
    run.last = whole_parameters(trainer.model());
    if (world.rank() == 0) result = std::move(run);
  };
  run_ranks(degrees.ranks(), on_rank, train::world_options(config));
  return result;
}

Values gradients(const train::Config& config, const Degrees& degrees, int64_t padding,
                 bool documents) {
  Values result;
  const auto on_rank = [&](World& world) {
    const Mesh mesh = Mesh::make(config.parallelism.axes(world.size()));
    const auto fill = [&](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, static_cast<uint64_t>(config.debug.seed), layouts);
      for (const auto& p : nn::named_parameters(m)) {
        if (p.name.ends_with("bias"))
          nn::copy_values(p.tensor, normal(p.tensor.shape(), {3, 1}, 0, 0.1, p.tensor.dtype()));
      }
    };
    const auto model = train::build_model(config, mesh, fill);
    Context::current().call_keys.set_seed(kSeed);
    begin_micro_batch(0);
    const train::DataShare share = train::data_share(mesh);
    const auto batch_of = [&](int64_t first, int64_t count) {
      const train::Batch full = rows(first, count, config.training.seq_len - padding);
      return padding > 0 ? padded(full, padding, documents) : full;
    };
    const int64_t length = config.training.seq_len, mine = config.training.local_batch_size;
    const train::PlacedBatch batch =
        train::BatchPlacer(model->metadata(length), share, kCpu, config.parallelism.sequence_cut())
            .place(batch_of(share.part * mine, mine));
    const models::Loss loss = model->loss(batch.tokens, batch.targets, batch.metadata);
    Tensor total = loss.sum;
    for (const models::NamedValue& term : loss.auxiliary) total = total + term.value;
    backward(total);
    Values values;
    if (loss.load.defined()) values["load"] = full_tensor(loss.load).values();
    for (const auto& p : nn::named_parameters(*model)) {
      EXPECT_EQ(layout_of(p.tensor.grad()), layout_of(p.tensor)) << p.name;
      values[p.name] = full_tensor(p.tensor.grad()).values();
    }
    if (world.rank() == 0) result = std::move(values);
  };
  run_ranks(degrees.ranks(), on_rank, train::world_options(config));
  return result;
}

}  // namespace tessera::mesh_tests
