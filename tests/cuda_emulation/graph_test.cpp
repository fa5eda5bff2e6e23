// SPDX-License-Identifier: Apache-2.0
// Training steps as launches of a CUDA graph: what changes from one to the next lies on the device.
#include "tessera/autograd/autograd.h"
#include "tessera/core/cuda_graph.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kLength = 8, kReserve = 16 << 20;

// A model, its optimizer and a batch that is written anew for each step.
class Trainee {
 public:
  Trainee() {
    nn::initialize(model_, 5, cuda(0));
    metadata_ = model_.metadata(kLength);
    optimizer_ = std::make_unique<optim::AdamW>(
        nn::parameters(model_), optim::AdamWOptions{.lr = 1e-2, .capturable = true});
  }
  void write_batch(int number) {
    std::vector<double> ids(kLength);
    for (Tensor* t : {&tokens_, &targets_}) {
      for (double& id : ids) id = static_cast<double>(++drawn_ * 7 * (number + 1) % 31);
      copy_bytes(*t, from_values(ids, {1, kLength}, DType::i64));
    }
  }
  Tensor step() {
    optimizer_->zero_grad();
    const models::Loss loss = model_.loss(tokens_, targets_, metadata_);
    const Tensor mean = loss.sum * reciprocal(cast(loss.count, DType::f32));
    backward(mean);
    const NoGrad guard;
    optimizer_->step({}, optim::grad_norm(optimizer_->parameters(), 1).factor);
    return mean.detach();
  }
  optim::AdamW& optimizer() { return *optimizer_; }

 private:
  llama3::Model model_{{.dim = 16,
                        .n_layers = 1,
                        .n_heads = 2,
                        .n_kv_heads = 1,
                        .ffn_dim = 24,
                        .vocab_size = 31,
                        .max_seq_len = kLength}};
  models::Metadata metadata_;
  std::unique_ptr<optim::AdamW> optimizer_;
  Tensor tokens_ = empty({1, kLength}, DType::i64, cuda(0)), targets_ = empty_like(tokens_);
  int drawn_ = 0;
};

TEST(CudaGraphs, LaunchesHaveTheLossesOfTheirSteps) {
  const Session session({.threads = 1, .deterministic = true});
  constexpr int kSteps = 6, kEager = 2;
  const auto losses = [](bool graphed) {
    Trainee trainee;
    std::vector<double> all;
    Ref<CudaGraph> graph;
    Tensor loss;
    for (int i = 0; i < kSteps; ++i) {
      trainee.write_batch(i);
      if (!graphed || i < kEager) {
        loss = trainee.step();
      } else {
        if (!graph) graph = capture_graph(cuda(0), kReserve, [&] { loss = trainee.step(); });
        graph->launch();
      }
      all.push_back(loss.item());
    }
    return all;
  };
  const std::vector<double> eager = losses(false), graphed = losses(true);
  for (int i = 0; i < kSteps; ++i)
    EXPECT_NEAR(graphed[static_cast<size_t>(i)], eager[static_cast<size_t>(i)], 1e-6) << i;
  EXPECT_NE(eager[2], eager[3]);
}

TEST(CudaGraphs, RefuseALearningRateThatTheHostChanges) {
  const Session session({.threads = 1});
  Trainee trainee;
  trainee.write_batch(0);
  (void)trainee.step();
  const auto capture = [&] {
    return capture_graph(cuda(0), kReserve, [&] { (void)trainee.step(); });
  };
  trainee.optimizer().set_lr(1e-3);
  EXPECT_NE(test::error_of<UsageError>([&] { (void)capture(); }).find("a copy from the host"),
            std::string::npos);
  (void)trainee.step();  // writes it
  EXPECT_NO_THROW((void)capture());
  EXPECT_THROW((void)capture_graph(kCpu, 0, [] {}), DeviceError);
}

}  // namespace
}  // namespace tessera
