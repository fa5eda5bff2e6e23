// SPDX-License-Identifier: Apache-2.0
// A step of the run as the trainer makes it: passes, clipping, the optimizer's update. Two
// micro-batches stand for any number of them, since gradients exist from the second on; a pipeline
// has many in flight and runs all actions of its schedule, on each of its ranks. An op whose kernel
// takes much memory besides its outputs tells how much (workspace).
#include "tessera/train/memory/estimate.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/core/meta_memory.h"
#include "tessera/core/op_row.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/process_group.h"
#include "tessera/dist/schedules/simulate.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/nn/lay_out.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/data/token_source.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/summary.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/step/forward_backward.h"
#include "tessera/train/step/run_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

namespace tessera::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

// What no count sees. Measured runs of 0.1 to 2 GiB lie between 2 and 8 % above their tensors.
constexpr int64_t kProgram = 32 * kMiB;         // code, libraries, stacks
constexpr int64_t kScratchOfThread = 4 * kMiB;  // panels of matmul, rows of attention
constexpr int64_t kGaps = 25;                   // a block in 25: reused for smaller tensors

// The peak of a step that was run before, and the ops before it.
struct FoundPeak {
  int64_t bytes = 0, op = 0;
};

// Follows the peak of the tensors. To find its parts takes a walk over the model, and each op of
// forward is a new peak. So a step is run twice: the second run has the same ops, walks once, after
// the op that the first found, and may end there.
class Peak {
 public:
  /// `device`: of the run, whose kernels are asked for their workspace.
  Peak(const MetaMemory& memory, nn::Module& model, const std::vector<Tensor>& parameters,
       const std::optional<FoundPeak>& found, Device device)
      : memory_(memory),
        model_(model),
        parameters_(parameters),
        found_(found),
        device_(device),
        context_(Context::current()),
        bytes_(found ? found->bytes : 0) {
    context_.op_hook = [this](const OpRow& row, const void* op, Tensors in, Tensors) {
      after(row, op, in);
    };
  }
  ~Peak() { context_.op_hook = {}; }
  Peak(const Peak&) = delete;
  Peak& operator=(const Peak&) = delete;

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  /// Ops before the one after which the peak was seen.
  [[nodiscard]] int64_t op() const { return op_; }
  /// Gradients that existed after the op to look at.
  [[nodiscard]] int64_t gradients() const { return gradients_; }
  /// Whole parameters that existed then.
  [[nodiscard]] int64_t gathered() const { return gathered_; }
  /// Whether the op to look at has been seen.
  [[nodiscard]] bool looked() const { return walks_ > 0; }
  /// How often all of the model was looked at.
  [[nodiscard]] int64_t walks() const { return walks_; }

 private:
  void after(const OpRow& row, const void* op, Tensors in) {
    int64_t workspace = 0;
    if (row.workspace) {
      std::vector<Tensor> own;
      for (const Tensor& t : in) own.push_back(t.defined() && t.is_distributed() ? local(t) : t);
      workspace = row.workspace(op, MetaArray(Tensors(own.data(), own.size())), device_);
    }
    const int64_t number = ops_++;
    const MemoryStats now = memory_.stats();
    const int64_t most = std::max(now.peak, now.live + workspace);
    if (most > bytes_) {
      bytes_ = most;
      op_ = number;
    }
    if (!found_ || number != found_->op) return;
    ++walks_;
    gathered_ = nn::whole_parameter_bytes(model_);
    gradients_ = gradient_bytes(parameters_);
  }

  const MetaMemory& memory_;
  nn::Module& model_;
  const std::vector<Tensor>& parameters_;
  const std::optional<FoundPeak> found_;
  const Device device_;
  Context& context_;
  int64_t ops_ = 0, op_ = 0, walks_ = 0;
  int64_t bytes_, gradients_ = 0, gathered_ = 0;
};

Tensor on_meta(const Tensor& x) {
  if (!x.defined() || !x.is_distributed()) return x.defined() ? to_device(x, kMeta) : x;
  return make_distributed(to_device(local(x), kMeta), x.shape(), layout_of(x).id());
}

// A batch of (rows, length) tokens on each rank, and what the model takes of it, on the meta
// device. What the queries of a cut sequence see is found on the host, where it is one document.
struct Inputs {
  Batch batch;
  PlacedBatch placed;
};
Inputs inputs_of(const models::LanguageModel& model, const Config& config, const Mesh& mesh,
                 int64_t rows, int64_t length, bool padded) {
  const auto ids = [&] { return empty({rows, length}, DType::i64, kMeta); };  // (B, T)
  Inputs inputs{{ids(), ids()}, {}};
  if (config.dataloader.packing == "documents") {
    inputs.batch.positions = ids();
    inputs.batch.documents = ids();
  }
  if (padded) inputs.batch.padding = empty({rows, length}, DType::bool_, kMeta);
  Batch given = inputs.batch;
  const std::optional<nn::ContextParallelOptions> cut = config.parallelism.sequence_cut();
  if (cut) {
    for (Tensor* x : {&given.positions, &given.documents})
      if (x->defined()) *x = zeros({rows, length}, DType::i64);
    if (padded) given.padding = zeros({rows, length}, DType::bool_);
  }
  inputs.placed = BatchPlacer(model.metadata(length), data_share(mesh), kMeta, cut).place(given);
  for (nn::AttentionMetadata& kind : inputs.placed.metadata.kinds) {
    for (Tensor* table : kind.tables()) *table = on_meta(*table);
  }
  return inputs;
}

// Text and fine-tuning sets are kept as tokens, of a byte at least; token ids stay in files.
int64_t bytes_of_text(const Config& config) {
  const auto bytes = [&](const std::string& path, const std::string& field) {
    int64_t sum = 0;
    try {
      const DataFiles files = find_data(path, field);
      if (!files.kind->is_text) return sum;
      for (const std::string& file : files.paths)
        sum += static_cast<int64_t>(std::filesystem::file_size(file));
    } catch (const std::exception&) {  // the trainer's own error says more
    }
    if (config.dataloader.format != "text") return sum * kFineTuningTokenBytes;
    return sum * (config.model.vocab_size() > 65536 ? 4 : 2);
  };
  int64_t sum = 0;
  for (const MixturePart& part : config.dataloader.parts()) sum += bytes(part.path, part.field);
  if (config.validation.enable)
    sum += bytes(config.validation.dataset_path, "validation.dataset_path");
  return sum;
}

int64_t batch_bytes(const Batch& batch) {
  const std::array<Tensor, 5> all{batch.tokens, batch.targets, batch.positions, batch.documents,
                                  batch.padding};
  return bytes_of(all);
}

// A step of the run. Returns the most bytes that forwards leave for backwards.
int64_t run_step(models::LanguageModel& model, optim::Optimizer& optimizer, const Config& config,
                 std::span<const PlacedBatch> step, const MetaMemory& memory, const Peak& peak) {
  const auto live = [&] {
    return memory.stats().live - nn::whole_parameter_bytes(model) -
           gradient_bytes(optimizer.parameters());
  };
  const int64_t before = live();
  int64_t activations = 0;
  const auto measured = [&](const StepPart& part, const std::function<void()>& run) {
    run();
    if (part.name == "forward") activations = std::max(activations, live() - before);
  };
  (void)forward_backward(model, {step, 0, step.front().tokens.size(0)},
                         loss_scale(zeros({2}, DType::f64, kMeta), config.model.dtype()), measured);
  if (peak.looked()) return activations;
  const NoGrad guard;
  optimizer.step({}, optim::grad_norm(optimizer.parameters(), config.training.max_norm).factor);
  optimizer.zero_grad();
  return activations;
}

// A forward of each stage alone stands for that of a pipeline, whose messages tell forms.
void validate_stages(const models::PipelinedModel& model, const Mesh& mesh,
                     const PlacedBatch& batch, const StageInputs& inputs) {
  for (const auto& [number, stage] : model.stages()) {
    TensorList passed;
    for (const nn::TensorForm& form : inputs[static_cast<size_t>(number)])
      passed.push_back(nn::empty_of(form, mesh, kMeta));
    const models::StageOutput output = stage->stage(passed, batch.metadata);
    if (number + 1 == std::ssize(inputs)) (void)stage->head_loss(output.next, batch.targets);
  }
}

PlacedBatch validation_batch(const models::LanguageModel& model, const Config& config,
                             const Mesh& mesh) {
  const ValidationConfig& v = config.validation;
  return inputs_of(model, config, mesh,
                   v.local_batch_size.value_or(config.training.local_batch_size),
                   v.seq_len.value_or(config.training.seq_len), true)
      .placed;
}

// `inputs`: of the stages of a pipeline.
void run_validation(models::LanguageModel& model, const Config& config, const Mesh& mesh,
                    const StageInputs& inputs) {
  const NoGrad guard;
  const PlacedBatch batch = validation_batch(model, config, mesh);
  if (const auto* stages = dynamic_cast<models::PipelinedModel*>(&model))
    return validate_stages(*stages, mesh, batch, inputs);
  (void)model.loss(batch.tokens, batch.targets, batch.metadata);
}

std::unique_ptr<optim::Optimizer> run_optimizer(const Config& config,
                                                const std::vector<nn::NamedParameter>& named) {
  OptimizerConfig alike = config.optimizer;
  // States have the same sizes; the trainer says which groups are wrong.
  alike.param_groups.clear();
  return make_optimizer(alike, named);
}

// States that an optimizer makes in its first step are there from the second one on.
void make_states(optim::Optimizer& optimizer, const std::vector<Tensor>& parameters) {
  if (optimizer.state_bytes() > 0) return;
  const NoGrad guard;
  for (Tensor p : parameters)
    if (p.requires_grad()) p.set_grad(affine(p.detach(), 0, 0));
  optimizer.step();
  optimizer.zero_grad();
}

// A pipeline's ranks have the whole model without bytes, which MetaMemory counts.
int64_t bytes_of_whole(const Config& config, const MetaMemory& memory) {
  const int64_t before = memory.stats().live;
  const auto whole = config.model.make();
  return memory.stats().live - before;
}

// What messages of this rank take.
struct MessageBytes {
  int64_t sent = 0;       // one that the other rank has not taken yet, which the peak may see
  int64_t processes = 0;  // at most, on their way between processes of a host
};
MessageBytes message_bytes(const models::PipelinedModel& model, const PipelineSchedule& schedule,
                           const StageInputs& inputs, const Mesh& mesh) {
  const auto of = [&](size_t stage) {
    std::vector<Tensor> tensors;
    if (stage == 0 || stage == inputs.size()) return int64_t{0};
    for (const nn::TensorForm& form : inputs[stage])
      tensors.push_back(nn::empty_of(form, mesh, kMeta));
    return bytes_of(tensors);
  };
  MessageBytes bytes;
  int64_t sum = 0;
  for (const auto& stage : model.stages()) {
    const auto number = static_cast<size_t>(stage.number);
    const int64_t back = of(number), on = of(number + 1);
    sum += back + on;
    bytes.sent = std::max({bytes.sent, back, on});
  }
  const auto rank = static_cast<size_t>(model.ranks().rank());
  bytes.processes = std::min(kMessagePool, sum * simulate(schedule).ranks[rank].most_in_flight);
  return bytes;
}

// The inputs of the stages of a pipeline in training and in validation.
struct PipelineInputs {
  StageInputs training, validation;
};
PipelineInputs pipeline_inputs(const models::LanguageModel& model, const Config& config,
                               const Mesh& mesh, int64_t rows, bool padded) {
  PipelineInputs inputs;
  const auto of = [&](const PlacedBatch& batch) { return stage_inputs(config, mesh, batch); };
  inputs.training =
      of(inputs_of(model, config, mesh, rows, config.training.seq_len, padded).placed);
  if (config.validation.enable) inputs.validation = of(validation_batch(model, config, mesh));
  return inputs;
}

// `found`: the peak that an earlier call saw; receives the one that this call sees. `pipeline`: of
// an earlier call, on any rank; found where what it makes does not count.
MemoryEstimate estimate_on(const Config& config, std::optional<FoundPeak>& found,
                           std::optional<PipelineInputs>& pipeline, const OptimizerFactory& make) {
  MetaMemory memory;
  const Mesh mesh = make_mesh(config.parallelism);
  const auto model = build_model(config, mesh, nn::lay_out);
  const std::vector<nn::NamedParameter> named = nn::named_parameters(*model);
  std::vector<Tensor> parameters;
  for (const nn::NamedParameter& p : named) parameters.push_back(p.tensor);
  const auto optimizer = make ? make(named) : run_optimizer(config, named);
  make_states(*optimizer, parameters);
  const auto [rows, micro_batches] = config.step_sizes(data_share(mesh).parts);
  const bool examples = config.dataloader.format != "text";  // which do not fill every row
  auto* const stages = dynamic_cast<models::PipelinedModel*>(model.get());
  MessageBytes messages;
  if (stages) {
    if (!pipeline) pipeline = pipeline_inputs(*model, config, mesh, rows, examples);
    const StageInputs& inputs = pipeline->training;
    messages = message_bytes(
        *stages, config.parallelism.schedule(std::ssize(inputs), micro_batches), inputs, mesh);
  }
  const int64_t uncounted = stages ? bytes_of_whole(config, memory) : 0;
  const int64_t held = memory.stats().live - uncounted;  // also buffers
  memory.reset_peak();  // the passes saw the whole model, of which a rank makes its shards only

  std::optional<Peak> peak(std::in_place, memory, *model, parameters, found,
                           config.device == DeviceChoice::cuda ? cuda(0) : kCpu);
  const Inputs inputs = inputs_of(*model, config, mesh, rows, config.training.seq_len, examples);
  if (stages) stages->set_input_forms(inputs.placed.tokens.shape(), pipeline->training);
  const int64_t batches = batch_bytes(inputs.batch);
  const std::vector<PlacedBatch> step(
      static_cast<size_t>(stages ? micro_batches : std::min<int64_t>(2, micro_batches)),
      inputs.placed);
  const int64_t activations = run_step(*model, *optimizer, config, step, memory, *peak);
  if (config.validation.enable && !peak->looked())
    run_validation(*model, config, mesh, pipeline ? pipeline->validation : StageInputs());

  MemoryEstimate e;
  // All micro-batches of a step are made at its start; more are prepared ahead.
  const int64_t more_batches = (micro_batches - 1) * batches;
  const int64_t most = std::max(peak->bytes(), memory.stats().peak);
  e.counted = most + more_batches + messages.sent - uncounted;
  const int64_t of_parameters = bytes_of(parameters), of_states = optimizer->state_bytes();
  const int64_t rest =
      e.counted - more_batches - held - batches - peak->gradients() - peak->gathered();
  const int64_t kept = std::clamp<int64_t>(activations, 0, std::max<int64_t>(0, rest));
  const int64_t threads = Context::current().options.threads;
  // An asynchronous save copies what this rank writes: at most what it holds.
  const bool copies = config.checkpoint.enable && config.checkpoint.async_mode == AsyncMode::async;
  e.parts = {
      {"parameters", of_parameters},
      {"optimizer states", of_states},
      {"gradients", peak->gradients()},
      {"gathered or cast parameters", peak->gathered()},
      {"activations", kept},
      {"batches", micro_batches * batches},
      {"temporaries of ops, buffers", e.counted - more_batches - batches - of_parameters -
                                          of_states - peak->gradients() - peak->gathered() - kept},
      {"text as tokens, batches prepared ahead",
       bytes_of_text(config) + config.dataloader.num_prefetch_batches * batches, false},
      {"messages between processes", messages.processes, false},
      {"copy of an asynchronous save", copies ? of_parameters + of_states : 0, false},
      {"program, scratch, gaps between blocks (assumed)",
       kProgram + threads * kScratchOfThread + e.counted / kGaps, false}};
  found = FoundPeak{most, peak->op()};
  e.walks = peak->walks();
  peak.reset();
  std::ranges::stable_sort(e.parts, std::greater<>(), &MemoryEstimate::Part::bytes);
  for (const MemoryEstimate::Part& part : e.parts) e.total += part.bytes;
  return e;
}

std::string largest_parts(std::span<const MemoryEstimate::Part> parts) {
  std::string text;
  for (const MemoryEstimate::Part& part : parts.first(3))
    text += concat(text.empty() ? "" : ", ", part.name, ' ', byte_count(part.bytes));
  return text;
}

// What may need less memory than `c`, each alone.
std::vector<Remedy> all_remedies(const Config& c) {
  std::vector<Remedy> all;
  for (const ParallelPass& pass : parallel_passes())
    if (pass.remedies) std::ranges::move(pass.remedies(c.pass_settings()), std::back_inserter(all));
  const TrainingConfig& t = c.training;
  for (const auto& [field, value] : {std::pair("training.local_batch_size", t.local_batch_size),
                                     std::pair("training.seq_len", t.seq_len)})
    if (value > 1) all.push_back({{{field, std::to_string(value / 2)}}});
  if (c.model.dtype() == DType::f32) {
    all.push_back({{{"training.dtype", "bfloat16"}}});
    if (t.mixed_precision_param != DType::bf16)
      all.back().values.emplace_back("training.mixed_precision_param", "bfloat16");
  }
  if (c.optimizer.state_dtype == DType::f32)
    all.push_back({{{"optimizer.state_dtype", "bfloat16"}}});
  return all;
}

// The remedies that lower `need` below `before`, the need of `config`, with their need.
std::string remedies(const Config& config, int ranks, int64_t MemoryEstimate::*need,
                     int64_t before) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const Remedy& remedy : all_remedies(config)) {
    Config other = config;
    std::vector<std::string> words;
    for (const auto& [field, value] : remedy.values)
      words.push_back(concat("--", field, '=', value));
    if (!other.fields().parse(words).empty() || !faults(other, ranks).empty()) continue;
    const int64_t needs = estimate_memory(other, ranks).*need;
    if (needs < before - before / 20) found.emplace_back(needs, remedy.text());
  }
  std::ranges::sort(found);
  std::string text;
  for (const auto& [needs, words] : found)
    text += concat(text.empty() ? "" : ", ", words, " (", byte_count(needs), ')');
  return text.empty() ? "a machine with more memory is needed"
                      : concat(ranks > 1 ? "less per rank need " : "less need ", text);
}

}  // namespace

std::string memory_advice(const Config& config, int ranks) {
  MemoryEstimate e = estimate_memory(config, ranks);
  std::erase_if(e.parts, [](const MemoryEstimate::Part& part) { return !part.tensors; });
  return concat("the tensors of a rank need about ", byte_count(e.counted),
                ", the largest parts: ", largest_parts(e.parts), "; ",
                remedies(config, ranks, &MemoryEstimate::counted, e.counted));
}

MemoryEstimate estimate_memory(const Config& config, int ranks, const OptimizerFactory& make) {
  MemoryEstimate most;
  std::vector<int64_t> counted;
  std::optional<PipelineInputs> pipeline;
  WorldOptions options = world_options(config);
  options.progress = ProgressThread::never;
  const auto of_stage = static_cast<int>(config.parallelism.stage_ranks(ranks));
  for (int rank = 0; rank < ranks; rank += of_stage) {  // the first of each pipeline rank
    MemoryEstimate estimate;
    run_fake(
        ranks, rank,
        [&](World&) {
          std::optional<FoundPeak> found;
          (void)estimate_on(config, found, pipeline, make);
          estimate = estimate_on(config, found, pipeline, make);
        },
        options);
    estimate.pipeline_rank = rank / of_stage;
    counted.push_back(estimate.counted);
    if (estimate.counted > most.counted) most = std::move(estimate);
  }
  most.of_pipeline_ranks = std::move(counted);
  return most;
}

std::string memory_table(const MemoryEstimate& estimate) {
  std::string table;
  const auto row = [&](const std::string& name, int64_t bytes) {
    table += fmt::format("  {:<50}{:>12}{:>8.1f} %\n", name, byte_count(bytes),
                         100 * static_cast<double>(bytes) / static_cast<double>(estimate.total));
  };
  for (const MemoryEstimate::Part& part : estimate.parts) row(part.name, part.bytes);
  row("total", estimate.total);
  if (const std::vector<int64_t>& ranks = estimate.of_pipeline_ranks; ranks.size() > 1) {
    table += "tensors of pipeline ranks: ";
    for (size_t r = 0; r < ranks.size(); ++r)
      table += concat(r > 0 ? ", " : "", r, ": ", byte_count(ranks[r]));
    table += '\n';
  }
  return table;
}

std::string fit_line(const MemoryEstimate& e, const HostRanks& ranks, const FreeMemory& free) {
  struct Room {
    int64_t needed, bytes;
    std::string_view source;
  };
  std::string fits = "it is not known whether this fits: what is free here cannot be read";
  for (const Room& room : {Room{e.counted, free.device, free.device_source},
                           Room{e.total * ranks.of_host, free.host, free.host_source},
                           Room{e.total * ranks.of_process, free.process, free.process_source}}) {
    if (room.bytes == FreeMemory::kUnknown) continue;
    const std::string beside =
        concat(byte_count(room.needed), " of ", byte_count(room.bytes), " (", room.source, ')');
    if (room.needed > room.bytes) return concat("does not fit: ", beside);
    fits = concat("fits: ", beside);
  }
  return fits;
}

std::string check_memory(const Config& config, const HostRanks& ranks, const FreeMemory& free) {
  const MemoryEstimate e = estimate_memory(config, ranks.all);
  struct Room {
    int64_t bytes;
    int ranks;
    const std::string& source;
  };
  if (e.counted > free.device)
    fail<StorageError>("memory", free.device_source, " has ", byte_count(free.device), ", and ",
                       memory_advice(config, ranks.all), "; --memory.check false trains anyway");
  std::string warning;
  for (const Room& room : {Room{free.host, ranks.of_host, free.host_source},
                           Room{free.process, ranks.of_process, free.process_source}}) {
    if (e.total <= room.bytes / room.ranks) continue;
    const std::string what = concat(
        "training needs about ", byte_count(e.total * room.ranks),
        room.ranks > 1 ? concat(" (", counted(room.ranks, "rank"), " of ", byte_count(e.total), ')')
                       : "",
        ", and ", byte_count(room.bytes), " are free (", room.source,
        "); the largest parts of a rank: ", largest_parts(e.parts));
    if (e.counted > room.bytes / room.ranks)
      fail<StorageError>("memory", what, "; ",
                         remedies(config, ranks.all, &MemoryEstimate::total, e.total),
                         "; --memory.check false trains anyway");
    warning = concat("warning: ", what, "; the process may be killed");
  }
  return warning;
}

}  // namespace tessera::train
