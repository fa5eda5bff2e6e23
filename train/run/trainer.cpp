// SPDX-License-Identifier: Apache-2.0
// The folder is locked first, and data and checkpoint are read before a run's files are written. A
// step first counts the tokens of all its micro-batches and scales the loss by the count, so
// gradients accumulate, are reduced once, and are clipped where the optimizer reads them. No op of
// a step waits for a value on the host: a flag makes the update of a step that is not finite, and
// of all steps after it, do nothing. On a device the values of steps stay there until one is
// logged, and the host waits for those while the device has the next step to do.
#include "tessera/train/run/trainer.h"

#include "tessera/core/message.h"
#include "tessera/core/out_of_memory.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/train/monitor/plot.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/announce.h"
#include "tessera/train/run/non_finite_cause.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/run/resume.h"
#include "tessera/train/run/samples.h"
#include "tessera/train/run/timing_impl.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace tessera::train {
Trainer::Trainer(const Config& config, Print print, Screen* screen, BatchSource source)
    : world_(World::current()),
      print_(print && world_.rank() == 0 ? std::move(print) : [](const std::string&) {}),
      run_(agreed_facts(config, !source, print_)),
      folder_(run_.config, print_),
      parts_(make_run_parts(run_.config, run_.device, run_.tokenizer, std::move(source))),
      checkpoints_(run_, parts_, folder_, history_, print_),
      queue_(parts_.feed->tokens_per_step()) {
  // config.json must not ask for it again when a run is repeated or resumed from that file.
  run_.config.overwrite = false;
  const auto of_text = [](const auto& data) { return data && data->is_of_text(); };
  if (parts_.data && !of_text(parts_.data) && !of_text(parts_.validation) &&
      run_.config.tokenizer_path().empty()) {
    run_.tokenizer = std::make_shared<NoTokenizer>(
        "the data is token ids, and no tokenizer is named: give it as --hf_assets_path");
  }
  // Bad data is found before anything is written or trained.
  for (const auto* data : {&parts_.data, &parts_.validation})
    if (*data) (void)(*data)->info();
  folder_.remove_old_results();
  const Progress from = resume(run_, parts_, folder_.checkpoints(), history_, print_);
  done_ = from.step;
  schedule_start_ = from.step - from.schedule_step;
  check_replicas("train", models::whole_tensors(model()), concat("before step ", done_ + 1));
  // Before the metrics, so that a run that was killed here is known as the same one. A run that is
  // complete keeps the configuration with which it was trained.
  if (world_.rank() == 0 && done_ < run_.config.training.steps)
    io::write_file_atomically(folder_.file("config.json"), run_.config.json());
  begin_monitor(screen);
  if (world_.rank() == 0) announce(run_, parts_, print_);
}

void Trainer::begin_monitor(Screen* screen) {
  const Config& c = run_.config;
  monitor_ = std::make_unique<Monitor>(
      c.metrics, c.profiler,
      MonitorFacts{.dump_folder = c.dump_folder,
                   .steps = c.training.steps,
                   .tokens_per_step = parts_.feed->tokens_per_step(),
                   .done = done_,
                   .compute = c.training.mixed_precision_param,
                   .device = run_.device,
                   .parameters = parts_.parameters,
                   .optimizer_bytes = parts_.optimizer->state_bytes(),
                   .gathered_bytes = [this] { return nn::whole_parameter_bytes(model()); }},
      world_, print_, screen);
}

Around Trainer::phases() {
  return [this](const StepPart& part, const std::function<void()>& run) {
    const auto phase = monitor_->phase(part.name, part.text());
    run();
  };
}

void Trainer::run() {
  const auto start = Clock::now();
  const Config& c = run_.config;
  if (done_ >= c.training.steps) {
    print_(fmt::format("nothing is left to train: {} done, and training.steps is {}",
                       counted(done_, "step"), c.training.steps));
    return write_model();
  }
  while (done_ < c.training.steps) {
    advance();
    if (c.validation.enable && (done_ == 1 || done_ % c.validation.freq == 0)) validate();
    if (checkpoint_or_stop()) break;
  }
  settle();
  monitor_->finish();
  print_memory_of_pipeline();
  const bool stopped = stops(stopped_by());
  if (!stopped) print_(fmt::format("training completed in {}", duration(seconds_since(start))));
  if (!stopped || !c.checkpoint.enable) write_model();
}

StepRecord Trainer::step() {
  advance();
  settle();
  return latest_;
}

void Trainer::advance() {
  try {
    queue_step();
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(concat(error.what(), "; ", monitor_->memory_so_far().text()));
  }
  ++done_;
  parts_.feed->seek(parts_.feed->rows() + parts_.feed->rows_per_step());
  monitor_->end_step(done_);

  constexpr size_t kMostUnread = 64;
  finish_reading();  // the device has this step to do meanwhile
  if (monitor_->logs(done_) || queue_.unread() == kMostUnread) queue_.begin_reading();
  const bool first = !stepped_;
  if (run_.device.is_cpu() || first) settle();  // there is nothing to wait for, or all is slow yet
  stepped_ = true;
  if (const int64_t freq = run_.config.debug.replica_check_freq; freq > 0 && done_ % freq == 0) {
    settle();
    check_replicas("train", models::whole_tensors(model()), concat("after step ", done_));
  }
  if (!first) return;
  announce_connections(print_);
  announce_refusals(print_);
  world_.first_step_done();
}

void Trainer::queue_step() {
  const Config& c = run_.config;
  QueuedStep step{.step = done_ + 1, .began = Clock::now()};
  monitor_->begin_step(step.step);
  const StepInput input = next_input();
  step.first_row = input.first;
  // All micro-batches of all ranks are counted first, so that each token weighs the same.
  const Feed& feed = *parts_.feed;
  const Tensor counts = summed_counts(input, parts_.mesh, feed.share(), run_.device);  // (3)
  StepOutput output = forward_backward(model(), {input.batches, done_, feed.rows_at_once()},
                                       loss_scale(counts, c.model.dtype()), phases());
  const Finished finished = finish_gradients(output, counts);
  step.not_finite = output.not_finite;
  const double factor = lr_factor(c.lr_scheduler, done_ - schedule_start_, c.training.steps);
  step.lr = c.optimizer.lr * factor;
  step.optimizer_steps = parts_.optimizer->steps();
  step.parameter_steps = parts_.optimizer->parameter_steps();
  update(finished, factor);
  queue_.push(std::move(step), output.values, finished.not_finite);
  if (done_ + 1 < c.training.steps) parts_.feed->look_ahead(phases());  // a device still computes
}

StepInput Trainer::next_input() {
  try {
    return parts_.feed->next(phases());
  } catch (...) {
    settle();
    throw;
  }
}

Trainer::Finished Trainer::finish_gradients(StepOutput& output, const Tensor& counts) {
  const auto phase = monitor_->phase("gradients");
  const NoGrad guard;
  StepValues& values = output.values;
  const auto [norm, grad_factor] = parts_.grad_norm(run_.config.training.max_norm);
  Tensor skip = logical_not(logical_and(isfinite(values.joined(0)), isfinite(norm)));
  values.append(std::string(kNormValue), norm);
  values.append(std::string(kFlopsValue), select(counts, 0, 2));
  for (Tensor* sum : {&output.load, &output.not_finite})
    if (sum->defined() && sum->is_distributed()) *sum = full_tensor(*sum);
  if (output.not_finite.defined()) skip = logical_or(skip, amax(output.not_finite) > 0);
  if (queue_.spoiled().defined()) skip = logical_or(skip, queue_.spoiled());
  const Tensor targets = select(counts, 0, 0);
  values.append(std::string(kTargetsValue), targets);
  values.append(std::string(kSkipValue), skip);
  const Tensor idle = logical_or(skip, targets == 0);  // without targets there is nothing to learn
  model().before_optimizer_step(output.load, idle);
  for (const auto& [name, value] : model().statistics(output.load)) values.append(name, value);
  return {skip, idle, grad_factor};
}

void Trainer::update(const Finished& finished, double lr_factor) {
  const auto phase = monitor_->phase("optimizer");
  optim::Optimizer& optimizer = *parts_.optimizer;
  optimizer.set_lr_factor(lr_factor);
  optimizer.step(finished.skip, finished.grad_factor);
  optimizer.zero_grad();
}

void Trainer::settle() {
  finish_reading();
  if (queue_.unread() == 0) return;
  queue_.begin_reading();
  finish_reading();
}

void Trainer::finish_reading() {
  for (ReadStep& step : queue_.finish_reading()) {
    if (step.skipped) fail_at(step);
    if (step.targets == 0) {
      print_(fmt::format("warning: no token of step {} has a target, so it updates nothing",
                         step.step.step));
    }
    for (const std::string& name : run_.config.metrics.step_line) (void)step.record.statistic(name);
    history_.add(step.record);
    monitor_->record(step.record);
    latest_ = std::move(step.record);
  }
}

void Trainer::fail_at(const ReadStep& failed) {
  const QueuedStep& step = failed.step;
  const StepRecord& record = failed.record;
  queue_.clear();
  done_ = step.step - 1;
  parts_.feed->seek(step.first_row);
  parts_.optimizer->set_steps(step.optimizer_steps, step.parameter_steps);
  std::string what = model().routing_fault(step.not_finite);
  if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
    what =
        concat(std::isfinite(record.loss) ? fmt::format("the gradient norm is {}", record.grad_norm)
                                          : fmt::format("the loss is {}", record.loss),
               what.empty() ? "" : "; ", what);
  }
  const std::string cause = non_finite_cause(run_, parts_, done_);
  meet_before_failing();
  fail<NumericError>("train", "step ", done_ + 1, ": ", what, "; ", cause,
                     "; stopped before the optimizer step; try a lower optimizer.lr or a longer "
                     "lr_scheduler.warmup_steps");
}

Evaluation Trainer::validate() {
  if (!parts_.validation) fail<UsageError>("validate", "validation.enable is not set");
  settle();
  const Config& c = run_.config;
  const Evaluation e =
      evaluate(model(), *parts_.validation, c.validation.steps, c.parallelism.sequence_cut());
  monitor_->validation(done_, e.loss, e.perplexity);
  print_(fmt::format("validate step: {:2}  loss: {:8.5f}  perplexity: {:.4f}  tokens: {}", done_,
                     e.loss, e.perplexity, with_separators(e.tokens)));
  return e;
}

Progress Trainer::progress() const {
  return {done_, parts_.optimizer->steps(), done_ - schedule_start_, parts_.feed->rows()};
}

void Trainer::save(bool model_only) {
  settle();
  checkpoints_.save(progress(), model_only);
}

bool Trainer::checkpoint_or_stop() {
  const auto due = checkpoints_.due(done_);
  if (due == Checkpointing::Due::nothing) return false;
  settle();
  checkpoints_.follow(due, progress());
  return stops(stopped_by());
}

// The first rank has told its own: stages differ.
void Trainer::print_memory_of_pipeline() {
  const ParallelismConfig& p = run_.config.parallelism;
  if (!p.pipelines()) return;
  const std::vector<std::string> all = texts_of_ranks(monitor_->memory().text());
  const auto of_stage = static_cast<size_t>(p.stage_ranks(world_.size()));
  for (size_t rank = of_stage; rank < all.size(); rank += of_stage)
    print_(concat("pipeline rank ", rank / of_stage, ": ", all[rank]));
}

// The plot, and the model unless the last checkpoint holds it.
void Trainer::write_model() {
  const std::string plot = folder_.file("loss.svg"), weights = folder_.file("model.safetensors");
  if (world_.rank() == 0)
    io::write_file_atomically(plot, loss_plot_svg(history_.records(), run_.config.title()));
  if (run_.config.checkpoint.enable) {
    print_(fmt::format("wrote {}, metrics.jsonl, config.json", plot));
    return;
  }
  const Patience patience;  // the first rank writes
  models::save_whole(model(), weights, {{"step", std::to_string(done_)}},
                     run_.config.checkpoint.mode());
  world_.group().barrier()->wait();
  print_(fmt::format("wrote {}, loss.svg, metrics.jsonl, config.json", weights));
}

void Trainer::print_samples() {
  if (!stops(stopped_by())) train::print_samples(run_, model(), print_);
}

}  // namespace tessera::train
