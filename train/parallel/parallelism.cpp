// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/parallelism.h"

#include "tessera/core/message.h"
#include "tessera/models/config/collect_impl.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace tessera::train {
namespace {

// Of all passes, outermost first.
std::vector<PassAxis> all_axes(const ParallelismConfig& p) {
  std::vector<PassAxis> all;
  const std::span<const ParallelPass> passes = parallel_passes();
  for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass)
    if (pass->axes) std::ranges::move(pass->axes(p), std::back_inserter(all));
  return all;
}

// `data_parallel_replicate_degree 2 x context_parallel_degree 1 ...`, without the one that takes
// the rest.
std::string degrees_text(const std::vector<PassAxis>& axes) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t degree = axes[i].ranks;
    if (degree == -1) continue;
    for (; i + 1 < axes.size() && axes[i + 1].field == axes[i].field; ++i)
      degree *= axes[i + 1].ranks;
    text += concat(text.empty() ? "" : " x ", axes[i].field, ' ', degree);
  }
  return text;
}

[[noreturn]] void does_not_fit(const std::vector<PassAxis>& axes, int64_t ranks, int64_t given) {
  const auto taker = std::ranges::find(axes, -1, &PassAxis::ranks);
  const bool rest = taker != axes.end();
  fail<ConfigError>("--parallelism", degrees_text(axes), " = ", given,
                    rest ? ", which does not divide the " : ", but there ",
                    rest         ? ""
                    : ranks == 1 ? "is "
                                 : "are ",
                    counted(ranks, "rank"), ": give ",
                    rest ? "degrees that do"
                         : concat("degrees that multiply to ", ranks,
                                  ", or data_parallel_shard_degree -1 for the rest"),
                    ", or start another number of ranks");
}

// The same with the rest given its ranks.
std::vector<PassAxis> sized_axes(const ParallelismConfig& p, int64_t ranks) {
  std::vector<PassAxis> axes = all_axes(p);
  int64_t given = 1;
  for (const PassAxis& axis : axes) given *= axis.ranks == -1 ? 1 : axis.ranks;
  const auto rest = std::ranges::find(axes, -1, &PassAxis::ranks);
  if (rest == axes.end() ? given != ranks : ranks % given != 0) does_not_fit(axes, ranks, given);
  if (rest != axes.end()) rest->ranks = ranks / given;
  return axes;
}

}  // namespace

std::string Remedy::text() const {
  std::string text;
  for (const auto& [field, value] : values)
    text += concat(text.empty() ? "--" : " --", field, ' ', value);
  return text;
}

std::span<const ParallelPass> parallel_passes() {
  static const std::vector<ParallelPass> rows = ParallelPasses::rows();
  return rows;
}

void ParallelismConfig::fields(config::Fields& f) { ParallelPasses::fields(*this, f); }

Faults ParallelismConfig::conflicts() const {
  Faults faults;
  for (const ParallelPass& pass : parallel_passes())
    if (pass.conflicts) std::ranges::move(pass.conflicts(*this), std::back_inserter(faults));
  return faults;
}

int64_t ParallelismConfig::stage_ranks(int64_t ranks) const {
  if (ranks % pipeline_parallel_degree == 0) return ranks / pipeline_parallel_degree;
  fail<ConfigError>("--parallelism.pipeline_parallel_degree", pipeline_parallel_degree,
                    " does not divide the ", counted(ranks, "rank"),
                    ": give a degree that does, or start another number of ranks");
}

std::vector<MeshAxis> ParallelismConfig::axes(int64_t ranks) const {
  std::vector<MeshAxis> axes;
  for (const PassAxis& axis : sized_axes(*this, ranks))
    axes.push_back({axis.name, static_cast<int>(axis.ranks)});
  return axes;
}

std::vector<std::string> ParallelismConfig::axes_that(bool PassAxis::*kind) const {
  std::vector<std::string> names;
  for (const PassAxis& axis : all_axes(*this))
    if (axis.*kind) names.push_back(axis.name);
  return names;
}

int64_t ParallelismConfig::ranks_of(int64_t ranks, bool PassAxis::*kind) const {
  int64_t count = 1;
  for (const PassAxis& axis : sized_axes(*this, ranks))
    if (axis.*kind) count *= axis.ranks;
  return count;
}

Faults parallelism_faults(const PassFacts& facts) {
  Faults faults = facts.parallelism.conflicts();
  PassFacts known = facts;
  if (!faults.empty()) known.ranks = 0;  // as long as a degree has a fault of its own
  const auto fits = [&] {
    known.ranks = known.parallelism.stage_ranks(known.ranks);
    (void)known.parallelism.axes(known.ranks);
  };
  if (known.ranks > 0 && !config::collect(faults, fits)) known.ranks = 0;
  for (const ParallelPass& pass : parallel_passes())
    if (pass.faults) std::ranges::move(pass.faults(known), std::back_inserter(faults));
  return faults;
}

// What passes and steps reduce over is made here and by the passes, so that no rank first waits for
// the others inside a step.
Mesh make_mesh(const ParallelismConfig& parallelism) {
  MeshProduct rows{"dp", {}}, tokens{"loss", {}}, shards{"shards", {}}, context{"cp", {}};
  for (const PassAxis& axis : all_axes(parallelism)) {
    if (axis.cuts_rows) rows.axes.push_back(axis.name);
    if (axis.cuts_rows || axis.cuts_sequences) tokens.axes.push_back(axis.name);
    if (axis.shards_parameters || axis.splits_layers) shards.axes.push_back(axis.name);
    if (axis.cuts_sequences) context.axes.push_back(axis.name);
  }
  std::vector<MeshProduct> products{rows, tokens, shards};
  if (context.axes.size() > 1) products.push_back(context);
  const ProcessGroup& world = current_group();
  const auto alike = static_cast<int>(parallelism.stage_ranks(world.size()));
  std::vector<int> ranks(static_cast<size_t>(alike));
  std::iota(ranks.begin(), ranks.end(), world.rank() / alike * alike);
  return Mesh::make(parallelism.axes(alike), ranks, products);
}

Mesh pipeline_mesh(const ParallelismConfig& parallelism) {
  const auto stages = static_cast<int>(parallelism.pipeline_parallel_degree);
  return Mesh::make({{"pp", stages}, {"stage", current_group().size() / stages}});
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
