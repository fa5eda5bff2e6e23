// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/trainer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/files.h"
#include "tessera/train/generate.h"
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

bool all_finite(const Tensor& t) {
  if (!t.defined() || !is_floating(t.dtype())) return true;
  if (t.is_distributed()) return all_finite(local(t));
  return std::ranges::all_of(t.values(), [](double v) { return std::isfinite(v); });
}

std::string joined(const std::vector<std::string>& parts) {
  std::string path;
  for (const auto& p : parts) path += (path.empty() ? "" : ".") + p;
  return path.empty() ? "the loss" : path;
}

// A folder that cannot be written is found before any work is done.
TextData open_data(const Config& config, bool writes) {
  if (writes) require_writable_folder(config.dump_folder, "dump_folder");
  return {config.dataloader.path, config.training.seq_len,
          static_cast<uint64_t>(config.debug.seed)};
}

// Notes the first op whose output is not finite while its inputs are.
class FirstNonFinite {
 public:
  FirstNonFinite() : context_(Context::current()), before_(std::move(context_.op_hook)) {
    context_.op_hook = [this](const OpRow& row, const void*, Tensors in, Tensors out) {
      if (!found_.empty() || std::ranges::all_of(out, all_finite) ||
          !std::ranges::all_of(in, all_finite))
        return;
      found_ =
          concat("op ", row.name,
                 backward_ ? " in backward" : concat(" in module ", joined(context_.module_path)));
    };
  }
  ~FirstNonFinite() { context_.op_hook = std::move(before_); }
  FirstNonFinite(const FirstNonFinite&) = delete;
  FirstNonFinite& operator=(const FirstNonFinite&) = delete;
  void enter_backward() { backward_ = true; }
  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  Context& context_;
  std::function<void(const OpRow&, const void*, Tensors, Tensors)> before_;
  std::string found_;
  bool backward_ = false;
};

}  // namespace

Trainer::Trainer(const Config& config, std::function<void(const std::string&)> print,
                 Screen* screen)
    : config_(config),
      world_(World::current()),
      mesh_(Mesh::make({{"dp", world_.size()}})),
      print_(print && world_.rank() == 0 ? std::move(print) : [](const std::string&) {}),
      data_(open_data(config, world_.rank() == 0)),
      model_(config.model) {
  nn::initialize(
      model_, static_cast<uint64_t>(config_.debug.seed),
      [this](const std::string&, const TensorMeta&) { return Layout::replicated(mesh_); });
  metadata_ = model_.attention_metadata(config.training.seq_len);
  std::vector<Tensor> parameters;
  for (auto& p : nn::named_parameters(model_)) parameters.push_back(p.tensor);
  optimizer_ = std::make_unique<AdamW>(parameters, config_.optimizer);
  monitor_ = std::make_unique<Monitor>(
      config_.metrics, config_.profiler,
      MonitorFacts{.dump_folder = config_.dump_folder,
                   .steps = config_.training.steps,
                   .tokens_per_step =
                       config_.training.local_batch_size * world_.size() * config_.training.seq_len,
                   .flops_per_token = llama3::flops_per_token(model_, config_.training.seq_len),
                   .compute = config_.model.dtype,
                   .parameters = std::move(parameters),
                   .optimizer_bytes = optimizer_->state_bytes()},
      world_, print_, screen);
  if (world_.rank() != 0) return;
  write_file_atomically(in_folder("config.json"), config_.fields().dump());
  announce();
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
  print_(fmt::format("data: {}, {} documents, {} tokens, {} windows of {}", c.dataloader.path,
                     with_separators(data_.documents()), with_separators(data_.tokens()),
                     with_separators(data_.windows()), c.training.seq_len));
  const int64_t rows = c.training.local_batch_size * world_.size();
  print_(fmt::format(
      "training: {} steps of {} x {} = {} tokens on {}, lr {:g}, warm-up {} steps, seed {}, into "
      "{}",
      c.training.steps, rows, c.training.seq_len, with_separators(rows * c.training.seq_len),
      mesh_->text(), c.optimizer.lr, c.lr_scheduler.warmup_steps, c.debug.seed, c.dump_folder));
}

// This rank reads its own rows of the global batch, which is the same on any mesh.
Batch Trainer::next_batch() const {
  const int64_t mine = config_.training.local_batch_size, rows = mine * world_.size();
  const Batch part = data_.batch(done_, rows, world_.rank() * mine, mine);
  const Layout* by_rows = Layout::of(mesh_, {Shard(0)});
  const Shape global{rows, config_.training.seq_len};
  return {from_local(part.tokens, by_rows, global), from_local(part.targets, by_rows, global)};
}

Tensor Trainer::loss_of(const Batch& batch) const {
  const CrossEntropyResult result = model_.loss(batch.tokens, batch.targets, metadata_);
  // A 0-dim factor and no attribute, so that a new count needs no new plan.
  return result.sum * tensor(1 / std::max(1.0, full(result.count).item()));
}

// Gradients of replicated parameters are partial over the axis that cuts the batch.
void Trainer::reduce_gradients() {
  for (Tensor p : optimizer_->parameters()) p.set_grad(redistribute(p.grad(), layout_of(p)));
}

StepRecord Trainer::step() {
  const auto start = Clock::now();
  monitor_->begin_step(done_ + 1);
  const int64_t rows = config_.training.local_batch_size * world_.size();
  const Batch batch = [&] {
    const auto phase = monitor_->phase("data");
    return next_batch();
  }();
  Tensor loss;
  StepRecord record;
  record.step = done_ + 1;
  {
    const auto phase = monitor_->phase("forward");
    loss = loss_of(batch);
    record.loss = full(loss).item();
  }
  if (!std::isfinite(record.loss)) diagnose(batch, record.loss, 0);
  {
    const auto phase = monitor_->phase("backward");
    backward(loss);
    loss = {};
  }
  {
    const auto phase = monitor_->phase("gradients");
    const NoGrad guard;
    reduce_gradients();
    record.grad_norm = clip_grad_norm_(optimizer_->grads(), config_.training.max_norm);
  }
  if (!std::isfinite(record.grad_norm)) diagnose(batch, record.loss, record.grad_norm);
  const double factor = lr_factor(config_.lr_scheduler, done_, config_.training.steps);
  {
    const auto phase = monitor_->phase("optimizer");
    optimizer_->step(factor);
    optimizer_->zero_grad();
  }
  record.lr = config_.optimizer.lr * factor;
  record.tokens_per_second =
      static_cast<double>(rows * config_.training.seq_len) / seconds_since(start);
  if (done_++ == 0) world_.first_step_done();
  remember(record);
  monitor_->end_step(record);
  return record;
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

void Trainer::diagnose(const Batch& batch, double loss, double grad_norm) {
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
      const Tensor again = loss_of(batch);
      watch.enter_backward();
      backward(again);
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
  while (done_ < config_.training.steps) step();
  monitor_->finish();
  print_(fmt::format("training completed in {}", duration(seconds_since(start))));
  std::vector<nn::NamedParameter> whole = nn::named_parameters(model_);
  for (auto& p : whole) p.tensor = full(p.tensor);
  if (world_.rank() != 0) return;
  write_file_atomically(in_folder("loss.svg"), loss_plot_svg(records_, config_.recipe));
  write_safetensors(in_folder("model.safetensors"), whole, {{"step", std::to_string(done_)}});
  print_(fmt::format("wrote {}, loss.svg, metrics.jsonl, config.json",
                     in_folder("model.safetensors")));
}

void Trainer::print_samples() {
  const SampleConfig& c = config_.sample;
  if (c.tokens == 0 || world_.rank() != 0) return;
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
