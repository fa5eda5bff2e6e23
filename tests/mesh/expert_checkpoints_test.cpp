// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a decoder with experts on one mesh load on each other, bit for bit.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/tests/mesh/experts.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/config/optimizer.h"
#include "tessera/train/step/build_model.h"

#include <gtest/gtest.h>

namespace tessera::mesh_tests {
namespace {

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
    const train::Config c = with_experts({"qwen3"}, d, DType::f32, Mode::none, folder_);
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
  for (const auto& [from, to] : some_of(pairs, 10, fresh_seed())) {
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
