// SPDX-License-Identifier: Apache-2.0
// The folder is locked first, and data and checkpoint are read before a run's files are written. A
// step first counts the tokens of all its micro-batches and scales the loss by the count, so
// gradients accumulate, are reduced once and clipped. No op of a step waits for a value on the
// host: a flag makes the update of a step that is not finite do nothing, and that of all steps
// after it. On a device the values of steps stay there until one is logged, and the host waits for
// those while the device has the next step to do.
#include "tessera/train/run/trainer.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/draws.h"
#include "tessera/core/out_of_memory.h"
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/model_file.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/generate/generate.h"
#include "tessera/train/monitor/non_finite.h"
#include "tessera/train/monitor/plot.h"
#include "tessera/train/monitor/step_values.h"
#include "tessera/train/monitor/summary.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/tokenizer/tokenizer.h"

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

int64_t valid_targets(const Batch& batch) {
  const auto* targets = batch.targets.data<int64_t>();
  const int64_t all = batch.targets.numel();
  return all - std::count(targets, targets + all, CrossEntropyOptions{}.ignore_index);
}

int64_t tokens_of(const Batch& batch) {
  const int64_t all = batch.tokens.numel();
  if (!batch.padding.defined()) return all;
  const auto* padding = batch.padding.data<bool>();
  return all - std::count(padding, padding + all, true);
}

// Lengths of documents of this rank's rows; a sequence without positions is one document.
std::vector<int64_t> document_lengths(const Batch& batch) {
  const int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
  if (!batch.positions.defined()) return std::vector<int64_t>(static_cast<size_t>(rows), length);
  std::vector<int64_t> lengths;
  const auto* positions = batch.positions.data<int64_t>();
  for (int64_t i = 0; i < rows * length; ++i) {
    if (i % length == 0 || positions[i] == 0) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

// The least of the texts that ranks have, and who has it: `parameter norm.weight on rank 1`. Empty
// if no rank has one. Collective.
std::string first_of_ranks(const std::string& own) {
  const std::vector<std::string> texts = texts_of_ranks(own);
  std::string first;
  for (const std::string& text : texts)
    if (first.empty() || (!text.empty() && text < first)) first = text;
  if (first.empty() || texts.size() == 1) return first;
  std::vector<int> ranks;
  for (size_t r = 0; r < texts.size(); ++r)
    if (texts[r] == first) ranks.push_back(static_cast<int>(r));
  return concat(first, " on ", ranks_text(ranks));
}

std::string_view precision_name(DType dtype) { return name(dtype); }

}  // namespace

WorldOptions world_options(const Config& config) {
  const int64_t threads = config.debug.deterministic && config.threads == 0 ? 1 : config.threads;
  return {.threads = static_cast<int>(threads),
          .deterministic = config.debug.deterministic,
          .anomaly = config.debug.detect_anomaly,
          .init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds),
          .train_timeout = std::chrono::seconds(config.comm.train_timeout_seconds),
          .flight_folder = config.dump_folder};
}

BatchPlan batch_plan(const Config& config, const DataShare& share) {
  const int64_t mine = config.training.local_batch_size;
  return {.seq_len = config.training.seq_len,
          .vocabulary = config.model.vocab_size(),
          .global_rows = mine * share.parts,
          .first_row = mine * share.part,
          .rows = mine,
          .seed = static_cast<uint64_t>(config.debug.seed)};
}

Trainer::Trainer(const Config& config, std::function<void(const std::string&)> print,
                 Screen* screen, BatchSource source)
    : config_(config),
      world_(World::current()),
      device_(rank_device(config.device, world_.local_rank(), world_.local_ranks())),
      print_(print && world_.rank() == 0 ? std::move(print) : [](const std::string&) {}),
      source_(std::move(source)),
      fingerprint_(checked_fingerprint()),
      tokenizer_(config.open_tokenizer()),
      mesh_(make_mesh(config.parallelism)),
      share_(data_share(mesh_)),
      lock_(world_.rank() == 0 ? std::make_unique<io::FolderLock>(config.dump_folder, "dump_folder")
                               : nullptr),
      micro_batches_(config.training.micro_batches(share_.parts)),
      checkpoints_(in_folder(config.checkpoint.folder), config.checkpoint.mode()) {
  const auto seed = static_cast<uint64_t>(config_.debug.seed);
  Context& context = Context::current();
  context.options.anomaly = config_.debug.detect_anomaly;
  context.call_keys.set_seed(seed);
  set_storage_timeout(std::chrono::seconds(config_.comm.storage_timeout_seconds));
  claim_folder();
  if (!source_) open_data();
  if (config_.dataloader.format != "text") {
    chat_ = std::make_shared<const ChatEncoder>(chat_encoder_of(config_.dataloader, *tokenizer_));
  }
  const ValidationConfig& v = config_.validation;
  if (v.enable) {
    validation_data_ =
        evaluation_data(config_.dataloader,
                        {.path = v.dataset_path,
                         .path_field = "validation.dataset_path",
                         .seq_len = v.seq_len.value_or(config_.training.seq_len),
                         .vocabulary = config_.model.vocab_size(),
                         .rows = v.local_batch_size.value_or(config_.training.local_batch_size),
                         .tokenizer = tokenizer_},
                        mesh_);
  }

  model_ = build_model(config_, mesh_, [&](nn::Module& model, const nn::LayoutOf& layouts) {
    nn::initialize(model, seed, layouts, device_);
  });
  placer_.emplace(model_->metadata(config_.training.seq_len), share_, device_,
                  config_.parallelism.sequence_cut());
  parameters_ = nn::parameters(*model_);
  optimizer_ = make_optimizer(config_.optimizer, nn::named_parameters(*model_), seed);
  const bool of_text =
      !data_ || data_->is_of_text() || (validation_data_ && validation_data_->is_of_text());
  if (!of_text && config_.tokenizer_path().empty()) {
    tokenizer_ = std::make_shared<NoTokenizer>(
        "the data is token ids, and no tokenizer is named: give it as --hf_assets_path");
  }
  // Bad data is found before anything is written or trained.
  if (data_) static_cast<void>(data_->info());
  if (validation_data_) static_cast<void>(validation_data_->info());
  if (world_.rank() == 0 && overwrite_) remove_results();
  restore();
  check_replicas("train", model_tensors(*model_), concat("before step ", done_ + 1));
  // Before the metrics, so that a run that was killed here is known as the same one.
  if (world_.rank() == 0)
    io::write_file_atomically(in_folder("config.json"), config_.fields().dump());
  monitor_ = std::make_unique<Monitor>(
      config_.metrics, config_.profiler,
      MonitorFacts{.dump_folder = config_.dump_folder,
                   .steps = config_.training.steps,
                   .tokens_per_step = tokens_per_step(),
                   .done = done_,
                   .compute = config_.training.mixed_precision_param,
                   .device = device_,
                   .parameters = parameters_,
                   .optimizer_bytes = optimizer_->state_bytes(),
                   .gathered_bytes = [this] { return nn::whole_parameter_bytes(*model_); }},
      world_, print_, screen);
  if (world_.rank() == 0) announce();
}

DataFingerprint Trainer::checked_fingerprint() {
  world_.group().recorder().set_entries(static_cast<size_t>(config_.comm.trace_buf_size));
  DataFingerprint data;
  RankFacts facts;
  facts.add("command", "train");
  facts.add_fields(config_.fields());
  facts.add_device(device_);
  const std::vector<MixturePart> parts = config_.dataloader.parts();
  for (size_t i = 0; i < parts.size() && !source_; ++i) {
    for (DataFile& file : facts.add_data(parts[i].path, parts[i].field)) {
      // Files of two data sets may have the same name.
      if (parts.size() > 1) file.name = concat("mixture[", i, "]/", file.name);
      data.push_back(std::move(file));
    }
  }
  if (const auto chat = chat_template_file(config_.dataloader.chat_template); !chat.empty()) {
    for (DataFile& file : facts.add_data(chat, "dataloader.chat_template")) {
      file.name = "chat_template/" + file.name;
      data.push_back(std::move(file));
    }
  }
  if (config_.validation.enable)
    facts.add_data(config_.validation.dataset_path, "validation.dataset_path");
  facts.add_tokenizer(config_.tokenizer_path(), "hf_assets_path");
  require_equal_ranks("train", facts);
  compare_kernels("train", device_,
                  config_.debug.deterministic && !config_.debug.deterministic_warn_only, print_);
  config::throw_if_any(config_.faults_on(world_.size()));
  return data;
}

// Each rank reads its own rows of the global batch, which is the same on any mesh and for any
// number of micro-batches.
void Trainer::open_data() {
  data_.emplace(config_.dataloader, batch_plan(config_, share_), tokenizer_);
}

std::string Trainer::in_folder(std::string_view file) const {
  return (std::filesystem::path(config_.dump_folder) / file).string();
}

void Trainer::announce() {
  const Config& c = config_;
  const Context& context = Context::current();
  if (c.metrics.summary != "none")
    print_(
        fmt::format("model: {}, {}", c.title(), total_summary(*model_, optimizer_->state_bytes())));
  if (const int64_t idle = model_->idle_parameters(); idle > 0 && c.metrics.summary != "none")
    print_(fmt::format("experts: a token uses {} of the parameters",
                       with_separators(nn::parameter_count(*model_) - idle)));
  if (c.metrics.summary == "layers") print_(layer_summary(*model_));
  if (device_.is_cuda()) {
    const CudaBackend& cuda = Process::get().cuda();
    print_(fmt::format("device: {}, {}, {}", concat(device_), cuda.device_name(device_.index),
                       byte_count(cuda.device_memory(device_.index))));
  } else {
    print_(fmt::format("device: cpu, {} threads, {}, {}", context.options.threads,
                       isa_name(Process::get().isa()), byte_count(machine_memory())));
  }
  if (data_) {
    for (const DataInfo& data : data_->sources()) {
      print_(fmt::format(
          "data: {}, {}{} tokens, {} windows of {}{}{}{}", data.path,
          data.documents > 0 ? fmt::format("{} documents, ", with_separators(data.documents)) : "",
          with_separators(data.tokens), with_separators(data.windows), c.training.seq_len,
          data.share < 1 ? fmt::format(", {:.4g} % of the rows", 100 * data.share) : "",
          data.document_tokens.empty() ? "" : ", ", data.document_tokens));
      for (const std::string& line : data.notes()) print_(line);
    }
  }
  if (validation_data_) {
    const DataInfo& held_out = validation_data_->info();
    if (!held_out.document_tokens.empty())
      print_(fmt::format("validation: {}, {}", held_out.path, held_out.document_tokens));
    for (const std::string& line : held_out.notes("validation")) print_(line);
  }
  print_(fmt::format("mesh: {}, {}", mesh_.text(),
                     share_.parts == world_.size() ? "each rank reads its own rows"
                     : share_.parts == 1           ? "all ranks read the same rows"
                                         : fmt::format("rows cut into {} parts", share_.parts)));
  if (const auto cut = c.parallelism.sequence_cut())
    print_(fmt::format("sequences: cut into {} parts, balanced by {}, keys by {}",
                       c.parallelism.context_parallel_degree, concat(cut->balancer),
                       concat(cut->method)));
  for (const std::string& warning : c.warnings()) print_("warning: " + warning);
  print_(fmt::format("precision: parameters {}, computed in {}, optimizer states {}",
                     precision_name(c.model.dtype()),
                     precision_name(c.training.mixed_precision_param),
                     precision_name(c.optimizer.state_dtype)));
  for (const PatternGroup& g : parameter_groups(c.optimizer, nn::named_parameters(*model_))) {
    if (c.optimizer.param_groups.empty()) continue;
    print_(fmt::format("parameter group: {}, {} tensors, lr {:g}, weight decay {:g}",
                       g.pattern.empty() ? "all others" : g.pattern, g.parameters.size(),
                       g.options.lr, g.options.weight_decay));
  }
  print_(fmt::format(
      "training: {} steps of {} x {} = {} tokens in {} micro-batches on {}, lr {:g}, warm-up {} "
      "steps, seed {}, into {}",
      c.training.steps, rows_per_step(), c.training.seq_len, with_separators(tokens_per_step()),
      micro_batches_, mesh_.text(), c.optimizer.lr, c.lr_scheduler.warmup_steps, c.debug.seed,
      c.dump_folder));
}

int64_t Trainer::rows_at_once() const { return config_.training.local_batch_size * share_.parts; }

int64_t Trainer::tokens_per_step() const { return rows_per_step() * config_.training.seq_len; }

Trainer::Input Trainer::input_from(int64_t first) {
  const int64_t mine = config_.training.local_batch_size, at_once = rows_at_once();
  std::vector<Batch> rows;  // this rank's, plain and on the host
  {
    const auto phase = monitor_->phase("data");
    for (int64_t i = 0; i < micro_batches_; ++i) {
      const int64_t begin = first + i * at_once;
      rows.push_back(source_ ? source_(begin + share_.part * mine, mine) : data_->at(begin));
    }
  }
  const auto phase = monitor_->phase("place");  // cuts of sequences are found on the host
  Input input{.first = first};
  for (const Batch& batch : rows) {
    input.targets += static_cast<double>(valid_targets(batch));
    input.tokens += static_cast<double>(tokens_of(batch));
    input.flops += model_->flops(document_lengths(batch));
    input.batches.push_back(placer_->place(batch));
  }
  return input;
}

Trainer::Input Trainer::next_input() {
  std::optional<Input> ahead = std::exchange(ahead_, std::nullopt);
  // After a step that was not finite the same rows come again.
  if (!ahead || ahead->first != rows_) ahead = read_input(rows_);
  if (!ahead->failure) return *std::move(ahead);
  settle();
  std::rethrow_exception(ahead->failure);
}

Trainer::Input Trainer::read_input(int64_t first) {
  try {
    return input_from(first);
  } catch (...) {
    return {.first = first, .failure = std::current_exception()};
  }
}

void Trainer::look_ahead() {
  if (done_ + 1 < config_.training.steps) ahead_ = read_input(rows_ + rows_per_step());
}

// Rows are counted on the host, where they come from; ranks that read the same rows do not count
// them again.
Tensor Trainer::counts_of(const Input& input) {
  const Tensor counts = zeros({3}, DType::f64);
  auto* sums = counts.data<double>();
  sums[0] = input.targets;
  sums[1] = input.tokens;
  sums[2] = input.flops;
  mesh_.group(share_.axes).all_reduce(counts)->wait();
  return to_device(counts, device_);
}

template <class F>
void Trainer::for_each_micro_batch(const std::vector<PlacedBatch>& batches, F&& run) {
  for (size_t i = 0; i < batches.size(); ++i) {
    begin_micro_batch(static_cast<uint64_t>(done_), static_cast<int64_t>(i) * rows_at_once());
    const nn::MicroBatch micro(i + 1 == batches.size());
    run(batches[i]);
  }
}

Trainer::Scales Trainer::scales_of(const Tensor& counts) const {
  const NoGrad guard;
  const Tensor scales = cast(reciprocal(clamp(slice(counts, 0, {0, 2}), {.min = 1})),
                             compute_dtype(config_.model.dtype()));
  return {select(scales, 0, 0), select(scales, 0, 1)};
}

// Scales are 0-dim tensors and not attributes, so that new counts need no new plans.
models::Loss Trainer::loss_of(const PlacedBatch& batch, const Scales& scales) const {
  models::Loss loss = model_->loss(batch.tokens, batch.targets, batch.metadata);
  loss.sum = loss.sum * scales.of_targets;
  for (models::NamedValue& term : loss.auxiliary) term.value = term.value * scales.of_tokens;
  return loss;
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
  rows_ += rows_per_step();
  monitor_->end_step(done_);

  constexpr size_t kMostUnread = 64;
  if (on_the_way_) finish_reading();  // the device has this step to do meanwhile
  if (monitor_->logs(done_) || unread_.size() == kMostUnread) begin_reading();
  const bool first = !stepped_;
  if (device_.is_cpu() || first) settle();  // there is nothing to wait for, or all is slow yet
  stepped_ = true;
  if (const int64_t freq = config_.debug.replica_check_freq; freq > 0 && done_ % freq == 0) {
    settle();
    check_replicas("train", model_tensors(*model_), concat("after step ", done_));
  }
  if (first) world_.first_step_done();
}

void Trainer::queue_step() {
  const auto start = Clock::now();
  monitor_->begin_step(done_ + 1);
  const Input input = next_input();
  const std::vector<PlacedBatch>& batches = input.batches;
  // All micro-batches of all ranks are counted first, so that each token weighs the same.
  const Tensor counts = counts_of(input);  // (3)
  const Scales scales = scales_of(counts);

  StepValues values;        // the loss first
  Tensor load, not_finite;  // of experts, by all micro-batches, or undefined
  for_each_micro_batch(batches, [&](const PlacedBatch& batch) {
    Tensor total;
    {
      const auto phase = monitor_->phase("forward");
      const models::Loss loss = loss_of(batch, scales);
      values.add("loss", loss.sum);
      total = loss.sum;
      for (const auto& [name, value] : loss.auxiliary) {
        values.add("loss/" + name, value);
        total = total + value;
      }
      const NoGrad guard;
      const auto add_to = [](Tensor& sum, const Tensor& part) {
        if (part.defined()) sum = sum.defined() ? sum + part.detach() : part.detach();
      };
      add_to(load, loss.load);
      add_to(not_finite, loss.not_finite);
    }
    const auto phase = monitor_->phase("backward");
    backward(total);
  });
  const size_t norm = values.size();
  Tensor skip;  // () bool: the step is not finite
  {
    const auto phase = monitor_->phase("gradients");
    const NoGrad guard;
    const Tensor size = optim::clip_grad_norm_(parameters_, config_.training.max_norm);
    skip = logical_not(logical_and(isfinite(values.joined(0)), isfinite(size)));
    values.append("grad_norm", size);
    values.append("flops", select(counts, 0, 2));
    for (Tensor* sum : {&load, &not_finite})
      if (sum->defined() && sum->is_distributed()) *sum = full_tensor(*sum);
    if (not_finite.defined()) skip = logical_or(skip, amax(not_finite) > 0);
    if (spoiled_.defined()) skip = logical_or(skip, spoiled_);
    values.append("skip", skip);
    model_->before_optimizer_step(load, skip);
    for (const auto& [name, value] : model_->statistics(load)) values.append(name, value);
  }
  const double factor =
      lr_factor(config_.lr_scheduler, done_ - schedule_start_, config_.training.steps);
  Unread done{.record = {.step = done_ + 1, .lr = config_.optimizer.lr * factor},
              .began = start,
              .norm = norm,
              .not_finite = not_finite,
              .first = rows_,
              .steps = optimizer_->steps(),
              .parameter_steps = optimizer_->parameter_steps()};
  {
    const auto phase = monitor_->phase("optimizer");
    optimizer_->set_lr_factor(factor);
    optimizer_->step(skip);
    optimizer_->zero_grad();
  }
  done.names = values.names();
  done.values = values.gathered();
  unread_.push_back(std::move(done));
  spoiled_ = skip;
  look_ahead();  // while a device still computes
}

void Trainer::settle() {
  if (on_the_way_) finish_reading();
  if (unread_.empty()) return;
  begin_reading();
  finish_reading();
}

void Trainer::begin_reading() {
  const NoGrad guard;
  std::vector<Tensor> values;
  for (const Unread& step : unread_) values.push_back(step.values);
  on_the_way_.emplace(cat(values, 0));
  reading_ = std::exchange(unread_, {});
}

void Trainer::finish_reading() {
  const std::vector<double> values = on_the_way_->values();
  on_the_way_.reset();
  const std::vector<Unread> steps = std::exchange(reading_, {});
  // Where nobody waits for a step, its time is known only together with others.
  const double seconds = seconds_since(std::max(steps[0].began, last_read_));
  last_read_ = Clock::now();
  size_t at = 0;
  for (const Unread& step : steps) {
    StepRecord record = record_of(step, std::span(values).subspan(at, step.names.size()));
    if (values[at + step.norm + 2] != 0) fail_at(step, record);
    at += step.names.size();
    record.tokens_per_second =
        static_cast<double>(tokens_per_step()) * static_cast<double>(steps.size()) / seconds;
    for (const std::string& name : config_.metrics.step_line) (void)record.statistic(name);
    remember(record);
    monitor_->record(record);
    latest_ = std::move(record);
  }
  if (unread_.empty()) spoiled_ = Tensor();
}

// Auxiliary losses stand before the gradient norm; behind it the operations, whether the step was
// skipped, and statistics.
StepRecord Trainer::record_of(const Unread& step, std::span<const double> values) const {
  StepRecord record = step.record;
  record.loss = values[0];
  record.grad_norm = values[step.norm];
  record.flops = values[step.norm + 1];
  for (size_t i = 1; i < values.size(); ++i) {
    if (i < step.norm || i > step.norm + 2)
      record.statistics.emplace_back(step.names[i], values[i]);
  }
  return record;
}

Evaluation Trainer::validate() {
  if (!validation_data_) fail<UsageError>("validate", "validation.enable is not set");
  settle();
  const Evaluation e = evaluate(*model_, *validation_data_, config_.validation.steps,
                                config_.parallelism.sequence_cut());
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

void Trainer::fail_at(const Unread& step, const StepRecord& record) {
  unread_.clear();
  spoiled_ = Tensor();
  done_ = step.record.step - 1;
  rows_ = step.first;
  optimizer_->set_steps(step.steps, step.parameter_steps);
  std::string what = model_->routing_fault(step.not_finite);
  if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
    what =
        concat(std::isfinite(record.loss) ? fmt::format("the gradient norm is {}", record.grad_norm)
                                          : fmt::format("the loss is {}", record.loss),
               what.empty() ? "" : "; ", what);
  }
  std::string cause = non_finite_parameter();
  if (cause.empty()) cause = first_non_finite_op();
  if (cause.empty()) cause = "running the step again did not show it";
  meet_before_failing();
  fail<NumericError>("train", "step ", done_ + 1, ": ", what, "; ", cause,
                     "; stopped before the optimizer step; try a lower optimizer.lr or a longer "
                     "lr_scheduler.warmup_steps");
}

// On any rank; empty: none. Collective.
std::string Trainer::non_finite_parameter() {
  std::string own;
  for (const auto& p : nn::named_parameters(*model_)) {
    if (own.empty() && !all_finite(p.tensor)) own = concat("parameter ", p.name);
  }
  const std::string first = first_of_ranks(own);
  return first.empty() ? first : concat(first, " already is not finite");
}

// Repeats the step with its random numbers and checks every op. All ranks repeat all of it, since
// they meet in its collectives. Empty: not seen. Collective.
std::string Trainer::first_non_finite_op() {
  const Input input = input_from(rows_);
  const Scales scales = scales_of(counts_of(input));
  FirstNonFinite watch;
  for_each_micro_batch(input.batches, [&](const PlacedBatch& batch) {
    watch.in_backward(false);
    const models::Loss again = loss_of(batch, scales);
    Tensor total = again.sum;
    for (const auto& term : again.auxiliary) total = total + term.value;
    watch.in_backward(true);
    backward(total);
  });
  optimizer_->zero_grad();
  // The earliest of all ranks: texts of numbers of one width are in their order.
  const std::string& own = watch.found();
  const std::string first =
      first_of_ranks(own.empty() ? own : fmt::format("{:019}{}", watch.ops_before(), own));
  return first.empty() ? first : concat("first made by ", first.substr(19));
}

void Trainer::run() {
  const auto start = Clock::now();
  while (done_ < config_.training.steps) {
    advance();
    if (config_.validation.enable && (done_ == 1 || done_ % config_.validation.freq == 0))
      validate();
    if (checkpoint_or_stop()) break;
  }
  settle();
  monitor_->finish();
  if (stopped_) return;
  print_(fmt::format("training completed in {}", duration(seconds_since(start))));
  const std::string plot = in_folder("loss.svg");
  if (world_.rank() == 0) io::write_file_atomically(plot, loss_plot_svg(records_, config_.title()));
  if (config_.checkpoint.enable) {  // the last checkpoint holds the model
    print_(fmt::format("wrote {}, metrics.jsonl, config.json", plot));
    return;
  }
  {
    const Patience patience;  // the first rank writes
    nn::save(*model_, in_folder("model.safetensors"), {{"step", std::to_string(done_)}},
             config_.checkpoint.mode());
    world_.group().barrier()->wait();
  }
  print_(fmt::format("wrote {}, loss.svg, metrics.jsonl, config.json",
                     in_folder("model.safetensors")));
}

void Trainer::print_samples() {
  const SampleConfig& c = config_.sample;
  if (c.tokens == 0 || stopped_) return;
  const int64_t ids = tokenizer_->vocabulary(), known = config_.model.vocab_size();
  if (!tokenizer_->missing().empty() || ids > known) {
    print_(fmt::format("no samples: {}", ids > known
                                             ? fmt::format("the tokenizer has {} tokens, the model "
                                                           "{}",
                                                           ids, known)
                                             : std::string(tokenizer_->missing())));
    return;
  }
  GenerateOptions options{
      .tokens = c.tokens,
      .temperature = 0,
      .top_k = c.top_k,
      .top_p = c.top_p,
      .context = config_.training.seq_len,
      .seed = static_cast<uint64_t>(config_.debug.seed),
      .tokenizer = tokenizer_,
      .begins = documents_begin(config_.dataloader.document_tokens, *tokenizer_),
      .ends = end_ids(config_.special_tokens, *tokenizer_, -1),
      .chat = chat_,
      .cut = config_.parallelism.sequence_cut()};
  const auto sample = [&] {
    return printable(concat(c.prompt, chat_ ? "\n" : "", generate(*model_, c.prompt, options)));
  };
  print_(fmt::format("greedy text:\n{}", sample()));
  options.temperature = c.temperature;
  print_(
      fmt::format("sampled text (temperature {}, top {}):\n{}", c.temperature, c.top_k, sample()));
}

}  // namespace tessera::train
