// SPDX-License-Identifier: Apache-2.0
// The step after a part of a checkpoint was left out, by the weights that it makes: those that
// AdamW, written out here, makes of the checkpoint's weights with the moments, the number of steps,
// the learning rate and the rows that are left.
#include "tessera/core/context.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/run/trainer.h"

#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

using Values = std::map<std::string, std::vector<double>>;  // by parameter

constexpr int64_t kSaved = 5, kRowsPerStep = 4;

// A step as rank 0 sees it.
struct SeenStep {
  int64_t first_row = -1, step = 0;
  double printed_lr = 0;
  Values before, gradients, after;  // gradients: clipped
};

struct Case {
  std::string left_out;
  int64_t step;             // that follows, from 1
  int64_t optimizer_steps;  // before it; 0: moments are zeros
  int64_t schedule_step;    // from 0
  int64_t first_row;
};

class LeftOutParts : public TinyRunTest {
 protected:
  // In f64. The rate grows over eight steps and falls after them, so each step has its own.
  [[nodiscard]] Config run_config(const std::string& dump, const Words& more) const {
    return config(dump, joined({"--training.dtype", "float64", "--training.mixed_precision_param",
                                "float64", "--training.global_batch_size",
                                std::to_string(kRowsPerStep), "--training.max_norm", "0.5",
                                "--lr_scheduler.warmup_steps", "8", "--optimizer.weight_decay",
                                "0.3", "--optimizer.param_groups", "norm lr=3e-2 weight_decay=0"},
                               more));
  }

  // Rows that are all different; the first that is asked for is noted.
  static BatchSource rows(int64_t* first = nullptr) {
    return [first](int64_t row, int64_t count) -> Batch {
      if (first && *first < 0) *first = row;
      Batch batch{empty({count, 16}, DType::i64), empty({count, 16}, DType::i64)};
      for (int64_t i = 0; i < count * 16; ++i) {
        const int64_t at = row * 16 + i;
        batch.tokens.data<int64_t>()[i] = (at * at + 3 * at) % 260;
        batch.targets.data<int64_t>()[i] = (at * 17 + 5) % 260;
      }
      return batch;
    };
  }

  // The next step of a run.
  static SeenStep next_step(const Config& config, int ranks) {
    SeenStep seen;
    const auto on_rank = [&](World& world) {
      const bool first = world.rank() == 0;
      const BatchSource source = rows(first ? &seen.first_row : nullptr);
      Trainer trainer(config, {}, nullptr, source);
      const auto read = [&](Values& to, const std::function<Tensor(const Tensor&)>& of, double by) {
        for (const auto& p : nn::named_parameters(trainer.model())) {
          std::vector<double> whole = trial::whole_values(of(p.tensor));
          for (double& value : whole) value *= by;
          if (first) to[p.name] = whole;
        }
      };
      const auto itself = [](const Tensor& p) { return p; };
      read(seen.before, itself, 1);
      Context& context = Context::current();
      bool looking = true;
      context.op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors) {
        if (row.name != "adamw_" || !std::exchange(looking, false)) return;
        const NoGrad guard;
        const double factor = in[3].item();  // of clipping
        read(
            seen.gradients, [](const Tensor& p) { return p.grad(); }, factor);
      };
      const StepRecord record = trainer.step();
      context.op_hook = nullptr;
      read(seen.after, itself, 1);
      if (!first) return;
      seen.step = record.step;
      seen.printed_lr = record.lr;
    };
    run_ranks(ranks, on_rank, world_options(config));
    return seen;
  }
};

// The weights of a step that begins with a checkpoint's weights.
Values adamw(const Config& config, const Case& c, const SeenStep& step,
             const CheckpointReader& from) {
  const OptimizerConfig& o = config.optimizer;
  const double warm = std::min(1.0, static_cast<double>(c.schedule_step + 1) / 8),
               at = static_cast<double>(c.optimizer_steps + 1);
  Values after;
  for (const auto& [name, gradient] : step.gradients) {
    const bool norm = name.find("norm") != name.npos;
    const double lr = warm * (norm ? 3e-2 : o.lr), decay = norm ? 0 : o.weight_decay;
    std::vector<double> w = from.read(name).values(), m(w.size(), 0), v = m;
    if (c.optimizer_steps > 0) {
      m = from.read(name + ".exp_avg").values();
      v = from.read(name + ".exp_avg_sq").values();
    }
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i], mean = o.beta1 * m[i] + (1 - o.beta1) * g,
                   square = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      w[i] -= lr * decay * w[i] + lr * (mean / (1 - std::pow(o.beta1, at))) /
                                      (std::sqrt(square / (1 - std::pow(o.beta2, at))) + o.eps);
    }
    after[name] = w;
  }
  return after;
}

void expect_near(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    const std::vector<double>& own = got.at(name);
    ASSERT_EQ(own.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(own[i], values[i], tolerance * (1 + std::abs(values[i]))) << name << ' ' << i;
  }
}

TEST_F(LeftOutParts, TheNextStepUsesThePartsThatWereLoaded) {
  constexpr int64_t kRows = kSaved * kRowsPerStep;
  const std::vector<Case> cases{
      {"", kSaved + 1, kSaved, kSaved, kRows},
      {"optimizer", kSaved + 1, 0, kSaved, kRows},
      {"lr_scheduler", kSaved + 1, kSaved, 0, kRows},
      {"dataloader", kSaved + 1, kSaved, kSaved, 0},
      {"optimizer,lr_scheduler", kSaved + 1, 0, 0, kRows},
      {"lr_scheduler,train_state", 1, kSaved, 0, kRows},
      {"optimizer,lr_scheduler,dataloader,train_state", 1, 0, 0, 0},
  };
  for (const int ranks : {1, 2}) {
    const Words local{"--training.local_batch_size", std::to_string(2 / ranks)};
    const std::string saved = concat("saved", ranks);
    const Words all{"--ranks",
                    std::to_string(ranks),
                    "--training.steps",
                    std::to_string(kSaved),
                    "--lr_scheduler.total_steps",
                    "20"};
    const Config first = run_config(saved, joined(local, all));
    run_ranks(
        ranks, [&](World&) { Trainer(first, {}, nullptr, rows()).run(); }, world_options(first));
    const CheckpointReader from(CheckpointFolder(path(saved + "/checkpoint")).folder_of(kSaved));
    for (const Case& c : cases) {
      SCOPED_TRACE(concat(ranks, " ranks without '", c.left_out, "'"));
      fs::remove_all(path("next"));
      fs::copy(path(saved), path("next"), fs::copy_options::recursive);
      const Config config =
          run_config("next", joined(local, {"--checkpoint.exclude_from_loading", c.left_out,
                                            "--lr_scheduler.total_steps", "20"}));
      const SeenStep step = next_step(config, ranks);
      const Session session;
      EXPECT_EQ(step.step, c.step);
      EXPECT_EQ(step.first_row, c.first_row);
      for (const auto& [name, weights] : step.before)
        ASSERT_EQ(weights, from.read(name).values()) << name;
      expect_near(step.after, adamw(config, c, step, from), 1e-12);
      EXPECT_NEAR(step.printed_lr,
                  config.optimizer.lr * static_cast<double>(c.schedule_step + 1) / 8, 1e-15);
    }
  }
}

}  // namespace
}  // namespace tessera::train
