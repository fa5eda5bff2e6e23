// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/announce.h"

#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/message.h"
#include "tessera/core/process.h"
#include "tessera/dist/nccl/nccl.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unistd.h>
#include <vector>

namespace tessera::train {
namespace {

int64_t machine_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::string_view isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
}

void announce_model(const Config& c, const RunParts& parts, const Print& print) {
  const int64_t idle = parts.model->idle_parameters();
  if (c.metrics.summary != "none") {
    print(fmt::format("model: {}, {}", c.title(),
                      total_summary(models::whole_of(*parts.model), *parts.model,
                                    parts.optimizer->state_bytes())));
    if (idle > 0) {
      print(
          fmt::format("experts: a token uses {} of the parameters",
                      with_separators(nn::parameter_count(models::whole_of(*parts.model)) - idle)));
    }
  }
  if (c.metrics.summary == "layers") print(layer_summary(*parts.model));
}

void announce_device(Device device, const Print& print) {
  if (device.is_cuda()) {
    const CudaBackend& cuda = Process::get().cuda();
    print(fmt::format("device: {}, {}, {}", concat(device), cuda.device_name(device.index),
                      byte_count(cuda.device_memory(device.index))));
    return;
  }
  print(fmt::format("device: cpu, {}, {}, {}",
                    counted(Context::current().options.threads, "thread"),
                    isa_name(Process::get().isa()), byte_count(machine_memory())));
}

// A line for each kind of attention: which code computes it, and why not cuDNN. A rank's share of
// heads and rows changes nothing of it.
void announce_attention(const Config& c, const RunParts& parts, const Print& print) {
  const nn::Attention* attention = nullptr;
  for (const nn::NamedModule& m : nn::named_modules(*parts.model)) {
    attention = dynamic_cast<const nn::Attention*>(m.module);
    if (attention) break;
  }
  if (!attention) return;
  const nn::Attention::Config& of = attention->config();
  const bool cut = c.parallelism.sequence_cut().has_value(),
             documents = c.dataloader.packing == "documents";
  std::vector<std::string> lines;
  for (const nn::AttentionMetadata& kind : parts.model->metadata(c.training.seq_len).kinds) {
    AttentionCase call{.dtype = c.training.mixed_precision_param,
                       .heads = of.n_heads,
                       .kv_heads = of.n_kv_heads,
                       .queries = c.training.seq_len,
                       .keys = c.training.seq_len,
                       .d = of.head_dim,
                       .dv = of.head_dim,
                       .mask = kind.mask,
                       .mask_tensors = cut || documents || kind.block_map.blocks.defined(),
                       .soft_cap = of.soft_cap};
    const AttentionChoice choice = choose_attention(call, has_cudnn());
    const std::string by =
        choice.path == AttentionPath::cudnn
            ? fmt::format("cuDNN {}", cudnn_text())
            : fmt::format("{} ({})", name_of(choice.path),
                          choice.why_not_cudnn == kNoCudnn ? "no cuDNN: " + cudnn_text()
                                                           : std::string(choice.why_not_cudnn));
    std::string line =
        fmt::format("attention: {}, heads of {}, {}{}: {}", name(call.dtype), of.head_dim,
                    concat(kind.mask), documents ? " & document" : "", by);
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  }
  for (const std::string& line : lines) print(line);
}

void announce_data(const Config& c, const RunParts& parts, const Print& print) {
  if (parts.data) {
    for (const DataInfo& data : parts.data->sources()) {
      print(
          fmt::format("data: {}, {}{}, {} of {}{}{}{}", data.path,
                      data.documents > 0 ? with_separators(data.documents, "document") + ", " : "",
                      with_separators(data.tokens, "token"),
                      with_separators(data.windows, "window"), c.training.seq_len,
                      data.share < 1 ? fmt::format(", {:.4g} % of the rows", 100 * data.share) : "",
                      data.document_tokens.empty() ? "" : ", ", data.document_tokens));
      for (const std::string& line : data.notes()) print(line);
    }
  }
  if (!parts.validation) return;
  const DataInfo& held_out = parts.validation->info();
  if (!held_out.document_tokens.empty())
    print(fmt::format("validation: {}, {}", held_out.path, held_out.document_tokens));
  for (const std::string& line : held_out.notes("validation")) print(line);
}

// Rows of the vocabulary that no token of the data has cost memory, and time in the head.
void warn_of_untrained_rows(const Config& c, const Tokenizer& tokenizer, const Print& print) {
  constexpr int64_t kFarSmaller = 8;
  const int64_t tokens = tokenizer.vocabulary(), rows = c.model.vocab_size();
  if (tokens == 0 || rows < kFarSmaller * tokens) return;
  print(
      fmt::format("warning: the tokenizer has {}, and model.vocab_size is {}: most rows of "
                  "the embedding and of the head are never trained; {}",
                  with_separators(tokens, "token"), with_separators(rows),
                  c.tokenizer_path().empty()
                      ? "name the tokenizer of the model as --hf_assets_path"
                      : "give the tokenizer of the model, or a smaller --model.vocab_size"));
}

void announce_mesh(const Config& c, const RunParts& parts, const Print& print) {
  const int rows = parts.feed->share().parts;
  print(fmt::format("mesh: {}, {}", parts.mesh.text(),
                    rows == parts.mesh.size() ? "each rank reads its own rows"
                    : rows == 1               ? "all ranks read the same rows"
                                              : "rows cut into " + counted(rows, "part")));
  for (const ParallelPass& pass : parallel_passes()) {
    const std::string line = pass.announce ? pass.announce(c.parallelism) : "";
    if (!line.empty()) print(line);
  }
}

void announce_batch(const Config& c, const Feed& feed, const Print& print) {
  const int parts = feed.share().parts;
  print(fmt::format(
      "batch: {} x {} x {} = {} of {} = {} a step{}", counted(feed.rows_at_once() / parts, "row"),
      counted(parts, "data-parallel rank"), counted(feed.micro_batches(), "micro-batch"),
      counted(feed.rows_per_step(), "row"), c.training.seq_len,
      with_separators(feed.tokens_per_step(), "token"),
      c.training.global_batch_size < 0 && parts > 1
          ? "; it grows with the ranks unless training.global_batch_size says another"
          : ""));
}

void announce_training(const Config& c, const RunParts& parts, const Print& print) {
  print(
      fmt::format("precision: parameters {} (training.dtype), computed in {} "
                  "(training.mixed_precision_param), optimizer states {}",
                  name(c.model.dtype()), name(c.training.mixed_precision_param),
                  name(c.optimizer.state_dtype)));
  std::vector<PatternGroup> groups;
  if (!c.optimizer.param_groups.empty())
    groups = parameter_groups(c.optimizer, nn::named_parameters(models::whole_of(*parts.model)));
  for (const PatternGroup& g : groups) {
    print(fmt::format("parameter group: {}, {}, lr {:g}, weight decay {:g}",
                      g.pattern.empty() ? "all others" : g.pattern,
                      counted(g.parameters.size(), "tensor"), g.options.lr,
                      g.options.weight_decay));
  }
  announce_batch(c, *parts.feed, print);
  print(fmt::format("training: {}, lr {:g}, warm-up {}, seed {}, into {}",
                    counted(c.training.steps, "step"), c.optimizer.lr,
                    counted(c.lr_scheduler.warmup_steps, "step"), c.debug.seed, c.dump_folder));
}

}  // namespace

void announce(const RunFacts& run, const RunParts& parts, const Print& print) {
  announce_model(run.config, parts, print);
  announce_device(run.device, print);
  if (run.device.is_cuda() && run.config.metrics.summary != "none")
    announce_attention(run.config, parts, print);
  announce_data(run.config, parts, print);
  if (parts.data) warn_of_untrained_rows(run.config, *run.tokenizer, print);
  announce_mesh(run.config, parts, print);
  for (const std::string& warning : run.config.warnings()) print("warning: " + warning);
  announce_training(run.config, parts, print);
}

// "About": other processes may take or free memory of the same device meanwhile.
void announce_connections(const Print& print) {
  const auto [communicators, seconds, bytes] = nccl_connections();
  if (communicators == 0) return;
  print(fmt::format("NCCL: {} connected in {:.2f} s, about {} of device memory",
                    counted(communicators, "communicator"), seconds, byte_count(bytes)));
}

void announce_refusals(const Print& print) {
  for (const std::string& why : noted_cudnn_refusals()) {
    print(fmt::format("attention: cuDNN refused a call, which Tessera's kernels do: {}",
                      why.substr(0, why.find('\n'))));
  }
}

}  // namespace tessera::train
