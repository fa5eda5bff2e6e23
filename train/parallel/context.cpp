// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/context.h"

#include "tessera/core/message.h"
#include "tessera/train/parallel/parallelism.h"

namespace tessera::train {
namespace {

using nn::ContextMethod, nn::LoadBalancer;

std::vector<PassAxis> axes(const ParallelismConfig& p) {
  const std::vector<std::string> names = p.context_axes();
  const int64_t heads = names.size() == 1 ? 1 : p.context_parallel_ulysses_degree;
  std::vector<PassAxis> all;
  for (const std::string& name : names) {
    all.push_back({.name = name,
                   .field = "context_parallel_degree",
                   .ranks = all.empty() ? p.context_parallel_degree / heads : heads,
                   .cuts_sequences = true,
                   .shards_parameters = true});
  }
  return all;
}

Faults conflicts(const ParallelismConfig& p) {
  const int64_t cp = p.context_parallel_degree, heads = p.context_parallel_ulysses_degree;
  if (cp >= 1 && heads >= 1 && cp % heads != 0) {
    return {concat("[--parallelism.context_parallel_ulysses_degree] ", heads,
                   " does not divide --parallelism.context_parallel_degree ", cp,
                   ": give a degree that does")};
  }
  if (heads > 1 && heads < cp && p.context_parallel_rotate_method != ContextMethod::ring) {
    return {concat("[--parallelism.context_parallel_ulysses_degree] ", heads, " of ",
                   counted(cp, "rank"),
                   " exchange heads, and keys go round: give "
                   "--parallelism.context_parallel_rotate_method alltoall, or degree 1 or ",
                   cp)};
  }
  return {};
}

Faults faults(const PassFacts& facts) {
  const ParallelismConfig& p = facts.parallelism;
  const int64_t heads = p.context_parallel_ulysses_degree;
  if (heads <= 1 || !facts.model) return {};
  const std::string fault =
      nn::exchanged_heads_fault(*facts.model, heads, p.tensor_parallel_degree);
  if (fault.empty()) return {};
  return {concat("[--parallelism.context_parallel_ulysses_degree] ", fault,
                 ": give a lower degree; 1 exchanges none")};
}

std::string announce(const ParallelismConfig& p) {
  const std::optional<nn::ContextParallelOptions> cut = p.sequence_cut();
  if (!cut) return {};
  return concat("sequences: cut into ", counted(p.context_parallel_degree, "part"),
                ", balanced by ", cut->balancer, ", keys by ", cut->method);
}

}  // namespace

void ContextParallel::Fields::fields(config::Fields& f) {
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
}

std::vector<std::string> ContextParallel::Fields::context_axes() const {
  const bool both = context_parallel_ulysses_degree > 1 &&
                    context_parallel_ulysses_degree < context_parallel_degree;
  return both ? std::vector<std::string>{"cp_ring", "cp_heads"} : std::vector<std::string>{"cp"};
}

std::optional<nn::ContextParallelOptions> ContextParallel::Fields::sequence_cut() const {
  if (context_parallel_degree == 1) return {};
  const ContextMethod method = context_parallel_ulysses_degree == 1 ? context_parallel_rotate_method
                               : context_parallel_ulysses_degree == context_parallel_degree
                                   ? ContextMethod::ulysses
                                   : ContextMethod::ring_ulysses;
  return nn::ContextParallelOptions{
      .method = method, .balancer = context_parallel_load_balancer, .axes = context_axes()};
}

bool ContextParallel::Fields::moves_tokens() const {
  return context_parallel_degree > 1 && context_parallel_load_balancer != LoadBalancer::none;
}

ParallelPass ContextParallel::row() {
  return {.axes = axes, .conflicts = conflicts, .faults = faults, .announce = announce};
}

}  // namespace tessera::train
