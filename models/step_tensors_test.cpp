// SPDX-License-Identifier: Apache-2.0
// The tensors of a training step. In bf16 on a mesh of fully_shard and tensor parallelism: at every
// op the dtype that a distributed tensor reports is that of its local one, parameters, gradients
// and optimizer states stay f32, layers compute in bf16, and gradients are reduced in the dtype of
// the policy. Replicated: parameters, gradients and states lie on the axes that hold them alone.
#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/tensor_parallel.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace tessera::models {
namespace {

// What a step has shown of dtypes.
struct Seen {
  int64_t ops = 0, distributed = 0;
  std::set<std::string> wrong;                      // ops of tensors that say another dtype
  std::map<std::string, std::set<DType>> computed;  // floating inputs of ops that layers call

  void look(const OpRow& row, Tensors in, Tensors out) {
    ++ops;
    for (const Tensors& tensors : {in, out}) {
      for (const Tensor& t : tensors) {
        if (!t.defined() || !t.is_distributed()) continue;
        ++distributed;
        if (t.dtype() != local(t).dtype()) wrong.insert(std::string(row.name));
      }
    }
    // Buckets copy from one dtype to another, and tables of rotations are f32.
    if (Context::current().module_path.empty() || trace_tag() == "grad") return;
    if (row.name == "assign_" || row.name == "rope") return;
    for (const Tensor& t : in) {
      if (t.defined() && is_floating(t.dtype())) computed[std::string(row.name)].insert(t.dtype());
    }
  }
};

class StepTensors : public testing::TestWithParam<const char*> {};

TEST_P(StepTensors, HaveTheDtypesOfLocalTensorsAndOfThePolicy) {
  for (const DType reduce : {DType::f32, DType::bf16}) {
    test::on_ranks(4, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 2}});
      const auto model = test::small_decoder(GetParam(), 2, DType::f32, 0.1).make();
      nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
      fully_shard(*model, mesh, {{"dp_shard"}, {"dp_replicate"}},
                  {.precision = {.param = DType::bf16, .reduce = reduce}});
      nn::initialize(*model, 5, nn::laid_out(*model, mesh));
      optim::AdamW optimizer(nn::parameters(*model), {.lr = 1e-2});
      const Metadata metadata = model->metadata(6);
      Seen seen;
      const CommTrace trace;
      Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors out) {
        seen.look(row, in, out);
      };
      for (int step = 0; step < 2; ++step) {
        const Tensor tokens =
            distribute(full({4, 6}, 3, DType::i64), Layout::of(mesh, {{"dp_shard", Shard(0)}}));
        backward(model->loss(tokens, tokens, metadata).sum);
        for (const Tensor& p : nn::parameters(*model)) {
          EXPECT_EQ(p.dtype(), DType::f32);
          EXPECT_EQ(p.grad().dtype(), DType::f32);
          EXPECT_EQ(local(p.grad()).dtype(), DType::f32);
          EXPECT_EQ(layout_of(p.grad()), layout_of(p));
          EXPECT_EQ(layout_of(p).placement("dp_shard").kind, tessera::Placement::Kind::shard);
        }
        (void)optim::clip_grad_norm_(nn::parameters(*model), 1);
        optimizer.step();
        optimizer.zero_grad();
      }
      Context::current().op_hook = nullptr;
      EXPECT_EQ(seen.wrong, std::set<std::string>());
      EXPECT_GT(seen.distributed, seen.ops / 2);
      for (const auto& [op, dtypes] : seen.computed) EXPECT_EQ(dtypes, std::set{DType::bf16}) << op;
      for (const char* op : {"matmul", "scaled_dot_product_attention", "linear_cross_entropy"})
        EXPECT_TRUE(seen.computed.contains(op)) << op;
      int gathers = 0, reductions = 0;
      for (const CommEntry& e : trace.entries()) {
        if (e.op == "all_gather" && e.axes == "dp_shard") {
          ++gathers;
          EXPECT_EQ(e.dtype, DType::bf16);
        } else if (e.op == "reduce_scatter" && e.axes == "dp_shard") {
          ++reductions;
          EXPECT_EQ(e.dtype, reduce);
        }
      }
      EXPECT_GT(gathers, 0);
      EXPECT_GT(reductions, 0);
    });
  }
}

TEST_P(StepTensors, OfReplicasLieOnTheAxesThatHoldThem) {
  for (const int degree : {1, 2}) {
    test::on_ranks(2 * degree, [&](World&) {
      const Mesh mesh = Mesh::make({{"dp_replicate", 2}, {"dp_shard", 1}, {"tp", degree}});
      const auto model = test::small_decoder(GetParam(), 2, DType::f32, 0.1).make();
      if (degree > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
      nn::apply_activation_checkpoint(model->units(),
                                      {.mode = nn::ActivationCheckpointConfig::Mode::selective});
      replicate(*model, mesh, "dp_replicate");
      nn::initialize(*model, 5, nn::laid_out(*model, mesh));
      optim::AdamW optimizer(nn::parameters(*model), {.lr = 1e-2});
      const Tensor tokens =
          distribute(full({4, 6}, 3, DType::i64), Layout::of(mesh, {{"dp_replicate", Shard(0)}}));
      backward(model->loss(tokens, tokens, model->metadata(6)).sum);
      const auto check = [&](const Tensor& t) {
        const Layout layout = layout_of(t);
        EXPECT_EQ(layout.mesh().text(),
                  degree > 1 ? "mesh(dp_replicate=2, tp=2)" : "mesh(dp_replicate=2)");
        EXPECT_EQ(layout.placement("dp_replicate"), Replicate());
      };
      for (const Tensor& p : nn::parameters(*model)) check(p), check(p.grad());
      optimizer.step();
      const optim::OptimizerState state = optimizer.state();
      EXPECT_EQ(state.tensors.size(), 2 * nn::parameters(*model).size());
      for (const auto& s : state.tensors) check(s.tensor);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StepTensors, testing::Values("llama3", "gpt2"));

}  // namespace
}  // namespace tessera::models
