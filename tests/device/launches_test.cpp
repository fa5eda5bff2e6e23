// SPDX-License-Identifier: Apache-2.0
// Which kernels a training step launches on a device, and how often: a step in bf16 takes those
// that read and write each tensor once.
#include "tessera/tests/device/counts.h"
#include "tessera/tests/support/tiny_experts.h"

#include <map>
#include <utility>

namespace tessera::train {
namespace {

using Launches = std::map<std::string, int64_t>;

class DeviceLaunches : public TinyRunTest {
 protected:
  void SetUp() override {
    using Count = void(cuda_emulation::Counts*);
    if (!test::device_function<Count>("cuda_emulation_counts"))
      GTEST_SKIP() << "only emulated devices count launches by name";
  }
  // Of a step in bf16, of rows that packs of 16 bytes fill: two steps less one.
  Launches of_step(const Words& model) {
    const Launches one = of_run("1", model);
    Launches step = of_run("2", model);
    for (const auto& [name, times] : one) step[name] -= times;
    std::erase_if(step, [](const auto& kernel) { return kernel.second == 0; });
    return step;
  }
  static int64_t count(const Launches& all, std::string_view part) {
    int64_t n = 0;
    for (const auto& [name, times] : all) n += name.find(part) == std::string::npos ? 0 : times;
    return n;
  }
  static std::string text_of(const Launches& all) {
    std::string text;
    for (const auto& [name, times] : all) text += concat(times, " ", name, "\n");
    return text;
  }

 private:
  Launches of_run(const std::string& steps, const Words& model) {
    const Words words = joined(
        split("train --device cuda --threads 1 --sample.tokens 0 --debug.seed 7 "
              "--training.mixed_precision_param bfloat16 --training.local_batch_size 1 "
              "--training.seq_len 64 --training.max_norm 0.001 --metrics.measure_ceiling false "
              "--checkpoint.enable false"),
        joined(model, {"--dataloader.path", path("text.txt"), "--dump_folder", path("out" + steps),
                       "--training.steps", steps}));
    const Launches before = test::device_counts().launches;
    EXPECT_EQ(run(words), 0) << err_.str();
    Launches all = test::device_counts().launches;
    for (const auto& [name, times] : before) all[name] -= times;
    return all;
  }
};

TEST_F(DeviceLaunches, ADenseStepReadsEachTensorOnce) {
  constexpr int64_t kLayers = 2, kNorms = 2 * kLayers + 1;
  const Launches step = of_step(
      split("--model.name llama3 --model.flavor debugmodel --model.dim 128 --model.n_layers 2 "
            "--model.n_heads 2 --model.n_kv_heads 1 --model.ffn_dim 256 --model.vocab_size 260"));
  SCOPED_TRACE(text_of(step));
  const std::pair<std::string_view, int64_t> expected[] = {
      {"rms_norm_cuda::forward_kernel<8", kNorms},
      {"norm_gradients<8", kNorms},  // the gradients of x and of the weight
      {"join_chunks", kNorms},
      {"row_sums", 0},
      {"rotate_packs<tessera::bf16, 8", 4 * kLayers},  // queries and keys, both ways
      {"rotate<", 0},
      {"mma_attention::forward_kernel", kLayers},  // documents, which cuDNN does not take
      {"mma_attention::query_kernel", 2 * kLayers},
      {"mma_attention::key_kernel", kLayers},
      {"swiglu_cuda::forward_kernel<8", kLayers},
      {"swiglu_cuda::backward_kernel<8", kLayers},
      {"whole_rows", 1},                          // the head's rows, gradients in their place
      {"add_kernel<tessera::bf16, 8>", 1},        // of the embedding
      {"CopyBits, unsigned short", 4 * kLayers},  // values; joined gradients of q, k, v
      {"scale_chunks", 0},                        // clipping is in AdamW's kernel
      {"step_kernel", 1},
  };
  for (const auto& [name, times] : expected) EXPECT_EQ(count(step, name), times) << name;
}

TEST_F(DeviceLaunches, AMixtureSortsItsPairs) {
  const Launches step = of_step(
      split("--recipe qwen3_debugmodel_moe_small --model.dim 64 --model.n_layers 2 "
            "--model.n_heads 2 --model.n_kv_heads 1 --model.head_dim 32 --model.vocab_size 260 "
            "--model.num_experts 8 --model.top_k 2 --model.moe_inter_dim 32"));
  SCOPED_TRACE(text_of(step));
  // Three sums a layer and that of the embedding, each of sorted places.
  EXPECT_EQ(count(step, "add_kernel"), 7);
  EXPECT_EQ(count(step, "find_starts"), 7);
  EXPECT_EQ(count(step, "put_in_order"), 0);
  EXPECT_EQ(count(step, "scale_chunks"), 0);
}

}  // namespace
}  // namespace tessera::train
