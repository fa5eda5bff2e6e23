// SPDX-License-Identifier: Apache-2.0
// Texts of several prompts are generated together but printed one after another: the first one
// while it is generated, the others when all are complete. All ranks run the model, rank 0 prints.
// A field that is given twice keeps the last value, so prompts are extracted before the fields are
// parsed.
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/model_on_ranks.h"
#include "tessera/train/generate/generate.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <ostream>
#include <vector>

namespace tessera::train {
namespace {

constexpr const char* kNone = "none";

struct GenerateConfig {
  ModelOnRanksConfig on;
  std::string prompt, chat_template = kOfRun;
  int64_t tokens = 200, top_k = 40, context = 0, seed = 0;
  double temperature = 0.8, top_p = 1;
  void fields(config::Fields& f) {
    f.add("prompt", prompt,
          "text to continue; give it several times to continue several texts at once");
    f.add("chat_template", chat_template,
          concat("template of a model that was trained on conversations: ", chat_template_names(),
                 ", or a JSON file; each prompt is then a user's message, and the answer is "
                 "generated; none: the text of the prompt is continued; run: as the run trained"));
    f.add("tokens", tokens, "tokens to generate", {.min = 0, .max = 1 << 24, .unit = "tokens"});
    f.add("temperature", temperature, "sampling temperature; 0: always the most likely token",
          {.min = 0, .max = 100});
    f.add("top_k", top_k, "sample from the k most likely tokens", {.min = 1, .max = 1 << 24});
    f.add("top_p", top_p,
          "sample from the fewest most likely tokens whose probabilities sum to this",
          {.min = 0, .max = 1, .above_min = true});
    f.add("context", context, "context length; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24, .unit = "tokens"});
    f.add("seed", seed, "seed of sampling", {.min = 0});
  }
};

// Extracts each `--prompt TEXT` and `--prompt=TEXT` from the arguments; one without text remains
// and is an error of the parser.
std::vector<std::string> take_prompts(std::span<const std::string> arguments,
                                      std::vector<std::string>& rest) {
  constexpr std::string_view kField = "--prompt", kFieldIs = "--prompt=";
  std::vector<std::string> prompts;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.starts_with(kFieldIs)) prompts.push_back(word.substr(kFieldIs.size()));
    else if (word == kField && i + 1 < arguments.size()) prompts.push_back(arguments[++i]);
    else rest.push_back(word);
  }
  if (prompts.empty()) prompts.emplace_back();
  return prompts;
}

// Prints several texts that arrive at once: one immediately, the others afterwards.
class Texts {
 public:
  Texts(std::ostream& out, const std::vector<std::string>& prompts)
      : out_(out), prompts_(prompts), streams_(prompts.size()), waiting_(prompts.size()) {}
  void add(size_t row, std::string_view bytes) {
    const std::string shown = streams_[row].push(bytes);
    if (!begun_) begin(row);
    if (row == shown_) out_ << shown << std::flush;
    else waiting_[row] += shown;
  }
  void finish() {
    if (begun_) end(shown_);
    for (size_t row = 0; row < prompts_.size(); ++row) {
      if (begun_ && row == shown_) continue;
      out_ << heading(row) << printable(prompts_[row]) << waiting_[row];
      end(row);
    }
  }

 private:
  [[nodiscard]] std::string heading(size_t row) const {
    return prompts_.size() == 1 ? "" : concat('[', row + 1, "] ");
  }
  void begin(size_t row) {
    begun_ = true;
    shown_ = row;
    out_ << heading(row) << printable(prompts_[row]);
  }
  void end(size_t row) { out_ << streams_[row].finish() << '\n'; }

  std::ostream& out_;
  const std::vector<std::string>& prompts_;
  std::vector<Utf8Stream> streams_;
  std::vector<std::string> waiting_;
  size_t shown_ = 0;
  bool begun_ = false;
};

// The template that prompts are written with; empty: none.
std::string template_of(const GenerateConfig& c, const DataConfig& of_run) {
  if (c.chat_template == kNone) return "";
  if (c.chat_template != kOfRun) return c.chat_template;
  return of_run.format == "text" ? "" : of_run.chat_template;
}

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  GenerateConfig c;
  const config::Fields fields = fields_of(c);
  std::vector<std::string> rest;
  const std::vector<std::string> prompts = take_prompts(arguments, rest);
  config::throw_if_any(ModelOnRanks::faults(fields, c.on, rest));
  const ModelOnRanks model(c.on, out, catalogue);
  if (const std::string_view why = model.tokenizer()->missing(); !why.empty())
    fail<DataError>("tessera generate", "a prompt is text, but ", why);
  std::shared_ptr<const ChatEncoder> chat;
  if (const std::string name = template_of(c, model.config().dataloader); !name.empty()) {
    chat = std::make_shared<ChatEncoder>(find_chat_template(name, "chat_template"),
                                         *model.tokenizer(), "chat_template");
  }
  const GenerateOptions options{
      .tokens = c.tokens,
      .temperature = c.temperature,
      .top_k = c.top_k,
      .top_p = c.top_p,
      .context = c.context > 0 ? c.context : model.config().training.seq_len,
      .seed = static_cast<uint64_t>(c.seed),
      .tokenizer = model.tokenizer(),
      .begins = documents_begin(model.config().dataloader.document_tokens, *model.tokenizer()),
      .ends = model.end_ids(),
      .chat = chat,
      .cut = c.on.parallelism.sequence_cut()};
  check(options);
  RankFacts facts;
  for (size_t i = 0; i < prompts.size(); ++i) facts.add(concat("prompt ", i + 1), prompts[i]);
  model.run("generate", fields, std::move(facts), [&](World& world, models::LanguageModel& m) {
    if (world.rank() != 0) {
      (void)generate(m, prompts, options);
      return;
    }
    // An answer stands below its prompt.
    std::vector<std::string> headings = prompts;
    for (std::string& heading : headings) heading += chat ? "\n" : "";
    Texts texts(out, headings);
    (void)generate(m, prompts, options,
                   [&](size_t row, std::string_view bytes) { texts.add(row, bytes); });
    texts.finish();
  });
  return 0;
}

std::string help(Arguments, const Catalogue&) { return help_of_fields_on_ranks<GenerateConfig>(); }

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .arguments = " [fields]",
          .summary =
              "generate text with a trained model: tessera generate --checkpoint DIR --prompt TEXT",
          .run = run,
          .help = help};
}

}  // namespace tessera::train
