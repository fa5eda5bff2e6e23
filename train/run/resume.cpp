// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/resume.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/train/checkpoint/differences.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/resume_checks.h"
#include "tessera/train/run/timing_impl.h"
#include "tessera/train/step/trained_model.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

struct Candidates {
  StepFolders steps;
  bool own = true;           // of this run, not of initial_load_path
  bool model_alone = false;  // initial_load_path has no steps, but model.safetensors
};

Candidates initial_checkpoints(const std::string& path) {
  if (any_steps_at(path).paths.empty() && open_model_file(path)) return {{}, false, true};
  return {steps_at(path), false};
}

// By rank 0.
Candidates choose_checkpoints(const CheckpointConfig& c, const CheckpointFolder& folder,
                              const Print& print) {
  if (!c.enable) return initial_checkpoints(c.initial_load_path);
  if (c.load_step >= 0) {
    Candidates one{{{folder.existing(c.load_step)}, IfDamaged::fail}, true};
    if (const int64_t newest = folder.steps().back(); newest > c.load_step) {
      print(fmt::format(
          "warning: {} also has later steps, up to step-{}: this run replaces them as it reaches "
          "them; until then, a run that loads the latest step resumes from there",
          folder.path(), newest));
    }
    return one;
  }
  StepFolders own{folder.latest_first()};
  if (!own.paths.empty() || c.initial_load_path.empty() || c.initial_load_in_hf)
    return {std::move(own), true};
  return initial_checkpoints(c.initial_load_path);
}

// A checkpoint that counted global batches is read if they had as many rows as here, as far as its
// configuration says.
int64_t rows_taken(const RunFacts& run, const Feed& feed, const CheckpointReader& from,
                   const Print& print) {
  const Manifest& m = from.manifest();
  if (run.config.checkpoint.excludes("dataloader")) return 0;
  if (!m.data_batches) return m.progress.data_rows;
  for (const auto& [field, before, now] : config_differences(m.config, run.config.json())) {
    if (field != "training.local_batch_size" && field != "training.global_batch_size" &&
        field != "ranks")
      continue;
    fail<DataError>("checkpoint", from.path(), " is of an earlier version, which counted ",
                    counted(*m.data_batches, "global batch"),
                    " taken from the data and not their rows, and ", field, " was ", before,
                    ", here it is ", now,
                    ": resume with the batch size and ranks of then and save, or begin the data "
                    "anew with --checkpoint.exclude_from_loading dataloader");
  }
  const int64_t rows = *m.data_batches * feed.rows_per_step();
  print(fmt::format("warning: {} counted {}, not rows: taken for {}, as of {}", from.path(),
                    counted(*m.data_batches, "global batch"), counted(rows, "row"),
                    counted(feed.share().parts, "rank")));
  return rows;
}

// A checkpoint being loaded into the parts of a run.
class Load {
 public:
  Load(const RunFacts& run, RunParts& parts, bool own, const Print& print)
      : run_(run), parts_(parts), own_(own), print_(print) {}

  // The tensors to fill from this checkpoint, the first whole one. Throws if it does not fit.
  std::vector<nn::NamedParameter> wanted(const CheckpointReader& from) {
    const Manifest& m = from.manifest();
    const CheckpointConfig& c = run_.config.checkpoint;
    const bool model_only = !own_ && c.initial_load_model_only;
    const bool complete = own_ && m.progress.step >= run_.config.training.steps;
    const bool with_optimizer =
        !model_only && !c.excludes("optimizer") && (m.has_optimizer() || !complete);
    target_.emplace(*parts_.model, with_optimizer ? parts_.optimizer.get() : nullptr,
                    models::names_elsewhere(*parts_.model));
    check_fits(run_, from, own_, with_optimizer, *target_, print_);
    if (!model_only) tell_changes(run_, parts_, from, print_);
    losses_ = Tensor();
    progress_ = model_only ? Progress{} : m.progress;
    if (!with_optimizer) progress_.optimizer_steps = 0;
    if (c.excludes("train_state")) progress_.step = 0;
    if (c.excludes("lr_scheduler")) progress_.schedule_step = 0;
    if (!model_only) progress_.data_rows = rows_taken(run_, *parts_.feed, from, print_);
    std::vector<nn::NamedParameter> tensors = target_->tensors(m);
    if (const auto there = m.train_state.find(kLosses);
        there != m.train_state.end() && progress_.step > 0) {
      losses_ = empty(there->second.shape, DType::f64);
      tensors.push_back({kLosses, losses_});
    }
    return tensors;
  }
  // After the tensors are filled.
  Progress finish(LossHistory& history) const {
    parts_.optimizer->set_steps(progress_.optimizer_steps);
    target_->set_steps(progress_.optimizer_steps);
    parts_.feed->seek(progress_.data_rows);
    if (losses_.defined()) history.restore(losses_);
    return progress_;
  }

 private:
  const RunFacts& run_;
  RunParts& parts_;
  bool own_;
  const Print& print_;
  Progress progress_;
  std::optional<LoadTarget> target_;
  Tensor losses_;
};

void load_model_alone(const CheckpointConfig& c, RunParts& parts, const Print& print) {
  const auto start = Clock::now();
  const std::string& path = c.initial_load_path;
  if (!c.initial_load_model_only)
    fail<ConfigError>("--checkpoint.initial_load_model_only", "false, but ", path,
                      " has saved its model alone: leave it out");
  on_all_or_none([&] {
    const auto from = open_model_file(path);
    const auto tensors = model_tensors(*parts.model);
    const TensorEntries there =
        without(from->manifest().model, models::names_elsewhere(*parts.model));
    if (const auto faults = tensor_differences(there, tensors); !faults.empty())
      fail<DataError>("checkpoint", path, " does not fit this run: ", first_few(faults, 3));
    from->fill(tensors);
  });
  print(fmt::format("loaded {} in {:.2f} s; training starts from its model", path,
                    seconds_since(start)));
}

// Nothing, if no checkpoint was found.
std::optional<Progress> load_checkpoint(const RunFacts& run, RunParts& parts,
                                        const CheckpointFolder& own, LossHistory& history,
                                        const Print& print) {
  const auto start = Clock::now();
  Candidates candidates;  // rank 0's
  on_all_or_none([&] {
    if (own_rank() == 0) candidates = choose_checkpoints(run.config.checkpoint, own, print);
  });
  if (text_of_first(candidates.model_alone ? "alone" : "").size() > 0) {
    load_model_alone(run.config.checkpoint, parts, print);
    return Progress();
  }
  const bool own_run = text_of_first(candidates.own ? "own" : "another's") == "own";
  Load load(run, parts, own_run, print);
  const auto from = load_first_whole(
      candidates.steps, [&](const CheckpointReader& reader) { return load.wanted(reader); }, print);
  if (!from) return std::nullopt;
  const Progress progress = load.finish(history);
  const std::string goes_on = own_run || progress.step > 0
                                  ? fmt::format("resumes after step {}", progress.step)
                                  : "starts from its model";
  print(fmt::format("loaded {} in {:.2f} s; training {}", from->path(), seconds_since(start),
                    goes_on));
  return progress;
}

void load_hugging_face(const std::string& folder, const RunFacts& run, RunParts& parts,
                       const Print& print) {
  const auto start = Clock::now();
  on_all_or_none([&] {
    const HfModelFolder from(folder, run.config.model, run.config.ignore_hf_fields,
                             !run.config.initial_hf.empty());
    if (const auto& names = from.model().passed_over; !names.empty())
      print(fmt::format("without effect here: {} of {}", first_few(names), kHfConfig));
    from.fill(model_tensors(*parts.model));
  });
  print(
      fmt::format("loaded {} in {:.2f} s; training starts from it", folder, seconds_since(start)));
}

}  // namespace

Progress resume(const RunFacts& run, RunParts& parts, const CheckpointFolder& own,
                LossHistory& history, const Print& print) {
  const NoGrad guard;
  const Patience patience;
  const CheckpointConfig& c = run.config.checkpoint;
  if (c.enable || (!c.initial_load_path.empty() && !c.initial_load_in_hf)) {
    if (const auto progress = load_checkpoint(run, parts, own, history, print)) return *progress;
  }
  if (const std::string folder = run.config.initial_hf_folder(); !folder.empty())
    load_hugging_face(folder, run, parts, print);
  else print(fmt::format("weights: random, of debug.seed {}", run.config.debug.seed));
  return {};
}

}  // namespace tessera::train
