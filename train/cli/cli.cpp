// SPDX-License-Identifier: Apache-2.0
// The table of commands, and the one place where an error becomes an exit status. `--help` anywhere
// in the arguments prints help instead of running the command.
#include "tessera/train/cli/cli.h"

#include "tessera/dist/launch/launch.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/standard_output.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <iostream>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace tessera::train {
namespace {

constexpr std::string_view kUsage = R"(usage: tessera <command> [fields]
  train     train a model: tessera train --recipe NAME --dataloader.path FILE --dump_folder DIR
  generate  generate text with a trained model: tessera generate --checkpoint DIR --prompt TEXT
  eval      compute loss and perplexity of a trained model: tessera eval --checkpoint DIR --dataset_path FILE
  compare   compare losses and gradient norms of two configurations: tessera compare A.json B.json
  plot      plot the losses of runs on the terminal: tessera plot RUN_FOLDER...
  trace     join the ranks' profiler traces: tessera trace DIR/profiling/traces/iteration_10
  checkpoint  list, inspect, verify or merge saved steps: tessera checkpoint ls DIR
  import-hf convert a model of Hugging Face: tessera import-hf FOLDER --out DIR
  export-hf convert a trained model for transformers: tessera export-hf --checkpoint DIR --out DIR
  export-gguf convert a trained model for llama.cpp: tessera export-gguf --checkpoint DIR --out FILE
  tokenize  show the tokens of a text: tessera tokenize --tokenizer DIR --text TEXT
  tokenizer train a tokenizer: tessera tokenizer train --vocab_size N --out DIR FILES
  data      prepare text for training: tessera data prepare --tokenizer DIR --out DIR FILES
  config    print the resolved configuration as JSON
  recipes   list the recipes
  models    list the model families and their sizes
`tessera <command> --help` lists the fields of a command. --version prints the version.
The exit status is 0, 1 for a failure at run time, or 2 for wrong usage. A full disk under the standard output gives 1. A
pipe closed by its reader ends a command quietly with 0; training goes on with its files, and never waits for a reader.
)";

struct Command {
  std::string_view name, usage;
  int (*run)(Arguments, std::ostream&, const Catalogue&);
  std::string (*help)(Arguments, const Catalogue&);
};
constexpr std::array<Command, 16> kCommands{
    {{"train", " [fields]", train_command, train_help},
     {"generate", " [fields]", generate_command, generate_help},
     {"eval", " [fields]", eval_command, eval_help},
     {"compare", " A.json B.json [fields]", compare_command, compare_help},
     {"plot", " RUN_FOLDER... [fields]", plot_command, plot_help},
     {"trace", " TRACE_FOLDER [fields]", trace_command, trace_help},
     {"checkpoint", " ls|inspect|verify|merge FOLDER [fields]", checkpoint_command,
      checkpoint_help},
     {"import-hf", " FOLDER --out DIR [fields]", import_hf_command, import_hf_help},
     {"export-hf", " --checkpoint DIR --out DIR [fields]", export_hf_command, export_hf_help},
     {"export-gguf", " --checkpoint DIR --out FILE [fields]", export_gguf_command,
      export_gguf_help},
     {"tokenize", " [fields]", tokenize_command, tokenize_help},
     {"tokenizer", " train FILES [fields]", tokenizer_command, tokenizer_help},
     {"data", " prepare FILES | verify FOLDER [fields]", data_command, data_help},
     {"config", " [fields]", config_command, config_help},
     {"recipes", "", recipes_command, no_fields},
     {"models", "", models_command, no_fields}}};

bool asks_for_help(Arguments arguments) {
  for (const auto& a : arguments) {
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

// A line, in one write, so that no other output stands inside it. Messages may quote paths and
// texts of any kind.
void print_error(std::ostream& err, std::string_view message) {
  err << concat("error: ", io::excerpt(message, message.npos), '\n');
}

// A configuration's faults are a line each.
void print_errors(std::ostream& err, const ConfigError& error) {
  std::istringstream lines{std::string(error.what())};
  for (std::string line; std::getline(lines, line);) print_error(err, line);
}

// Help, or the command. ConfigError for wrong usage.
int run_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    out << kUsage;
    return 0;
  }
  if (name == "--version") {
    out << "tessera " << TESSERA_VERSION << '\n';
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    names.emplace_back(command.name);
    if (command.name != name) continue;
    const Arguments rest = arguments.subspan(1);
    if (!asks_for_help(rest)) return command.run(rest, out, catalogue);
    out << "usage: tessera " << name << command.usage << '\n' << command.help(rest, catalogue);
    return 0;
  }
  const auto near = config::did_you_mean(name, names);
  fail<ConfigError>("tessera", "unknown command '", io::excerpt(name), '\'',
                    near ? concat("; did you mean ", *near, '?') : "; `tessera --help` lists them");
}

// What was printed before an error comes before it.
int run_and_flush(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  int status = 0;
  try {
    status = run_command(arguments, out, catalogue);
  } catch (...) {
    try {
      out.flush();
      if (auto* output = dynamic_cast<StandardOutput*>(out.rdbuf())) output->drain();
    } catch (const std::exception&) {  // the first error counts
    }
    throw;
  }
  out.flush();
  return status;
}

// A closed descriptor would be that of the next file opened, which would then get the output.
void keep_standard_descriptors() {
  constexpr std::array<int, 3> kAccess{O_RDONLY, O_RDONLY, O_WRONLY};  // writing to stdout fails
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", kAccess[static_cast<size_t>(fd)]);
  }
}

constexpr int kFailed = 1, kWrongUsage = 2;

}  // namespace

std::pair<std::vector<std::string>, std::vector<std::string>> files_and_fields(
    Arguments arguments) {
  std::vector<std::string> files, fields;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--")) {
      files.push_back(word);
      continue;
    }
    fields.push_back(word);
    if (word.find('=') == word.npos && i + 1 < arguments.size()) fields.push_back(arguments[++i]);
  }
  return {files, fields};
}

int run_cli(Arguments arguments, std::ostream& out, std::ostream& err, const Catalogue& catalogue) {
  if (arguments.empty()) {
    err << kUsage;
    return kWrongUsage;
  }
  try {
    const int status = run_and_flush(arguments, out, catalogue);
    if (!out) fail<IoError>("output", "cannot write the output");
    return status;
  } catch (const ConfigError& error) {
    // All ranks of a launcher have the same arguments, and mostly the same faults.
    say_once(error.what(), [&] { print_errors(err, error); });
    return kWrongUsage;
  } catch (const ClosedPipe&) {
    return 0;
  } catch (const std::exception& error) {
    print_error(err, error.what());
    return kFailed;
  }
}

int run_program(Arguments arguments, const Catalogue& catalogue) {
  keep_standard_descriptors();
  // A closed pipe and a file beyond the limit of its size are errors of a write.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  StandardOutput output(STDOUT_FILENO);
  const int status = run_cli(arguments, std::cout, std::cerr, catalogue);
  return output.finish() || status != 0 ? status : kFailed;
}

}  // namespace tessera::train
