// SPDX-License-Identifier: Apache-2.0
// Words are counted file by file, so memory holds the distinct words of the data and one document.
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/data/text_reader.h"
#include "tessera/train/data/token_source.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/tokenizer/train_bpe.h"

#include <filesystem>
#include <ostream>
#include <system_error>

namespace tessera::train {
namespace {

struct TrainTokenizerConfig {
  BpeTraining training{.vocabulary = 32768, .split = BpeTrainer::split_names().front()};
  std::string out, text_field = "text";
  bool overwrite = false;
  void fields(config::Fields& f) {
    std::vector<std::pair<std::string, std::string>> splits;
    for (const std::string& name : BpeTrainer::split_names()) splits.emplace_back(name, name);
    f.add("vocab_size", training.vocabulary,
          "tokens in all, the 256 bytes and the two marks included",
          {.min = 258, .max = 1 << 24, .unit = "tokens"});
    f.add("out", out, "folder for tokenizer.json and tokenizer_config.json");
    f.add_choice("split", training.split,
                 "how text is split into words: as the tokenizer of this family does", splits);
    f.add("begin", training.begin, "mark at the begin of a document");
    f.add("end", training.end, "mark at the end of a document");
    f.add("text_field", text_field, "JSONL field of the text");
    f.add("overwrite", overwrite, "replace the tokenizer that is in the folder of out");
  }
};

// The error if the folder holds a file that would be replaced; empty: it does not.
std::string in_the_way(const TrainTokenizerConfig& c) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::error_code error;
    const auto path = std::filesystem::path(c.out) / name;
    if (c.overwrite || !std::filesystem::exists(std::filesystem::symlink_status(path, error)))
      continue;
    return concat("[--out] ", path.string(),
                  " exists already: give another folder, or --overwrite to replace the tokenizer");
  }
  return "";
}

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  if (arguments.empty() || arguments[0] != "train") {
    fail<ConfigError>("tessera tokenizer",
                      arguments.empty() ? "no action is" : "an unknown action is",
                      " given, expected: tessera tokenizer train --vocab_size N --out DIR FILES");
  }
  TrainTokenizerConfig c;
  config::Fields fields;
  fields.section("", c);
  const auto [given, rest] = files_and_fields(arguments.subspan(1), fields);
  std::vector<std::string> faults = fields.parse(rest);
  if (given.empty())
    faults.emplace_back(
        "[tessera tokenizer] no file is given: name text or JSONL files, or folders of them");
  if (c.out.empty()) faults.emplace_back("[--out] is missing: give a folder");
  if (c.training.begin.empty() || c.training.end.empty() || c.training.begin == c.training.end)
    faults.emplace_back("[--begin] and [--end] are empty or equal: give two marks");
  if (std::string fault = in_the_way(c); !fault.empty()) faults.push_back(std::move(fault));
  config::throw_if_any(faults);

  BpeTrainer trainer(c.training);
  int64_t bytes = 0;
  for (const std::string& path : given) {
    const DataFiles data = find_data(path, "tokenizer train");
    if (!data.kind->is_text)
      fail<DataError>("tokenizer train", path, " holds token ids, expected text");
    if (!data.listing.empty())
      out << data_files_line(data.listing, "data", given.size() > 1 ? path : "") << '\n';
    for (const std::string& file : data.paths) {
      read_documents(file, c.text_field, [&](std::string_view text) {
        trainer.add(text);
        bytes += static_cast<int64_t>(text.size());
      });
    }
  }
  if (trainer.words() == 0) fail<DataError>("tokenizer train", "the files are empty; give text");
  out << with_separators(bytes, "byte") << ", "
      << with_separators(static_cast<int64_t>(trainer.words()), "distinct word") << "\n";
  io::require_writable_folder(c.out, "--out");
  const std::vector<TokenizerFile> files = trainer.train();
  for (const TokenizerFile& file : files)
    io::write_file_atomically((std::filesystem::path(c.out) / file.name).string(), file.bytes);
  const int64_t made = make_tokenizer(files)->vocabulary();
  out << "wrote " << c.out << ": " << with_separators(made, "token")
      << (made < c.training.vocabulary ? ", since the text has no more pairs" : "") << '\n';
  return 0;
}

}  // namespace

Command tokenizer_command() {
  return {.name = "tokenizer",
          .arguments = " train FILES [fields]",
          .summary = "train a tokenizer: tessera tokenizer train --vocab_size N --out DIR FILES",
          .run = run,
          .help = fields_help<TrainTokenizerConfig>};
}

}  // namespace tessera::train
