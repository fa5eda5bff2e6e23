// SPDX-License-Identifier: Apache-2.0
// Training on meshes of devices: losses and gradient norms are those of the same mesh on the CPU.
// Ranks are threads, each with a device of its own.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/tests/support/tiny_run.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <iterator>
#include <ostream>

namespace tessera::train {
namespace {

struct MeshRun {
  const char* name;
  int ranks;
  const char* fields;  // of parallelism, without its name, then others
  double tolerance = 1e-5;
  friend std::ostream& operator<<(std::ostream& os, const MeshRun& m) { return os << m.name; }
};

constexpr const char* kExperts =
    " --recipe qwen3_debugmodel_moe_small --model.dim 16 --model.n_layers 2 --model.n_heads 2 "
    "--model.n_kv_heads 1 --model.head_dim 8 --model.vocab_size 260 --model.num_experts 8 "
    "--model.top_k 2 --model.moe_inter_dim 12";

const MeshRun kMeshes[]{
    {"hsdp", 4, "data_parallel_replicate_degree=2 data_parallel_shard_degree=2"},
    {"tensor_in_shards", 4, "data_parallel_shard_degree=2 tensor_parallel_degree=2"},
    {"ring", 4,
     "data_parallel_shard_degree=1 context_parallel_degree=4 "
     "context_parallel_rotate_method=alltoall"},
    {"ulysses", 4,
     "data_parallel_shard_degree=2 context_parallel_degree=2 context_parallel_ulysses_degree=2"},
    {"experts", 4, "data_parallel_shard_degree=4 expert_parallel_degree=2"},
    {"accumulated", 2, "data_parallel_shard_degree=2 --training.global_batch_size 6"},
    // Its sums round in another order.
    {"mixed", 2,
     "data_parallel_shard_degree=2 --training.mixed_precision_param bfloat16 "
     "--training.global_batch_size 4",
     3e-2},
};

class MeshesCuda : public TinyRunTest, public testing::WithParamInterface<MeshRun> {
 protected:
  // Loss and gradient norm of each step.
  std::vector<double> measured(const std::string& device) {
    const MeshRun& mesh = GetParam();
    Words fields;
    std::istringstream words(mesh.fields);
    for (std::string word; words >> word;)
      fields.push_back(word.find('=') == std::string::npos ? word : "--parallelism." + word);
    if (std::string(mesh.name) == "experts") {
      std::istringstream model(kExperts);
      fields.insert(fields.end(), std::istream_iterator<std::string>(model), {});
    }
    const Words base{"--device", device, "--ranks", std::to_string(mesh.ranks),
                     // Adam's first step makes a whole step of a gradient of rounding errors.
                     "--optimizer.eps", "1e-4", "--training.mixed_precision_param", "float32",
                     "--training.steps", "3", "--training.local_batch_size", "1",
                     "--checkpoint.enable", "false", "--metrics.measure_ceiling", "false"};
    EXPECT_EQ(run(train(device, joined(base, fields))), 0) << err_.str();
    std::vector<double> all;
    std::ifstream file(path(device) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto at = nlohmann::json::parse(line);
      if (!at.contains("loss")) continue;
      all.push_back(at["loss"]);
      all.push_back(at["grad_norm"]);
    }
    return all;
  }
};

TEST_P(MeshesCuda, HaveTheLossesAndNormsOfTheCpu) {
  const MeshRun& mesh = GetParam();
  if (Process::get().cuda().device_count() < mesh.ranks)
    GTEST_SKIP() << "fewer than " << mesh.ranks << " devices";
  const std::vector<double> expected = measured("cpu"), found = measured("cuda");
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_EQ(found.size(), 6u);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double tolerance = (i % 2 ? 20 : 1) * mesh.tolerance;
    EXPECT_NEAR(found[i], expected[i], tolerance * std::abs(expected[i]))
        << (i % 2 ? "norm" : "loss") << " of step " << i / 2 + 1;
  }
}
INSTANTIATE_TEST_SUITE_P(Each, MeshesCuda, testing::ValuesIn(kMeshes),
                         [](const auto& mesh) { return std::string(mesh.param.name); });

}  // namespace
}  // namespace tessera::train
