// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/mesh/dense.h"

#include "tessera/core/context.h"
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
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/step/forward_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <mutex>

namespace tessera::mesh_tests {
namespace {

constexpr int64_t kRows = 24, kLength = 32;
constexpr uint64_t kSeed = 5;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSteps = 2;  // which see all of the code
#else
constexpr int64_t kSteps = 10;
#endif

// Whole tensors of all ranks, which are threads: each has those of its stages of a pipeline, and a
// tensor that several have is the same on all.
class Joined {
 public:
  void add(const Values& of_rank) {
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, values] : of_rank) {
      const auto [at, fresh] = all_.emplace(name, values);
      EXPECT_TRUE(fresh || at->second == values) << name << " differs between ranks";
    }
  }
  [[nodiscard]] Values take() { return std::move(all_); }

 private:
  std::mutex mutex_;
  Values all_;
};

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
  c.parallelism.pipeline_parallel_microbatch_size = 2;  // 12 to 3 of a step
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

double largest_difference(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, train::relative_difference(got.at(i), want[i]));
  return worst;
}

void expect_below(double worst, double limit, const std::string& what) {
  EXPECT_LE(worst, limit) << what;
  if (test::long_form()) std::cout << what << ": " << worst << '\n';
}

Outcome trained(const train::Config& config, const Degrees& degrees, const Watch& watch) {
  Outcome result;
  Joined initial, last;
  const auto source = [&](int64_t first, int64_t count) {
    return rows(first, count, config.training.seq_len);
  };
  const auto on_rank = [&](World& world) {
    train::Trainer trainer(config, {}, nullptr, source);
    std::vector<double> losses, norms;
    if (watch) watch(trainer.model(), 0);
    initial.add(whole_parameters(trainer.model()));
    for (int64_t i = 0; i < config.training.steps; ++i) {
      const train::StepRecord r = trainer.step();
      if (watch) watch(trainer.model(), i + 1);
      losses.push_back(r.loss);
      norms.push_back(r.grad_norm);
    }
    last.add(whole_parameters(trainer.model()));
    if (world.rank() == 0) result = {{}, {}, std::move(losses), std::move(norms)};
  };
  run_ranks(degrees.ranks(), on_rank, train::world_options(config));
  result.initial = initial.take();
  result.last = last.take();
  return result;
}

Values gradients(const train::Config& config, const Degrees& degrees, int64_t padding,
                 bool documents) {
  Joined result;
  const auto on_rank = [&](World&) {
    const Mesh mesh = train::make_mesh(config.parallelism);
    const auto fill = [&](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, static_cast<uint64_t>(config.debug.seed), layouts);
      for (const auto& p : nn::named_parameters(m)) {
        if (p.name.ends_with("bias"))
          nn::copy_values(p.tensor, normal(p.tensor.shape(), {3, 1}, 0, 0.1, p.tensor.dtype()));
      }
    };
    const auto model = train::build_model(config, mesh, fill);
    Context::current().call_keys.set_seed(kSeed);
    const train::DataShare share = train::data_share(mesh);
    const auto batch_of = [&](int64_t first, int64_t count) {
      const train::Batch full = rows(first, count, config.training.seq_len - padding);
      return padding > 0 ? padded(full, padding, documents) : full;
    };
    train::BatchPlacer placer(model->metadata(config.training.seq_len), share, kCpu,
                              config.parallelism.sequence_cut());
    const auto [mine, micro_batches] = config.step_sizes(share.parts);
    std::vector<train::PlacedBatch> batches;
    for (int64_t i = 0; i < micro_batches; ++i)
      batches.push_back(placer.place(batch_of((i * share.parts + share.part) * mine, mine)));
    const auto unscaled = train::loss_scale(full({2}, 1, DType::f64), config.model.dtype());
    const Tensor load =
        train::forward_backward(*model, {batches, 0, mine * share.parts}, unscaled).load;
    Values values;
    if (load.defined()) values["load"] = trial::whole_values(load);
    for (const auto& p : nn::named_parameters(*model)) {
      EXPECT_EQ(layout_of(p.tensor.grad()), layout_of(p.tensor)) << p.name;
      values[p.name] = full_tensor(p.tensor.grad()).values();
    }
    result.add(values);
  };
  run_ranks(degrees.ranks(), on_rank, train::world_options(config));
  return result.take();
}

}  // namespace tessera::mesh_tests
