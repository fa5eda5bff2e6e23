// SPDX-License-Identifier: Apache-2.0
// A decoder with experts on every way to give 8 and 6 ranks to (dp_replicate, dp_shard, tp, ep,
// etp) against one rank: every gradient and the load of the first step, losses and gradient norms
// of 10 steps. In f64 alone: where two scores are nearly equal, the rounding of narrower dtypes
// chooses another expert, and routers begin with scores that are. And checkpoints of one such mesh
// on others, bit for bit.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/tests/mesh/dense.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/run/build_model.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/optimizer.h"
#include "tessera/train/run/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

namespace tessera::mesh_tests {
namespace {

constexpr int64_t kRows = 24, kLength = 5;

train::Config config(int64_t experts, const Degrees& degrees, DType compute, Mode mode,
                     const std::string& folder) {
  train::Config c = dense("qwen3", degrees, compute, mode, folder);
  auto& model = c.model.as<qwen3::Config>();
  model.moe = {.num_experts = experts,
               .top_k = 2,
               .moe_inter_dim = 10,
               .route_norm = true,
               .load_balance_coeff = 1e-3,
               .balance_loss_coeff = 1e-2};
  c.training.local_batch_size = kRows / degrees.data_parts();
  c.training.seq_len = kLength;
  return c;
}

// All legal degrees of so many ranks for so many experts.
std::vector<Degrees> every_mesh_of(int ranks, int64_t experts) {
  std::vector<Degrees> all;
  for (Degrees d : every_mesh()) {
    if (d.ranks() != ranks) continue;
    for (d.ep = 1; d.ep <= ranks; ++d.ep) {
      for (d.etp = 1; d.etp <= d.tp; ++d.etp) {
        const nn::ExpertParallel wish{.degree = d.ep, .tensor_degree = d.etp};
        const bool legal = nn::expert_parallel_fault(wish, d.shard, d.tp).empty();
        if (legal && experts % d.ep == 0 && (d.ep > 1 || d.etp == 1)) all.push_back(d);
      }
    }
  }
  return all;
}

// A tenth of `all`, chosen anew by TESSERA_TEST_SEED; all in the long form.
template <class T> std::vector<T> tenth(std::vector<T> all, uint64_t seed) {
  if (test::long_form()) return all;
  test::Dice dice(seed);
  dice.shuffle(all);
  all.resize((all.size() + 9) / 10);
  return all;
}

uint64_t fresh_seed() {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "TESSERA_TEST_SEED=" << seed << '\n';
  return seed;
}

class ExpertSweep : public test::FolderTest,
                    public testing::WithParamInterface<std::tuple<int, int64_t>> {};

TEST_P(ExpertSweep, TrainsAsOneRank) {
  const auto [ranks, experts] = GetParam();
  const uint64_t chosen = fresh_seed();
  const auto with = [&](const Degrees& degrees, Mode mode) {
    return config(experts, degrees, DType::f64, mode, folder_);
  };
  const Values gradient = gradients(with({}, Mode::none), {});
  const Outcome one = trained(with({}, Mode::none), {});
  size_t turn = chosen % 3;
  for (const Degrees& d : tenth(every_mesh_of(ranks, experts), chosen)) {
    for (const Mode mode : modes(turn++)) {
      const std::string what = concat(experts, " experts on ", d.text(), ", checkpoint mode ",
                                      static_cast<int>(mode), ", ");
      const double worst = test::expect_same_gradients(gradients(with(d, mode), d), gradient, 1e-10,
                                                       what + "gradients");
      const Outcome got = trained(with(d, mode), d);
      EXPECT_TRUE(got.initial == one.initial) << what;
      double loss = 0, norm = 0;
      for (size_t i = 0; i < one.losses.size(); ++i) {
        loss = std::max(loss, train::relative_difference(got.losses.at(i), one.losses[i]));
        norm = std::max(norm, train::relative_difference(got.norms.at(i), one.norms[i]));
      }
      EXPECT_LE(loss, 1e-10) << what;
      EXPECT_LE(norm, 1e-6) << what;  // which are f32
      if (test::long_form()) {
        std::cout << what << "gradients " << worst << ", losses " << loss << ", norms " << norm
                  << '\n';
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Qwen3, ExpertSweep,
                         testing::Combine(testing::Values(8, 6), testing::Values(8, 6)),
                         [](const auto& test) {
                           return concat(std::get<0>(test.param), "_ranks_",
                                         std::get<1>(test.param), "_experts");
                         });

// Meshes that hold the experts in unlike ways.
std::vector<Degrees> unlike_meshes() {
  return {{},
          {.shard = 4, .ep = 2},
          {.shard = 2, .tp = 2, .ep = 4},
          {.shard = 2, .tp = 2, .ep = 2, .etp = 2},
          {.replicate = 2, .shard = 2, .ep = 2},
          {.replicate = 2, .tp = 2, .ep = 2}};
}

class ExpertCheckpoints : public test::FolderTest {
 protected:
  using All = std::vector<std::pair<std::string, std::vector<double>>>;
  struct Parts {
    std::unique_ptr<models::LanguageModel> model;
    std::unique_ptr<optim::Optimizer> optimizer;
  };
  [[nodiscard]] Parts made(const Degrees& d, uint64_t seed) const {
    const train::Config c = config(8, d, DType::f32, Mode::none, folder_);
    const Mesh mesh = train::make_mesh(c.parallelism);
    Parts p;
    p.model = train::build_model(c, mesh, [&](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, seed, layouts);
    });
    p.optimizer = train::make_optimizer(c.optimizer, nn::named_parameters(*p.model), seed);
    return p;
  }
  // One step with unlike numbers everywhere.
  static void step(Parts& p, uint64_t seed) {
    uint64_t stream = 0;
    for (const auto& t : nn::named_parameters(*p.model)) {
      Tensor x = t.tensor;
      x.set_grad(normal(x.shape(), {seed, ++stream}, 0, 1, x.dtype(), layout_of(x)));
    }
    p.optimizer->step();
    for (const auto& b : nn::named_buffers(*p.model)) {
      if (is_floating(b.tensor.dtype()))
        nn::copy_values(b.tensor, normal(b.tensor.shape(), {seed, ++stream}, 0, 1, DType::f32));
    }
  }
  static All whole(const Parts& p) {
    All all;
    auto tensors = train::model_tensors(*p.model);
    for (auto& t : p.optimizer->state().tensors) tensors.push_back(std::move(t));
    for (const auto& t : tensors)
      all.emplace_back(
          t.name, t.tensor.is_distributed() ? full_tensor(t.tensor).values() : t.tensor.values());
    return all;
  }
};

TEST_F(ExpertCheckpoints, OfEachMeshLoadOnEachOther) {
  std::vector<std::pair<Degrees, Degrees>> pairs;
  for (const Degrees& from : unlike_meshes()) {
    for (const Degrees& to : unlike_meshes())
      if (!(from == to)) pairs.emplace_back(from, to);
  }
  int64_t number = 0;
  for (const auto& [from, to] : tenth(pairs, fresh_seed())) {
    const std::string what = concat("from ", from.text(), " to ", to.text());
    const train::CheckpointFolder folder(concat(folder_, "/steps_", ++number));
    All saved;
    run_ranks(from.ranks(), [&](World& world) {
      Parts p = made(from, 3);
      step(p, 4);
      const All all = whole(p);
      if (world.rank() == 0) saved = all;
      (void)train::save(folder, {.progress = {1, 1, 1, 1},
                                 .model = train::model_tensors(*p.model),
                                 .optimizer = p.optimizer->state().tensors});
    });
    run_ranks(to.ranks(), [&](World& world) {
      Parts p = made(to, 5);
      step(p, 6);  // so that there are states to fill
      train::LoadTarget target(*p.model, p.optimizer.get());
      const auto reader = train::load_first_whole(
          {folder.latest_first()},
          [&](const train::CheckpointReader& r) { return target.tensors(r.manifest()); }, {});
      EXPECT_NE(reader, nullptr) << what;
      const All got = whole(p);
      if (world.rank() == 0) {
        EXPECT_TRUE(got == saved) << what;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::mesh_tests
