// SPDX-License-Identifier: Apache-2.0
// Defaults are those of the run: its validation data (else its training data), batch size and
// sequence length. The data is read once before ranks start, so that no rank waits for one that
// fails.
#include "tessera/dist/launch/run.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/run/build_model.h"
#include "tessera/train/run/evaluate.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/run/trained_model.h"

#include <fmt/format.h>

#include <ostream>

namespace tessera::train {
namespace {

struct EvalConfig {
  std::string checkpoint, dataset_path;
  int64_t steps = -1, local_batch_size = 0, seq_len = 0, ranks = 0, threads = 0;
  void fields(config::Fields& f) {
    f.add("checkpoint", checkpoint, "dump folder of a run, or one of its checkpoints");
    f.add("dataset_path", dataset_path,
          "data to evaluate on; none: the run's validation.dataset_path, else its dataloader.path");
    f.add("steps", steps, "number of batches; -1: all of the data", {.min = -1, .max = 1e12});
    f.add("local_batch_size", local_batch_size,
          "batch size per rank; 0: training.local_batch_size of the run",
          {.min = 0, .max = 1 << 20, .unit = "sequences"});
    f.add("seq_len", seq_len, "sequence length; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24, .unit = "tokens"});
    f.add("ranks", ranks,
          "ranks to run as threads of this process; 0: one rank, or one per process of a launcher",
          {.min = 0, .max = 4096, .unit = "ranks"});
    f.add("threads", threads,
          "kernel threads per rank; 0: the cores divided among the ranks of the host",
          {.min = 0, .max = 4096, .unit = "threads", .per_rank = true});
  }
};

// The ranks of eval open the checkpoint each for itself, and may find another one.
void check_agreement(EvalConfig own, Config run, const EvaluationPlan& plan, const Warn& warn) {
  RankFacts facts;
  facts.add("command", "eval");
  config::Fields fields;
  fields.section("", own);
  facts.add_fields(fields);
  facts.add_fields(run.fields(), "the checkpoint's ");
  facts.add_data(plan.path, plan.path_field);
  require_equal_ranks("eval", facts);
  compare_kernels("eval", run.debug.deterministic && !run.debug.deterministic_warn_only, warn);
}

}  // namespace

int eval_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const auto c = parsed_fields<EvalConfig>(arguments);
  if (c.checkpoint.empty())
    fail<ConfigError>("--checkpoint", "is missing: give the dump folder of a run");
  if (c.steps == 0) fail<ConfigError>("--steps", "0: expected at least 1, or -1 for all");
  const Launch launch = detect_launch(static_cast<int>(c.ranks));
  const Warn warn = [&](const std::string& line) {
    if (launch.rank == 0) out << line << '\n';
  };
  const TrainedModel trained = open_trained_model(c.checkpoint, warn, catalogue);
  const Config& run = trained.config;
  const std::string& held_out = run.validation.dataset_path;
  const auto or_else = [](int64_t given, int64_t of_run) { return given > 0 ? given : of_run; };
  const EvaluationPlan plan{.path = !c.dataset_path.empty() ? c.dataset_path
                                    : !held_out.empty()     ? held_out
                                                            : run.dataloader.path,
                            .path_field = "dataset_path",
                            .seq_len = or_else(c.seq_len, run.training.seq_len),
                            .vocabulary = run.model.vocab_size(),
                            .rows = or_else(c.local_batch_size, run.training.local_batch_size)};
  if (plan.seq_len > run.model.max_seq_len()) {
    fail<ConfigError>("--seq_len", plan.seq_len, " is above the model's max_seq_len ",
                      run.model.max_seq_len());
  }
  check_evaluation_data(run.dataloader, plan);
  const auto on_rank = [&](World& world) {
    check_agreement(c, run, plan, warn);
    const Mesh mesh = Mesh::make(ParallelismConfig().axes(world.size()));
    DataLoader data = evaluation_data(run.dataloader, plan, mesh);
    const auto model = build_model(
        run, mesh, [&](nn::Module& m, const nn::LayoutOf& layouts) { trained.fill(m, layouts); });
    check_replicas("eval", model_tensors(*model), "after loading");
    const Evaluation e = evaluate(*model, data, c.steps);
    if (world.rank() != 0) return;
    out << fmt::format("loss: {:.5f}  perplexity: {:.4f}  tokens: {}  data: {}\n", e.loss,
                       e.perplexity, with_separators(e.tokens), plan.path);
  };
  run_launched(launch, on_rank, {.threads = static_cast<int>(c.threads)});
  return 0;
}

std::string eval_help(Arguments, const Catalogue&) { return help_of_fields<EvalConfig>(); }

}  // namespace tessera::train
