// SPDX-License-Identifier: Apache-2.0
// With activation checkpointing each layer of a pipeline runs twice for a micro-batch: in its
// forward and, once, in its backward, under every schedule.
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;

constexpr int64_t kLayers = 4;

struct Runs {
  int forward = 0, backward = 0;
  bool operator==(const Runs&) const = default;
};
void PrintTo(const Runs& runs, std::ostream* out) {
  *out << runs.forward << " in forward, " << runs.backward << " in backward";
}

nn::ActivationCheckpointConfig config_of(Mode mode, const std::string& option) {
  nn::ActivationCheckpointConfig config;
  config.mode = mode;
  config.selective_option = option;
  return config;
}

/// How often each layer of this rank ran for each micro-batch of a step.
std::map<std::string, Runs> runs_of(const std::string& family, const PipelineSchedule& schedule,
                                    const nn::ActivationCheckpointConfig& checkpoint) {
  const ModelConfig config = test::small_decoder(family, kLayers, DType::f32, 0);
  const auto ranks = static_cast<int>(schedule.ranks.size());
  PipelinedModel model([&] { return config.make(); },
                       split_parts(config.make()->parts(), schedule.stages()), schedule,
                       Mesh::make({{"pp", ranks}}));
  nn::initialize(model, 3);
  Action now;
  std::map<std::string, Runs> runs;
  for (const auto& stage : model.stages()) {
    nn::apply_activation_checkpoint(stage.model->units(), checkpoint);
    for (const nn::NamedModule& m : nn::named_modules(*stage.model)) {
      // The first module inside of the layer, whose own hooks do not run again.
      if (!m.name.starts_with("layers.") || !m.name.ends_with(".attention_norm")) continue;
      m.module->register_forward_pre_hook(
          [&now, &runs, name = m.name](const nn::Module&, TensorList&) {
            Runs& of = runs[concat(name, " of micro-batch ", now.micro_batch)];
            ++(now.kind == ActionKind::forward ? of.forward : of.backward);
            EXPECT_EQ(trace_tag() == "grad", computes(now.kind) && now.kind != ActionKind::forward);
          });
    }
  }
  std::vector<StepBatch> batches;
  for (int m = 0; m < schedule.micro_batches; ++m)
    batches.push_back({test::two_rows(), test::their_targets(), model.metadata(4)});
  model.step(batches,
             {.begin = [](int) {},
              .loss = [](const Loss& loss) { return loss.sum; },
              .auxiliary = [](size_t, const StageOutput&) { return Tensor(); }},
             [&](const Action& action, const std::function<void()>& run) {
               now = action;
               run();
             });
  return runs;
}

TEST(PipelinedModel, RecomputesEachLayerOnceForAMicroBatch) {
  for (const NamedSchedule& named : named_schedules()) {
    const ScheduleShape shape{2, named.several_stages ? 2 : 1, 4};
    const PipelineSchedule schedule = make_schedule(named.name, shape);
    for (const std::string family : {"llama3", "gpt2"}) {
      for (const auto& [mode, option] : {std::pair(Mode::none, "op"),
                                         {Mode::full, "op"},
                                         {Mode::selective, "op"},
                                         {Mode::selective, "1"}}) {
        SCOPED_TRACE(
            concat(named.name, ", ", family, ", mode ", static_cast<int>(mode), ' ', option));
        const Runs expected{1, mode == Mode::none ? 0 : 1};
        std::atomic<size_t> all = 0;
        test::on_ranks(shape.ranks, [&, mode = mode, option = option](World&) {
          const auto runs = runs_of(family, schedule, config_of(mode, option));
          all += runs.size();
          for (const auto& [layer, of] : runs) EXPECT_EQ(of, expected) << layer;
        });
        EXPECT_EQ(all, static_cast<size_t>(kLayers * shape.micro_batches));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::models
