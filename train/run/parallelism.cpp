// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/parallelism.h"

#include "tessera/nn/io/utf8.h"

namespace tessera::train {
namespace {

constexpr std::string_view kReshard = "--parallelism.fsdp_reshard_after_forward";

[[noreturn]] void does_not_fit(const ParallelismConfig& c, int64_t ranks, int64_t given) {
  const bool rest = c.data_parallel_shard_degree == -1;
  fail<ConfigError>(
      "--parallelism", "data_parallel_replicate_degree ", c.data_parallel_replicate_degree,
      rest ? "" : concat(" x data_parallel_shard_degree ", c.data_parallel_shard_degree),
      " x tensor_parallel_degree ", c.tensor_parallel_degree, " = ", given,
      rest ? ", which does not divide the " : ", but there ",
      rest         ? ""
      : ranks == 1 ? "is "
                   : "are ",
      ranks, ranks == 1 ? " rank" : " ranks", ": give ",
      rest ? "degrees that do"
           : concat("degrees that multiply to ", ranks,
                    ", or data_parallel_shard_degree -1 for the rest"),
      ", or start another number of ranks");
}

}  // namespace

void ParallelismConfig::fields(config::Fields& f) {
  f.add("data_parallel_replicate_degree", data_parallel_replicate_degree,
        "groups of ranks that hold copies of the parameters (DDP; with a shard degree, HSDP)",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("data_parallel_shard_degree", data_parallel_shard_degree,
        "ranks over which the parameters are sharded (FSDP); -1: the ranks that the other degrees "
        "leave",
        {.min = -1, .max = 1 << 20, .unit = "ranks"});
  f.add("tensor_parallel_degree", tensor_parallel_degree,
        "ranks that share each layer's matmuls and read the same rows",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("expert_parallel_degree", expert_parallel_degree,
        "ranks that share the experts of a layer, to which tokens travel; they are those of "
        "data_parallel_shard_degree and tensor_parallel_degree",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("expert_tensor_parallel_degree", expert_tensor_parallel_degree,
        "ranks that share each expert, where expert_parallel_degree is above 1: 1, or "
        "tensor_parallel_degree; without expert parallelism it is always the latter",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add(
      "expert_parallel_padding", expert_parallel_padding,
      "0: as many tokens travel to each expert as chose it; above: each rank sends every expert a "
      "buffer of this times an even part of its tokens, so that all sizes are fixed and none is "
      "read on the host; unused places travel and are computed as zeros, and tokens that find no "
      "place are dropped (moe/layer_N/dropped), in evaluation too; num_experts / top_k holds all",
      {.min = 0, .max = 1e6});
  f.add("enable_sequence_parallel", enable_sequence_parallel,
        "tensor parallel: shard activations between layers over the sequence; false: replicate "
        "them");
  f.add("disable_loss_parallel", disable_loss_parallel,
        "tensor parallel: gather the logits for the loss instead of sharding the vocabulary");
  f.add("fsdp_reshard_after_forward", fsdp_reshard_after_forward,
        "when gathered parameters are freed: always after forward, to be gathered again in "
        "backward; never before backward; default: after forward, but for the last unit, which "
        "backward needs first; a number of ranks: as always, but groups of so many keep a copy");
}

std::vector<std::string> ParallelismConfig::conflicts() const {
  std::vector<std::string> faults;
  if (data_parallel_shard_degree == 0) {
    faults.emplace_back(
        "[--parallelism.data_parallel_shard_degree] 0: expected at least 1, or -1 for the ranks "
        "that the other degrees leave");
  }
  if (expert_parallel_padding > 0 && expert_parallel_degree == 1) {
    faults.push_back(concat("[--parallelism.expert_parallel_padding] ", expert_parallel_padding,
                            ": no tokens travel with expert_parallel_degree 1; leave it out, or "
                            "give a degree above 1"));
  }
  try {
    (void)nn::parse_reshard(io::excerpt(fsdp_reshard_after_forward), kReshard);
  } catch (const ValueError& error) {
    faults.emplace_back(error.what());
  }
  return faults;
}

std::vector<MeshAxis> ParallelismConfig::axes(int64_t ranks) const {
  const int64_t replicate = data_parallel_replicate_degree, tp = tensor_parallel_degree;
  int64_t shard = data_parallel_shard_degree;
  if (shard == -1) {
    if (ranks % (replicate * tp) != 0) does_not_fit(*this, ranks, replicate * tp);
    shard = ranks / (replicate * tp);
  } else if (replicate * shard * tp != ranks) {
    does_not_fit(*this, ranks, replicate * shard * tp);
  }
  return {{"dp_replicate", static_cast<int>(replicate)},
          {"dp_shard", static_cast<int>(shard)},
          {"tp", static_cast<int>(tp)}};
}

nn::Reshard ParallelismConfig::reshard(int64_t ranks) const {
  const nn::Reshard reshard = nn::parse_reshard(fsdp_reshard_after_forward, kReshard);
  const std::string fault = nn::reshard_fault(reshard, axes(ranks)[1].size);
  if (!fault.empty()) fail<ConfigError>(kReshard, fault);
  return reshard;
}

nn::ExpertParallel ParallelismConfig::experts(int64_t ranks) const {
  const std::vector<MeshAxis> all = axes(ranks);
  nn::ExpertParallel degrees{.degree = static_cast<int>(expert_parallel_degree),
                             .tensor_degree = static_cast<int>(expert_tensor_parallel_degree),
                             .padding = expert_parallel_padding};
  const std::string fault = nn::expert_parallel_fault(degrees, all[1].size, all[2].size);
  if (!fault.empty()) fail<ConfigError>("--parallelism", fault);
  if (degrees.degree == 1) degrees.tensor_degree = all[2].size;
  return degrees;
}

int64_t ParallelismConfig::data_parts(int64_t ranks) const {
  return ranks / axes(ranks).back().size;
}

// What passes and steps reduce over is made here and by the passes, so that no rank first waits for
// the others inside a step.
Mesh make_mesh(const ParallelismConfig& parallelism) {
  return Mesh::make(parallelism.axes(current_group().size()),
                    {{"dp", {"dp_replicate", "dp_shard"}}, {"shards", {"dp_shard", "tp"}}});
}

DataShare data_share(const Mesh& mesh) {
  DataShare share;
  std::vector<Placement> placements;
  for (int i = 0; i < mesh.axes(); ++i) {
    const bool of_data = mesh.axis(i).name.starts_with("dp");
    placements.push_back(of_data ? Shard(0) : Replicate());
    if (!of_data) continue;
    share.axes.push_back(i);
    share.parts *= mesh.size(i);
    share.part = share.part * mesh.size(i) + mesh.coordinate(i);
  }
  share.by_rows = Layout::of(mesh, placements);
  share.replicated = Layout::replicated(mesh);
  return share;
}

}  // namespace tessera::train
