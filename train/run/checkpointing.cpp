// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/checkpointing.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/exchange/writer.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/run/timing_impl.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::train {
namespace {

double mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string not_saved(int64_t step, const Error& error) {
  return fmt::format("warning: step {} was not saved, and training goes on: {}", step,
                     error.what());
}

}  // namespace

Checkpointing::Checkpointing(const RunFacts& run, RunParts& parts, const RunFolder& folder,
                             const LossHistory& history, const Print& print)
    : run_(run), parts_(parts), folder_(folder), history_(history), print_(print) {}

// Requests of signals and the state of the save in flight travel in one reduction, which the ranks
// make between steps anyway.
Checkpointing::Due Checkpointing::due(int64_t done) {
  const CheckpointConfig& c = run_.config.checkpoint;
  stopped_by_ = SignalRequest::none;
  const Tensor told = empty({2}, DType::i64);
  told.data<int64_t>()[0] = request_code();
  told.data<int64_t>()[1] = in_flight_ && !in_flight_->written() ? 1 : 0;
  World::current().group().all_reduce(told)->wait();
  const SignalRequest request = agreed_request(told.data<int64_t>()[0]);
  if (!c.enable && request == SignalRequest::save)
    print_(
        fmt::format("SIGUSR1 after step {}: nothing is saved without --checkpoint.enable", done));
  if (told.data<int64_t>()[1] == 0) finish_save();
  if (done >= run_.config.training.steps) return c.enable ? Due::last : Due::nothing;
  if (request == SignalRequest::terminate) return Due::terminate;
  if (request == SignalRequest::interrupt) return Due::interrupt;
  const bool first = done == 1 && c.enable_first_step_checkpoint;
  const bool save = request == SignalRequest::save || done % c.interval == 0 || first;
  return c.enable && save ? Due::save : Due::nothing;
}

void Checkpointing::follow(Due due, const Progress& progress) {
  const CheckpointConfig& c = run_.config.checkpoint;
  switch (due) {
    case Due::nothing: return;
    case Due::last:
      save(progress, c.last_save_model_only);
      if (c.last_save_in_hf) save_hugging_face(progress.step);
      return;
    case Due::terminate: return stop(SignalRequest::terminate, progress);
    case Due::interrupt: return stop(SignalRequest::interrupt, progress);
    case Due::save: break;
  }
  try {
    if (c.async_mode == AsyncMode::async) begin_save(progress);
    else save(progress);
  } catch (const IoError& error) {
    print_(not_saved(progress.step, error));
  }
}

void Checkpointing::stop(SignalRequest by, const Progress& progress) {
  if (run_.config.checkpoint.enable) save(progress);
  stopped_by_ = by;
  const std::string how =
      !run_.config.checkpoint.enable
          ? "only the model is kept; with --checkpoint.enable a run can be resumed"
          : fmt::format("the same command{} resumes from there",
                        folder_.overwrites() ? " without --overwrite" : "");
  print_(fmt::format("stopped by {} after step {}; {}",
                     by == SignalRequest::interrupt ? "SIGINT" : "SIGTERM", progress.step, how));
}

Checkpoint Checkpointing::checkpoint(const Progress& progress, bool model_only) const {
  Checkpoint c{.progress = progress,
               .seed = static_cast<uint64_t>(run_.config.debug.seed),
               .config = run_.config.json(),
               .data_windows = parts_.windows(),
               .model = model_tensors(*parts_.model),
               .optimizer = {},
               .data = run_.data,
               .mesh = parts_.mesh.text(),
               .products = products_on(run_.device),
               .tokenizer = run_.tokenizer};
  if (model_only) {
    for (auto& [name, t] : c.model)
      if (is_floating(t.dtype())) t = cast(t, run_.config.checkpoint.exported_dtype());
    return c;
  }
  c.optimizer = parts_.optimizer->state().tensors;
  c.train_state.push_back({kLosses, history_.tensor()});
  return c;
}

void Checkpointing::save(const Progress& progress, bool model_only) {
  const NoGrad guard;
  finish_save();
  const auto start = Clock::now();
  const uint64_t bytes = train::save(folder_.checkpoints(), checkpoint(progress, model_only));
  saved(progress.step, bytes, seconds_since(start));
}

// Begins a save without waiting for its files, after the save in flight, if there is one.
void Checkpointing::begin_save(const Progress& progress) {
  const NoGrad guard;
  finish_save();
  const Patience patience;
  in_flight_ = std::make_unique<BackgroundSave>(folder_.checkpoints(), checkpoint(progress, false));
}

// Commits the save in flight, which it waits for. One that cannot be written is a warning.
void Checkpointing::finish_save() {
  if (!in_flight_) return;
  const Patience patience;
  const auto start = Clock::now();
  const std::unique_ptr<BackgroundSave> save = std::move(in_flight_);
  try {
    const uint64_t bytes = save->finish();
    saved(save->saving().step(), bytes, seconds_since(start));
  } catch (const IoError& error) {
    print_(not_saved(save->saving().step(), error));
  }
}

void Checkpointing::saved(int64_t step, uint64_t bytes, double seconds) const {
  if (own_rank() != 0) return;
  folder_.checkpoints().purge(run_.config.checkpoint.keep_latest_k, step);
  print_(fmt::format("saved {}, {:.1f} MiB in {:.2f} s", folder_.checkpoints().folder_of(step),
                     mebibytes(bytes), seconds));
}

// From the checkpoint just saved: no rank holds a whole model, and a run on any mesh writes the
// files of a run on one rank.
void Checkpointing::save_hugging_face(int64_t step) const {
  const Patience patience;
  const auto start = Clock::now();
  on_all_or_none([&] {
    if (own_rank() != 0) return;
    const CheckpointReader from(folder_.checkpoints().folder_of(step));
    const HfOutput output{.folder = io::below(from.path(), "hugging_face"),
                          .field = "checkpoint.last_save_in_hf",
                          .dtype = stored_dtype(from),
                          .tokenizer = run_.tokenizer,
                          .assets = run_.config.hf_assets_path,
                          .special_tokens = run_.config.special_tokens,
                          .answer_end = run_.chat ? run_.chat->end_of_answer() : -1};
    const uint64_t bytes = write_hugging_face(output, run_.config.model, from, {});
    folder_.checkpoints().set_mode(output.folder);
    print_(fmt::format("wrote {}, {:.1f} MiB in {:.2f} s", output.folder, mebibytes(bytes),
                       seconds_since(start)));
  });
}

}  // namespace tessera::train
