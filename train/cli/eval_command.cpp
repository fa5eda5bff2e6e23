// SPDX-License-Identifier: Apache-2.0
// Defaults are those of the run: its validation data (else its training data), batch size and
// sequence length. The data is read once before ranks start, so that no rank waits for one that
// fails.
#include "tessera/train/chat/chat_template.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/model_on_ranks.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/step/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace tessera::train {
namespace {

// How the data is read: as the run read its own, but for what is given.
struct ReadingConfig {
  DataConfig data;
  void fields(config::Fields& f) { data.reading_fields(f); }
};

struct EvalConfig {
  ModelOnRanksConfig on;
  ReadingConfig dataloader;
  std::string dataset_path;
  int64_t steps = -1, local_batch_size = 0, seq_len = 0;
  void fields(config::Fields& f) {
    f.add("dataset_path", dataset_path,
          "data to evaluate on; none: the run's validation.dataset_path, else its dataloader.path");
    f.add("steps", steps, "number of batches; -1: all of the data", {.min = -1, .max = 1e12});
    f.add("local_batch_size", local_batch_size,
          "batch size per rank; 0: training.local_batch_size of the run",
          {.min = 0, .max = 1 << 20, .unit = "sequences"});
    f.add("seq_len", seq_len, "sequence length; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24, .unit = "tokens"});
  }
};

config::Fields fields_of_eval(EvalConfig& c) {
  config::Fields fields = fields_of(c);
  fields.section("dataloader", c.dataloader);
  return fields;
}

// Sets the fields of dataloader: those of the run, then the arguments, which have no faults. What a
// run says of text means nothing for conversations, and the other way round.
void read_as_run(EvalConfig& c, config::Fields& fields, const DataConfig& of_run,
                 Arguments arguments) {
  const auto is_text = [](const DataConfig& data) { return data.format == "text"; };
  c.dataloader.data = of_run;
  (void)fields.parse(arguments);
  if (is_text(c.dataloader.data) == is_text(of_run)) return;
  c.dataloader.data = {};
  (void)fields.parse(arguments);
}

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  EvalConfig c;
  config::Fields fields = fields_of_eval(c);
  std::vector<std::string> faults = ModelOnRanks::faults(fields, c.on, arguments);
  if (c.steps == 0) faults.emplace_back("[--steps] 0: expected at least 1, or -1 for all");
  config::throw_if_any(faults);
  const ModelOnRanks model(c.on, out, catalogue);
  const Config& run = model.config();
  read_as_run(c, fields, run.dataloader, arguments);
  const DataConfig& like = c.dataloader.data;
  const std::string& held_out = run.validation.dataset_path;
  EvaluationPlan plan = model.evaluation_plan(!c.dataset_path.empty() ? c.dataset_path
                                              : !held_out.empty()     ? held_out
                                                                      : run.dataloader.path);
  if (c.seq_len > 0) plan.seq_len = c.seq_len;
  if (c.local_batch_size > 0) plan.rows = c.local_batch_size;
  if (plan.seq_len > run.model.max_seq_len()) {
    fail<ConfigError>("--seq_len", plan.seq_len, " is above the model's max_seq_len ",
                      run.model.max_seq_len());
  }
  check_evaluation_data(like, plan);
  RankFacts facts;
  facts.add_data(plan.path, plan.path_field);
  if (const auto chat = chat_template_file(like.chat_template); !chat.empty())
    facts.add_data(chat, "dataloader.chat_template");
  model.run("eval", fields, std::move(facts), [&](World& world, models::LanguageModel& m) {
    DataLoader data = evaluation_data(like, plan, m.placement().mesh);
    const DataInfo& info = data.info();
    if (world.rank() == 0) {
      for (const std::string& line : info.notes()) out << line << '\n';
    }
    const Evaluation e = evaluate(m, data, c.steps, c.on.parallelism.sequence_cut());
    if (world.rank() != 0) return;
    const int64_t most = plan.rows * data_share(m.placement().mesh).parts;  // a batch of all ranks
    const int64_t rows = c.steps < 0 ? info.windows : std::min(info.windows, c.steps * most);
    out << fmt::format(
        "loss: {:.5f}  perplexity: {:.4f}  tokens: {}  rows: {} of seq_len {}  data: {}{}{}\n",
        e.loss, e.perplexity, with_separators(e.tokens), with_separators(rows), plan.seq_len,
        plan.path, info.document_tokens.empty() ? "" : ", ", info.document_tokens);
  });
  return 0;
}

std::string help(Arguments, const Catalogue&) {
  EvalConfig c;
  return "fields; those of dataloader are the run's unless they are given:\n" +
         fields_of_eval(c).help();
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .arguments = " [fields]",
          .summary =
              "compute loss and perplexity of a trained model: tessera eval --checkpoint DIR "
              "--dataset_path FILE",
          .run = run,
          .help = help};
}

}  // namespace tessera::train
