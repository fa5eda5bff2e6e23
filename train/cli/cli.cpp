// SPDX-License-Identifier: Apache-2.0
// The one place where an error becomes an exit status. `--help` anywhere in the arguments prints
// help instead of running the command.
#include "tessera/train/cli/cli.h"

#include "tessera/dist/launch/launch.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/interruption.h"
#include "tessera/train/cli/standard_output.h"

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <fcntl.h>
#include <iostream>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace tessera::train {
namespace {

std::string usage() {
  std::string text = "usage: tessera <command> [fields]\n";
  for (const Command& c : commands()) text += fmt::format("  {:<12} {}\n", c.name, c.summary);
  return text +
         R"(`tessera <command> --help` lists the fields of a command. --version prints the version.
The exit status is 0, 2 for a wrong command line or configuration (also a path that does not exist, or an output that
does), 1 for what fails later, or 130 after Ctrl-C. A full disk under the standard output gives 1. A pipe closed by its
reader ends a command quietly with 0; training goes on with its files, and never waits for a reader.
)";
}

bool asks_for_help(Arguments arguments) {
  for (const auto& a : arguments) {
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

// In one write, so that no other output stands inside it. Messages may quote paths and texts of any
// kind.
void print_error(std::ostream& err, std::string_view message) {
  err << concat("error: ", io::message_lines(message), '\n');
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
    out << usage();
    return 0;
  }
  if (name == "--version") {
    out << "tessera " << TESSERA_VERSION << '\n';
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
    if (command.name != name) continue;
    const Arguments rest = arguments.subspan(1);
    if (!asks_for_help(rest)) return command.run(rest, out, catalogue);
    out << "usage: tessera " << name << command.arguments << '\n' << command.help(rest, catalogue);
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
    Arguments arguments, config::Fields known) {
  std::vector<std::string> files, fields;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--")) {
      files.push_back(word);
      continue;
    }
    fields.push_back(word);
    if (word.find('=') != word.npos || i + 1 == arguments.size()) continue;
    const config::Field* field = known.find(std::string_view(word).substr(2));
    const std::string& next = arguments[i + 1];
    const bool flag = field && std::holds_alternative<bool*>(field->value);
    if (!flag || next == "true" || next == "false") fields.push_back(arguments[++i]);
  }
  return {files, fields};
}

int run_cli(Arguments arguments, std::ostream& out, std::ostream& err, const Catalogue& catalogue) {
  if (arguments.empty()) {
    err << usage();
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
  } catch (const Interrupted& interrupted) {
    print_error(err, interrupted.what());
    return kInterruptedStatus;
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
