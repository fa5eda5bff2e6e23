// SPDX-License-Identifier: Apache-2.0
// Commands of the program, one file each: a command gets the arguments after its name, writes to
// `out` and returns the exit status; its help lists its fields. ConfigError for wrong usage.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/train/config/config.h"

#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {

using Arguments = std::span<const std::string>;

/// `tessera train [fields]`: trains, then prints samples. `--estimate`: prints the memory that it
/// would need instead.
int train_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string train_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera generate --checkpoint DIR --prompt TEXT [--prompt TEXT]...`: prints tokens as they are
/// generated.
int generate_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string generate_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera eval --checkpoint DIR --dataset_path FILE`: loss and perplexity.
int eval_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string eval_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera compare A.json B.json`: runs two configurations from one seed and compares each step.
int compare_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string compare_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera plot RUN_FOLDER...`: plots a metric of each metrics.jsonl on the terminal or to an SVG
/// file.
int plot_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string plot_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera trace FOLDER`: joins the ranks' traces of one iteration into FOLDER/trace.json.
int trace_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string trace_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera checkpoint ls|inspect|verify|merge FOLDER`: lists steps, prints what one holds, checks
/// every byte, or writes its model as one file.
int checkpoint_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string checkpoint_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera import-hf FOLDER --out DIR`: a model of Hugging Face as a run that training starts
/// from.
int import_hf_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string import_hf_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera export-hf --checkpoint DIR --out DIR`: a trained model as transformers loads it.
int export_hf_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string export_hf_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera export-gguf --checkpoint DIR --out FILE`: a trained model as llama.cpp loads it.
int export_gguf_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string export_gguf_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera tokenize --tokenizer DIR --text TEXT`: shows tokens and ids.
int tokenize_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string tokenize_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera tokenizer train --vocab_size N --out DIR FILES`: trains a byte-level BPE tokenizer.
int tokenizer_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string tokenizer_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera data prepare --out DIR --tokenizer DIR FILES`: tokenises text into a folder that
/// training maps. `tessera data verify DIR`: reads every byte of such a folder.
int data_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string data_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera config [fields]`: prints the resolved configuration as JSON.
int config_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
/// `tessera recipes`, `tessera models`: list the recipes and the model families.
int recipes_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
int models_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string no_fields(Arguments arguments, const Catalogue& catalogue);

/// Splits arguments into words that are neither fields nor their values, such as files, and the
/// rest. Every field has a value, in the same word or in the next.
std::pair<std::vector<std::string>, std::vector<std::string>> files_and_fields(Arguments arguments);

/// Parses the fields of a command. ConfigError: every fault.
template <class C> C parsed_fields(Arguments arguments) {
  C config;
  config::Fields fields;
  fields.section("", config);
  config::throw_if_any(fields.parse(arguments));
  return config;
}
/// The same for commands whose first arguments, until a field, may be folders; one of the field
/// `folder` comes last. ConfigError if there is none, or more than `most`.
template <class C>
std::pair<C, std::vector<std::string>> parsed_folders(Arguments arguments, size_t most) {
  C config;
  config::Fields fields;
  fields.section("", config);
  std::vector<std::string> folders;
  for (; !arguments.empty() && !arguments[0].starts_with("--"); arguments = arguments.subspan(1))
    folders.push_back(arguments[0]);
  std::vector<std::string> faults = fields.parse(arguments);
  if (!config.folder.empty()) folders.push_back(config.folder);
  if (folders.empty()) faults.emplace_back("[--folder] is missing: give the folder of a run");
  if (folders.size() > most)
    faults.push_back(concat("[--folder] ", folders.size(), " folders are given, expected ", most));
  config::throw_if_any(faults);
  return {config, folders};
}
template <class C> std::string help_of_fields() {
  C config;
  config::Fields fields;
  fields.section("", config);
  return "fields:\n" + fields.help();
}

}  // namespace tessera::train
