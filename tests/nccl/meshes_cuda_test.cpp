// SPDX-License-Identifier: Apache-2.0
// Training on meshes of devices: losses and gradient norms equal those of the same mesh on the CPU.
// Ranks are threads, each with a device of its own.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/tests/support/logged_losses.h"
#include "tessera/tests/support/tiny_experts.h"

#include <cmath>
#include <ostream>

namespace tessera::train {
namespace {

struct MeshRun {
  const char* name;
  int ranks;
  const char* fields;
  bool experts = false;
  double tolerance = 1e-5;
  friend std::ostream& operator<<(std::ostream& os, const MeshRun& m) { return os << m.name; }
};

const MeshRun kMeshes[]{
    {"hsdp", 4,
     "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 2"},
    {"tensor_in_shards", 4,
     "--parallelism.data_parallel_shard_degree 2 --parallelism.tensor_parallel_degree 2"},
    {"ring", 4,
     "--parallelism.data_parallel_shard_degree 1 --parallelism.context_parallel_degree 4 "
     "--parallelism.context_parallel_rotate_method alltoall"},
    {"ulysses", 4,
     "--parallelism.data_parallel_shard_degree 2 --parallelism.context_parallel_degree 2 "
     "--parallelism.context_parallel_ulysses_degree 2"},
    {"experts", 4,
     "--parallelism.data_parallel_shard_degree 4 --parallelism.expert_parallel_degree 2", true},
    {"accumulated", 2, "--parallelism.data_parallel_shard_degree 2 --training.global_batch_size 6"},
    // bf16 rounds sums that are made in another order to other values.
    {"mixed", 2,
     "--parallelism.data_parallel_shard_degree 2 --training.global_batch_size 4 "
     "--training.mixed_precision_param bfloat16",
     false, 3e-2},
};

class MeshesCuda : public TinyRunTest, public testing::WithParamInterface<MeshRun> {
 protected:
  std::vector<std::pair<double, double>> measured(const std::string& device) {
    const MeshRun& mesh = GetParam();
    const Words base{"--device", device, "--ranks", std::to_string(mesh.ranks),
                     // Adam's first step makes a whole step of a gradient of rounding errors.
                     "--optimizer.eps", "1e-4", "--training.mixed_precision_param", "float32",
                     "--training.steps", "3", "--training.local_batch_size", "1",
                     "--checkpoint.enable", "false", "--metrics.measure_ceiling", "false"};
    const Words model = mesh.experts ? tiny_experts() : Words{};
    EXPECT_EQ(run(train(device, joined(joined(base, split(mesh.fields)), model))), 0) << err_.str();
    return test::logged_losses_and_norms(path(device));
  }
};

TEST_P(MeshesCuda, HaveTheLossesAndNormsOfTheCpu) {
  const MeshRun& mesh = GetParam();
  if (Process::get().cuda().device_count() < mesh.ranks)
    GTEST_SKIP() << "fewer than " << mesh.ranks << " devices";
  const auto expected = measured("cpu"), found = measured("cuda");
  ASSERT_EQ(expected.size(), 3u);
  ASSERT_EQ(found.size(), 3u);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto [loss, norm] = expected[i];
    EXPECT_NEAR(found[i].first, loss, mesh.tolerance * std::abs(loss)) << "step " << i + 1;
    EXPECT_NEAR(found[i].second, norm, 20 * mesh.tolerance * std::abs(norm)) << "step " << i + 1;
  }
}
INSTANTIATE_TEST_SUITE_P(Each, MeshesCuda, testing::ValuesIn(kMeshes),
                         [](const auto& mesh) { return std::string(mesh.param.name); });

}  // namespace
}  // namespace tessera::train
