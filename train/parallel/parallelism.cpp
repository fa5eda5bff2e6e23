// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/parallelism.h"

#include "tessera/nn/io/utf8.h"

#include <algorithm>

namespace tessera::train {
namespace {

using nn::ContextMethod, nn::LoadBalancer;

constexpr std::string_view kReshard = "--parallelism.fsdp_reshard_after_forward";

[[noreturn]] void does_not_fit(const ParallelismConfig& c, int64_t ranks, int64_t given) {
  const bool rest = c.data_parallel_shard_degree == -1;
  fail<ConfigError>(
      "--parallelism", "data_parallel_replicate_degree ", c.data_parallel_replicate_degree,
      rest ? "" : concat(" x data_parallel_shard_degree ", c.data_parallel_shard_degree),
      " x context_parallel_degree ", c.context_parallel_degree, " x tensor_parallel_degree ",
      c.tensor_parallel_degree, " = ", given,
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

// The ranks of the axes of these names.
int64_t ranks_of(const std::vector<MeshAxis>& axes, const std::vector<std::string>& names) {
  int64_t ranks = 1;
  for (const MeshAxis& axis : axes)
    if (std::ranges::count(names, axis.name) > 0) ranks *= axis.size;
  return ranks;
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
  f.add("context_parallel_degree", context_parallel_degree,
        "ranks that share each sequence and read the same rows; parameters are sharded over them "
        "too",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add_choice("context_parallel_load_balancer", context_parallel_load_balancer,
               "which tokens of a sequence a context-parallel rank has: headtail: as much of the "
               "beginning as of the end, document_headtail: the same of each document, ptrr: "
               "blocks dealt by what the mask lets them see, none: a run of tokens, which dropout "
               "needs for the masks of one rank, and --model.capacity_factor",
               {{"headtail", LoadBalancer::head_tail},
                {"document_headtail", LoadBalancer::document_head_tail},
                {"ptrr", LoadBalancer::round_robin},
                {"none", LoadBalancer::none}});
  f.add_choice(
      "context_parallel_rotate_method", context_parallel_rotate_method,
      "exchange of keys between context-parallel ranks: allgather: all keys of a layer are "
      "gathered, alltoall: they go round the ranks, a part at a time (ring attention)",
      {{"allgather", ContextMethod::all_gather}, {"alltoall", ContextMethod::ring}});
  f.add("context_parallel_ulysses_degree", context_parallel_ulysses_degree,
        "context-parallel ranks that exchange heads for the sequence (Ulysses); below "
        "context_parallel_degree and above 1, keys go round the groups of so many, by "
        "context_parallel_rotate_method alltoall; of all context-parallel ranks, keys stay, and "
        "that method has no effect",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("tensor_parallel_degree", tensor_parallel_degree,
        "ranks that share each layer's matmuls and read the same rows",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("expert_parallel_degree", expert_parallel_degree,
        "ranks that share the experts of a layer, to which tokens travel; they are those of "
        "data_parallel_shard_degree, context_parallel_degree and tensor_parallel_degree",
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
  const int64_t cp = context_parallel_degree, heads = context_parallel_ulysses_degree;
  if (cp >= 1 && heads >= 1 && cp % heads != 0) {
    faults.push_back(concat("[--parallelism.context_parallel_ulysses_degree] ", heads,
                            " does not divide --parallelism.context_parallel_degree ", cp,
                            ": give a degree that does"));
  } else if (heads > 1 && heads < cp && context_parallel_rotate_method != ContextMethod::ring) {
    faults.push_back(concat("[--parallelism.context_parallel_ulysses_degree] ", heads, " of ", cp,
                            " ranks exchange heads, and keys go round: give "
                            "--parallelism.context_parallel_rotate_method alltoall, or degree 1 "
                            "or ",
                            cp));
  }
  return faults;
}

std::vector<std::string> ParallelismConfig::context_axes() const {
  const bool both = context_parallel_ulysses_degree > 1 &&
                    context_parallel_ulysses_degree < context_parallel_degree;
  return both ? std::vector<std::string>{"cp_ring", "cp_heads"} : std::vector<std::string>{"cp"};
}

std::vector<std::string> ParallelismConfig::shard_axes() const {
  std::vector<std::string> axes = context_axes();
  axes.insert(axes.begin(), "dp_shard");
  return axes;
}

std::optional<nn::ContextParallelOptions> ParallelismConfig::sequence_cut() const {
  if (context_parallel_degree == 1) return {};
  const ContextMethod method = context_parallel_ulysses_degree == 1 ? context_parallel_rotate_method
                               : context_parallel_ulysses_degree == context_parallel_degree
                                   ? ContextMethod::ulysses
                                   : ContextMethod::ring_ulysses;
  return nn::ContextParallelOptions{
      .method = method, .balancer = context_parallel_load_balancer, .axes = context_axes()};
}

std::vector<MeshAxis> ParallelismConfig::axes(int64_t ranks) const {
  const int64_t replicate = data_parallel_replicate_degree, cp = context_parallel_degree,
                tp = tensor_parallel_degree, others = replicate * cp * tp;
  int64_t shard = data_parallel_shard_degree;
  if (shard == -1) {
    if (ranks % others != 0) does_not_fit(*this, ranks, others);
    shard = ranks / others;
  } else if (shard * others != ranks) {
    does_not_fit(*this, ranks, shard * others);
  }
  std::vector<MeshAxis> axes{{"dp_replicate", static_cast<int>(replicate)},
                             {"dp_shard", static_cast<int>(shard)}};
  const std::vector<std::string> context = context_axes();
  const int64_t heads = context.size() == 1 ? 1 : context_parallel_ulysses_degree;
  axes.push_back({context.front(), static_cast<int>(cp / heads)});
  if (heads > 1) axes.push_back({context.back(), static_cast<int>(heads)});
  axes.push_back({"tp", static_cast<int>(tp)});
  return axes;
}

nn::Reshard ParallelismConfig::reshard(int64_t ranks) const {
  const nn::Reshard reshard = nn::parse_reshard(fsdp_reshard_after_forward, kReshard);
  const std::string fault = nn::reshard_fault(reshard, ranks_of(axes(ranks), shard_axes()));
  if (!fault.empty()) fail<ConfigError>(kReshard, fault);
  return reshard;
}

nn::ExpertParallel ParallelismConfig::experts(int64_t ranks) const {
  nn::ExpertParallel degrees{.degree = static_cast<int>(expert_parallel_degree),
                             .tensor_degree = static_cast<int>(expert_tensor_parallel_degree),
                             .padding = expert_parallel_padding,
                             .data = shard_axes()};
  const std::string fault = nn::expert_parallel_fault(degrees, ranks_of(axes(ranks), degrees.data),
                                                      tensor_parallel_degree);
  if (!fault.empty()) fail<ConfigError>("--parallelism", fault);
  if (degrees.degree == 1) degrees.tensor_degree = static_cast<int>(tensor_parallel_degree);
  return degrees;
}

int64_t ParallelismConfig::data_parts(int64_t ranks) const {
  return ranks_of(axes(ranks), {"dp_replicate", "dp_shard"});
}

// What passes and steps reduce over is made here and by the passes, so that no rank first waits for
// the others inside a step.
Mesh make_mesh(const ParallelismConfig& parallelism) {
  std::vector<std::string> losses = parallelism.shard_axes(), shards = losses;
  losses.insert(losses.begin(), "dp_replicate");
  shards.emplace_back("tp");
  std::vector<MeshProduct> products{
      {"dp", {"dp_replicate", "dp_shard"}}, {"loss", losses}, {"shards", shards}};
  const std::vector<std::string> context = parallelism.context_axes();
  if (context.size() > 1) products.push_back({"cp", context});
  return Mesh::make(parallelism.axes(current_group().size()), products);
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
