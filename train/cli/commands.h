// SPDX-License-Identifier: Apache-2.0
// The commands of the program: a command gets the arguments after its name, writes to `out` and
// returns the exit status; its help lists its fields. ConfigError for wrong usage.
#pragma once

#include "tessera/core/message.h"
#include "tessera/models/config/fields.h"
#include "tessera/train/config/config.h"

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

using Arguments = std::span<const std::string>;

/// A command, made by a function in the file of the command or of its group.
struct Command {
  std::string_view name;
  std::string_view arguments;  ///< behind its name in its usage: ` FOLDER --out DIR [fields]`
  std::string_view summary;    ///< a line of `tessera --help`
  /// Runs it; returns the exit status.
  int (*run)(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
  /// The text of its `--help`, behind the usage.
  std::string (*help)(Arguments arguments, const Catalogue& catalogue);
};
/// All commands, in the order of `tessera --help`.
TESSERA_API std::span<const Command> commands();

/// Splits arguments into words that are neither fields nor their values, such as files, and the
/// rest. A field has a value, in the same word or in the next, but for `known` flags.
std::pair<std::vector<std::string>, std::vector<std::string>> files_and_fields(
    Arguments arguments, config::Fields known);

/// ConfigError: a file or folder that is to be read does not exist.
void require_there(std::string_view field, const std::string& path);

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
    faults.push_back(
        concat("[--folder] ", counted(folders.size(), "folder"), " are given, expected ", most));
  config::throw_if_any(faults);
  for (const std::string& folder : folders) require_there("--folder", folder);
  return {config, folders};
}
template <class C> std::string help_of_fields() {
  C config;
  config::Fields fields;
  fields.section("", config);
  return "fields:\n" + fields.help();
}
/// The help of a command whose fields are C.
template <class C> std::string fields_help(Arguments, const Catalogue&) {
  return help_of_fields<C>();
}

}  // namespace tessera::train
