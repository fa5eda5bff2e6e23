// SPDX-License-Identifier: Apache-2.0
// Defaults are those of the run: its validation data (else its training data), batch size and
// sequence length. The data is read once before ranks start, so that no rank waits for one that
// fails.
#include "tessera/train/chat/chat_template.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/model_on_ranks.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/step/evaluate.h"

#include <fmt/format.h>

#include <ostream>

namespace tessera::train {
namespace {

constexpr const char* kOfRun = "run";

std::vector<std::string> words_or_run() {
  std::vector<std::string> words = document_token_words();
  words.insert(words.begin(), kOfRun);
  return words;
}

struct EvalConfig {
  ModelOnRanksConfig on;
  std::string dataset_path, document_tokens = kOfRun;
  int64_t steps = -1, local_batch_size = 0, seq_len = 0;
  void fields(config::Fields& f) {
    f.add("dataset_path", dataset_path,
          "data to evaluate on; none: the run's validation.dataset_path, else its dataloader.path");
    f.add("document_tokens", document_tokens,
          concat(kDocumentTokensHelp, "; run: dataloader.document_tokens of the run"),
          {.choices = words_or_run()});
    f.add("steps", steps, "number of batches; -1: all of the data", {.min = -1, .max = 1e12});
    f.add("local_batch_size", local_batch_size,
          "batch size per rank; 0: training.local_batch_size of the run",
          {.min = 0, .max = 1 << 20, .unit = "sequences"});
    f.add("seq_len", seq_len, "sequence length; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24, .unit = "tokens"});
  }
};

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  EvalConfig c;
  const config::Fields fields = fields_of(c);
  std::vector<std::string> faults = ModelOnRanks::faults(fields, c.on, arguments);
  if (c.steps == 0) faults.emplace_back("[--steps] 0: expected at least 1, or -1 for all");
  config::throw_if_any(faults);
  const ModelOnRanks model(c.on, out, catalogue);
  const Config& run = model.config();
  const std::string& held_out = run.validation.dataset_path;
  const auto or_else = [](int64_t given, int64_t of_run) { return given > 0 ? given : of_run; };
  const bool as_run = c.document_tokens == kOfRun;
  const EvaluationPlan plan{.path = !c.dataset_path.empty() ? c.dataset_path
                                    : !held_out.empty()     ? held_out
                                                            : run.dataloader.path,
                            .path_field = "dataset_path",
                            .tokens_field = as_run ? kDocumentTokensField : "--document_tokens",
                            .seq_len = or_else(c.seq_len, run.training.seq_len),
                            .vocabulary = run.model.vocab_size(),
                            .rows = or_else(c.local_batch_size, run.training.local_batch_size),
                            .tokenizer = model.tokenizer()};
  if (plan.seq_len > run.model.max_seq_len()) {
    fail<ConfigError>("--seq_len", plan.seq_len, " is above the model's max_seq_len ",
                      run.model.max_seq_len());
  }
  DataConfig like = run.dataloader;
  if (!as_run) like.document_tokens = c.document_tokens;
  check_evaluation_data(like, plan);
  RankFacts facts;
  facts.add_data(plan.path, plan.path_field);
  if (const auto chat = chat_template_file(run.dataloader.chat_template); !chat.empty())
    facts.add_data(chat, "dataloader.chat_template");
  model.run("eval", fields, std::move(facts), [&](World& world, models::LanguageModel& m) {
    DataLoader data = evaluation_data(like, plan, m.placement().mesh);
    const DataInfo& info = data.info();
    if (world.rank() == 0) {
      for (const std::string& line : info.notes()) out << line << '\n';
    }
    const Evaluation e = evaluate(m, data, c.steps, c.on.parallelism.sequence_cut());
    if (world.rank() != 0) return;
    out << fmt::format("loss: {:.5f}  perplexity: {:.4f}  tokens: {}  data: {}{}{}\n", e.loss,
                       e.perplexity, with_separators(e.tokens), plan.path,
                       info.document_tokens.empty() ? "" : ", ", info.document_tokens);
  });
  return 0;
}

std::string help(Arguments, const Catalogue&) { return help_of_fields_on_ranks<EvalConfig>(); }

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
