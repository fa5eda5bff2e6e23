// SPDX-License-Identifier: Apache-2.0
// Steps whose values the host has not read: how many there may be, and a step among them that was
// not finite. It is found when the host next reads; no step until then has changed anything, and
// the run can go on from it, to the bits of one that never had it.
#include "tessera/core/context.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_experts.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/run/trainer.h"

#include <cmath>

namespace tessera::train {
namespace {

class DeviceUnreadSteps : public TinyRunTest {
 protected:
  // Of a run of which few steps are logged.
  [[nodiscard]] Config seldom_logged(const std::string& dump, const std::string& log_freq,
                                     const Words& model) const {
    return config(dump, joined({"--device", "cuda", "--checkpoint.enable", "false",
                                "--training.mixed_precision_param", "float32", "--training.steps",
                                "200", "--metrics.measure_ceiling", "false",
                                "--debug.replica_check_freq", "0", "--metrics.log_freq", log_freq},
                               model));
  }
  static void advance(Trainer& trainer, int steps) {
    for (int i = 0; i < steps; ++i) trainer.advance();
  }
  // Parameters, and the biases of routers.
  static std::vector<std::vector<double>> values(Trainer& trainer) {
    std::vector<std::vector<double>> all;
    for (const auto& t : model_tensors(trainer.model())) all.push_back(local(t.tensor).values());
    return all;
  }
  // Trains both from step 3 to the end of step 6: a trainer that has had a fault there and one that
  // has not.
  static void expect_alike(Trainer& trainer, Trainer& other) {
    for (Trainer* t : {&trainer, &other}) {
      const auto before = values(*t);
      advance(*t, 4);
      t->settle();
      EXPECT_TRUE(values(*t) != before);
      ASSERT_EQ(t->records().size(), 6u);
    }
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(trainer.records()[i].step, other.records()[i].step);
      EXPECT_EQ(trainer.records()[i].loss, other.records()[i].loss) << "step " << i + 1;
      EXPECT_EQ(trainer.records()[i].grad_norm, other.records()[i].grad_norm) << "step " << i + 1;
    }
    EXPECT_TRUE(values(trainer) == values(other));
  }
};

TEST_F(DeviceUnreadSteps, AreAtMost64) {
  const Config c = seldom_logged("a", "1000", tiny_model());
  const auto on_rank = [&](World&) {
    Trainer trainer(c);
    for (size_t step = 1; step <= 70; ++step) {
      trainer.advance();
      // The first is read at its end; 64 after it, when the device has the next one to do.
      ASSERT_EQ(trainer.records().size(), step <= 65 ? 1u : 65u) << "step " << step;
    }
    trainer.settle();
    ASSERT_EQ(trainer.records().size(), 70u);
    for (size_t i = 0; i < 70; ++i)
      EXPECT_EQ(trainer.records()[i].step, static_cast<int64_t>(i + 1));
  };
  run_ranks(1, on_rank, world_options(c));
}

TEST_F(DeviceUnreadSteps, AParameterThatIsNotFiniteIsFoundLater) {
  const Config c = seldom_logged("a", "100", tiny_model()),
               untouched = seldom_logged("b", "100", tiny_model());
  const auto on_rank = [&](World&) {
    Trainer trainer(c), other(untouched);
    for (Trainer* t : {&trainer, &other}) advance(*t, 2);
    const Tensor weight = local(test::parameter_of(trainer.model(), "norm.weight"));
    const Tensor kept = copy(weight);
    copy_bytes(weight, full(weight.shape(), INFINITY, DType::f32, cuda(0)));
    const auto before = values(trainer);
    advance(trainer, 3);
    EXPECT_EQ(trainer.records().size(), 1u);
    const std::string error = test::error_of<NumericError>([&] { trainer.settle(); });
    TESSERA_EXPECT_HOLDS(error, "[train] step 3: the loss is ");
    TESSERA_EXPECT_HOLDS(error, "parameter norm.weight already is not finite");
    EXPECT_EQ(trainer.records().size(), 2u);
    EXPECT_TRUE(values(trainer) == before);
    copy_bytes(weight, kept);
    expect_alike(trainer, other);
  };
  run_ranks(1, on_rank, world_options(c));
}

// An op of step 3 alone gives infinity. The steps after it are finite, and would train on. With
// every third step logged it is found when the device has step 4, with every hundredth later.
TEST_F(DeviceUnreadSteps, AStepThatAloneIsNotFiniteIsAsIfItHadNotBeen) {
  int run = 0;
  for (const Words& model : {tiny_model(), tiny_experts()}) {
    for (const std::string log_freq : {"3", "100"}) {
      SCOPED_TRACE(concat(model[1], ", every ", log_freq, " steps"));
      const Config c = seldom_logged(concat("a", run), log_freq, model),
                   untouched = seldom_logged(concat("b", run++), log_freq, model);
      const auto on_rank = [&](World&) {
        Trainer trainer(c), other(untouched);
        for (Trainer* t : {&trainer, &other}) advance(*t, 2);
        const auto before = values(trainer);
        Context& context = Context::current();
        bool once = true;
        context.op_hook = [&](const OpRow& row, const void*, Tensors, Tensors out) {
          if (row.name != "rms_norm" || !std::exchange(once, false)) return;
          const Tensor y = out[0].is_distributed() ? local(out[0]) : out[0];
          copy_bytes(y, full(y.shape(), INFINITY, y.dtype(), y.device()));
        };
        advance(trainer, 1);
        context.op_hook = nullptr;
        EXPECT_FALSE(once);
        const std::string error = test::error_of<NumericError>([&] {
          advance(trainer, 2);
          EXPECT_EQ(log_freq, "100");
          trainer.settle();
        });
        TESSERA_EXPECT_HOLDS(error, "[train] step 3: the loss is ");
        TESSERA_EXPECT_HOLDS(error, "running the step again did not show it");
        EXPECT_TRUE(values(trainer) == before);
        expect_alike(trainer, other);
      };
      run_ranks(1, on_rank, world_options(c));
    }
  }
}

}  // namespace
}  // namespace tessera::train
