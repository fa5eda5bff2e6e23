// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/trainer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/files.h"
#include "tessera/train/generate.h"
#include "tessera/train/non_finite.h"
#include "tessera/train/plot.h"
#include "tessera/train/safetensors.h"
#include "tessera/train/summary.h"
#include "tessera/train/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <unistd.h>

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t machine_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::string_view isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
}

// What is wrong is found before any work is done.
const Config& checked(const Config& config, const World& world) {
  throw_if_any(config.faults());
  (void)config.training.micro_batches(world.size());
  return config;
}

int64_t valid_targets(const Batch& batch) {
  const auto* targets = local(batch.targets).data<int64_t>();
  const int64_t all = local(batch.targets).numel();
  return all - std::count(targets, targets + all, CrossEntropyOptions{}.ignore_index);
}

std::string_view precision_name(DType dtype) { return dtype == DType::bf16 ? "bf16" : "f32"; }

}  // namespace

WorldOptions world_options(const Config& config) {
  const int64_t threads = config.debug.deterministic && config.threads == 0 ? 1 : config.threads;
  return {.threads = static_cast<int>(threads),
          .deterministic = config.debug.deterministic,
          .anomaly = config.debug.detect_anomaly};
}

Trainer::Trainer(const Config& config, std::function<void(const std::string&)> print,
                 Screen* screen, BatchSource source)
    : config_(checked(config, World::current())),
      world_(World::current()),
      mesh_(Mesh::make({{"dp", world_.size()}})),
      print_(print && world_.rank() == 0 ? std::move(print) : [](const std::string&) {}),
      lock_(world_.rank() == 0 ? std::make_unique<FolderLock>(config.dump_folder, "dump_folder")
                               : nullptr),
      source_(std::move(source)),
      model_(config.model),
      micro_batches_(config.training.micro_batches(world_.size())),
      checkpoints_(in_folder(config.checkpoint.folder)) {
  const auto seed = static_cast<uint64_t>(config_.debug.seed);
  Context& context = Context::current();
  context.options.anomaly = config_.debug.detect_anomaly;
  context.call_keys.set_seed(seed);
  if (!source_) open_data();
  const ValidationConfig& v = config_.validation;
  if (v.enable) {
    validation_data_ =
        evaluation_data(config_.dataloader,
                        {.path = v.dataset_path,
                         .path_field = "validation.dataset_path",
                         .seq_len = v.seq_len.value_or(config_.training.seq_len),
                         .vocabulary = config_.model.vocab_size,
                         .rows = v.local_batch_size.value_or(config_.training.local_batch_size)});
  }

  nn::initialize(model_, seed, [this](const std::string&, const TensorMeta&) {
    return Layout::replicated(mesh_);
  });
  const auto blocks = model_.blocks();
  nn::apply_activation_checkpoint(blocks, config_.activation_checkpoint);
  if (config_.training.mixed_precision_param != config_.model.dtype)
    nn::mixed_precision(model_, blocks, config_.training.mixed_precision_param);
  metadata_ = model_.attention_metadata(config_.training.seq_len);
  optimizer_ = std::make_unique<AdamW>(nn::named_parameters(model_), config_.optimizer, seed);
  // Bad data is found before anything is written or trained.
  if (data_) static_cast<void>(data_->info());
  if (validation_data_) static_cast<void>(validation_data_->info());
  restore();
  std::vector<Tensor> parameters;
  for (auto& p : nn::named_parameters(model_)) parameters.push_back(p.tensor);
  monitor_ = std::make_unique<Monitor>(
      config_.metrics, config_.profiler,
      MonitorFacts{.dump_folder = config_.dump_folder,
                   .steps = config_.training.steps,
                   .tokens_per_step = tokens_per_step(),
                   .done = done_,
                   .flops_per_token = llama3::flops_per_token(model_, config_.training.seq_len),
                   .compute = config_.training.mixed_precision_param,
                   .parameters = std::move(parameters),
                   .optimizer_bytes = optimizer_->state_bytes()},
      world_, print_, screen);
  if (world_.rank() != 0) return;
  write_file_atomically(in_folder("config.json"), config_.fields().dump());
  announce();
}

// Each rank reads its own rows of the global batch, which is the same on any mesh and for any
// number of micro-batches.
void Trainer::open_data() {
  const int64_t mine = config_.training.local_batch_size;
  data_.emplace(config_.dataloader, BatchPlan{.seq_len = config_.training.seq_len,
                                              .vocabulary = config_.model.vocab_size,
                                              .global_rows = mine * world_.size(),
                                              .first_row = mine * world_.rank(),
                                              .rows = mine,
                                              .micro_batches = micro_batches_,
                                              .seed = static_cast<uint64_t>(config_.debug.seed)});
}

std::string Trainer::in_folder(std::string_view file) const {
  return (std::filesystem::path(config_.dump_folder) / file).string();
}

void Trainer::announce() {
  const Config& c = config_;
  const Context& context = Context::current();
  if (c.metrics.summary != "none")
    print_(
        fmt::format("model: {}, {}", c.recipe, total_summary(model_, optimizer_->state_bytes())));
  if (c.metrics.summary == "layers") print_(layer_summary(model_));
  print_(fmt::format("device: cpu, {} threads, {}, {}", context.options.threads,
                     isa_name(Process::get().isa()), byte_count(machine_memory())));
  if (data_) {
    const DataInfo& data = data_->info();
    print_(fmt::format(
        "data: {}, {}{} tokens, {} windows of {}", c.dataloader.path,
        data.documents > 0 ? fmt::format("{} documents, ", with_separators(data.documents)) : "",
        with_separators(data.tokens), with_separators(data.windows), c.training.seq_len));
  }
  print_(fmt::format("precision: parameters {}, computed in {}, optimizer states {}",
                     precision_name(c.model.dtype),
                     precision_name(c.training.mixed_precision_param),
                     precision_name(c.optimizer.state_dtype)));
  for (const ParameterGroup& g : optimizer_->groups()) {
    if (c.optimizer.param_groups.empty()) continue;
    print_(fmt::format("parameter group: {}, {} tensors, lr {:g}, weight decay {:g}",
                       g.pattern.empty() ? "all others" : g.pattern, g.members.size(), g.lr,
                       g.weight_decay));
  }
  const int64_t at_once = c.training.local_batch_size * world_.size();
  const int64_t rows = at_once * micro_batches_;
  print_(fmt::format(
      "training: {} steps of {} x {} = {} tokens in {} micro-batches on {}, lr {:g}, warm-up {} "
      "steps, seed {}, into {}",
      c.training.steps, rows, c.training.seq_len, with_separators(rows * c.training.seq_len),
      micro_batches_, mesh_->text(), c.optimizer.lr, c.lr_scheduler.warmup_steps, c.debug.seed,
      c.dump_folder));
}

int64_t Trainer::tokens_per_step() const {
  return config_.training.local_batch_size * world_.size() * micro_batches_ *
         config_.training.seq_len;
}

std::vector<Batch> Trainer::next_batches() {
  const int64_t mine = config_.training.local_batch_size, at_once = mine * world_.size();
  const Layout* by_rows = Layout::of(mesh_, {Shard(0)});
  const Shape global{at_once, config_.training.seq_len};
  std::vector<Batch> batches;
  for (int64_t i = 0; i < micro_batches_; ++i) {
    const Batch part = source_ ? source_(done_ - data_start_, at_once * micro_batches_,
                                         i * at_once + world_.rank() * mine, mine)
                               : data_->at(done_ - data_start_, i);
    const auto whole = [&](const Tensor& rows) {
      return rows.defined() ? from_local(rows, by_rows, global) : rows;
    };
    batches.push_back(
        {whole(part.tokens), whole(part.targets), whole(part.positions), whole(part.documents)});
  }
  return batches;
}

Tensor Trainer::loss_of(const Batch& batch, double tokens) const {
  nn::AttentionMetadata metadata = metadata_;
  metadata.rope_positions = batch.positions;
  metadata.documents = batch.documents;
  const CrossEntropyResult result = model_.loss(batch.tokens, batch.targets, metadata);
  // A 0-dim factor and no attribute, so that a new count needs no new plan.
  return result.sum * tensor(1 / std::max(1.0, tokens));
}

// Gradients of replicated parameters are partial over the axis that cuts the batch.
void Trainer::reduce_gradients() {
  for (Tensor p : optimizer_->parameters()) p.set_grad(redistribute(p.grad(), layout_of(p)));
}

StepRecord Trainer::step() {
  const auto start = Clock::now();
  Context::current().call_keys.set_step(static_cast<uint64_t>(done_));
  monitor_->begin_step(done_ + 1);
  const std::vector<Batch> batches = [&] {
    const auto phase = monitor_->phase("data");
    return next_batches();
  }();
  // All micro-batches of all ranks are counted first, so that each token weighs the same.
  const Tensor count = zeros({}, DType::i64);
  for (const Batch& batch : batches) *count.data<int64_t>() += valid_targets(batch);
  world_.group().all_reduce(count)->wait();
  const double tokens = count.item();

  Tensor sum;
  for (const Batch& batch : batches) {
    Tensor loss;
    {
      const auto phase = monitor_->phase("forward");
      loss = loss_of(batch, tokens);
    }
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
    const auto phase = monitor_->phase("backward");
    backward(loss);
    loss = {};
  }
  StepRecord record;
  record.step = done_ + 1;
  record.loss = full(sum).item();
  {
    const auto phase = monitor_->phase("gradients");
    const NoGrad guard;
    reduce_gradients();
    record.grad_norm = clip_grad_norm_(optimizer_->grads(), config_.training.max_norm);
  }
  if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm))
    diagnose(batches, tokens, record.loss, record.grad_norm);
  const double factor =
      lr_factor(config_.lr_scheduler, done_ - schedule_start_, config_.training.steps);
  {
    const auto phase = monitor_->phase("optimizer");
    optimizer_->step(factor);
    optimizer_->zero_grad();
  }
  record.lr = config_.optimizer.lr * factor;
  record.tokens_per_second = static_cast<double>(tokens_per_step()) / seconds_since(start);
  if (done_++ == 0) world_.first_step_done();
  remember(record);
  monitor_->end_step(record);
  return record;
}

Evaluation Trainer::validate() {
  if (!validation_data_) fail<UsageError>("validate", "validation.enable is not set");
  const Evaluation e = evaluate(model_, *validation_data_, config_.validation.steps);
  monitor_->validation(done_, e.loss, e.perplexity);
  print_(fmt::format("validate step: {:2}  loss: {:8.5f}  perplexity: {:.4f}  tokens: {}", done_,
                     e.loss, e.perplexity, with_separators(e.tokens)));
  return e;
}

// A run of any length keeps a bounded number of records, evenly spaced.
void Trainer::remember(const StepRecord& record) {
  constexpr size_t kMost = 8192;
  if ((record.step - 1) % stride_ != 0) return;
  if (records_.size() == kMost) {
    for (size_t i = 0; i < kMost / 2; ++i) records_[i] = records_[2 * i];
    records_.resize(kMost / 2);
    stride_ *= 2;
    if ((record.step - 1) % stride_ != 0) return;
  }
  records_.push_back(record);
}

void Trainer::diagnose(const std::vector<Batch>& batches, double tokens, double loss,
                       double grad_norm) {
  const std::string what = std::isfinite(loss) ? fmt::format("the gradient norm is {}", grad_norm)
                                               : fmt::format("the loss is {}", loss);
  std::string cause;
  for (const auto& p : nn::named_parameters(model_)) {
    if (cause.empty() && !all_finite(p.tensor))
      cause = concat("parameter ", p.name, " already is not finite");
  }
  if (cause.empty()) {
    // The step again, looking at every op; anomaly mode knows the modules of backward.
    Context& context = Context::current();
    struct Restore {
      bool& anomaly;
      bool before;
      ~Restore() { anomaly = before; }
    } const restore{context.options.anomaly, context.options.anomaly};
    optimizer_->zero_grad();
    FirstNonFinite watch;
    try {
      context.options.anomaly = true;
      for (const Batch& batch : batches) {
        watch.in_backward(false);
        const Tensor again = loss_of(batch, tokens);
        watch.in_backward(true);
        backward(again);
      }
    } catch (const NumericError& error) {
      if (watch.found().empty()) cause = error.what();
    }
    if (!watch.found().empty()) cause = concat("first made by ", watch.found());
  }
  if (cause.empty()) cause = "running the step again did not show it";
  fail<NumericError>("train", "step ", done_ + 1, ": ", what, "; ", cause,
                     "; stopped before the optimizer step; try a lower optimizer.lr or a longer "
                     "lr_scheduler.warmup_steps");
}

void Trainer::run() {
  const auto start = Clock::now();
  while (done_ < config_.training.steps) {
    const int64_t done = step().step;
    if (config_.validation.enable && (done == 1 || done % config_.validation.freq == 0)) validate();
    if (checkpoint_or_stop()) break;
  }
  monitor_->finish();
  if (stopped_) return;
  print_(fmt::format("training completed in {}", duration(seconds_since(start))));
  const std::string plot = in_folder("loss.svg");
  if (world_.rank() == 0) write_file_atomically(plot, loss_plot_svg(records_, config_.recipe));
  if (config_.checkpoint.enable) {  // the last checkpoint holds the model
    print_(fmt::format("wrote {}, metrics.jsonl, config.json", plot));
    return;
  }
  std::vector<nn::NamedParameter> whole = nn::named_parameters(model_);
  for (auto& p : whole) p.tensor = full(p.tensor);
  if (world_.rank() != 0) return;
  write_safetensors(in_folder("model.safetensors"), whole, {{"step", std::to_string(done_)}});
  print_(fmt::format("wrote {}, loss.svg, metrics.jsonl, config.json",
                     in_folder("model.safetensors")));
}

void Trainer::print_samples() {
  const SampleConfig& c = config_.sample;
  if (c.tokens == 0 || world_.rank() != 0 || stopped_) return;
  GenerateOptions options{.tokens = c.tokens,
                          .temperature = 0,
                          .top_k = c.top_k,
                          .top_p = c.top_p,
                          .context = config_.training.seq_len,
                          .seed = static_cast<uint64_t>(config_.debug.seed)};
  print_(
      fmt::format("greedy text:\n{}", printable(c.prompt + generate(model_, c.prompt, options))));
  options.temperature = c.temperature;
  print_(fmt::format("sampled text (temperature {}, top {}):\n{}", c.temperature, c.top_k,
                     printable(c.prompt + generate(model_, c.prompt, options))));
}

}  // namespace tessera::train
