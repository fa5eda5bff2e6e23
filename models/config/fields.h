// SPDX-License-Identifier: Apache-2.0
// Fields: the list of a configuration's fields. A Config struct binds each of its members once,
// with name, help, unit and range. The command line, JSON files, --help, error messages and the
// resolved dump all use this list.
#pragma once

#include "tessera/core/error.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::config {

struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 ///< min itself is not allowed
  std::string_view unit = {};             ///< "tokens", "steps"
  std::vector<std::string> choices = {};  ///< of a text field; empty: any
  bool free_on_resume = false;  ///< a model field that may differ between checkpoint and run
  bool per_rank = false;        ///< may differ between the ranks of a run
  bool decides_rows = false;    ///< the next row of the data, or its content, depends on it
};

/// A member with one of the field's choices (an enum, a dtype), as an index into their list; `get`
/// returns the number of choices if the value is none of them.
struct Choice {
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

struct Field {
  using Value =
      std::variant<int64_t*, double*, bool*, std::string*, std::optional<int64_t>*,
                   std::optional<double>*, std::vector<std::string>*, std::vector<double>*, Choice>;
  std::string path;  ///< "training.steps"
  Value value;
  std::string help;
  Limits limits;

  [[nodiscard]] std::string text() const;   ///< the value as written on the command line
  [[nodiscard]] std::string type() const;   ///< "integer", "number", ...
  [[nodiscard]] std::string range() const;  ///< "at least 1"; empty without limits
  /// Parses, checks and sets `text`; returns the error message, if any. A list is a JSON array or
  /// comma-separated; limits are those of each item, and numbers of a list are finite.
  [[nodiscard]] std::optional<std::string> assign(std::string_view text);
  /// The error message for the current value, if it is invalid.
  [[nodiscard]] std::optional<std::string> check() const;
};

/// What to say of a name of another program. A name that ends with `*` is of all that begin so.
struct OtherName {
  std::string_view name;
  std::string_view field;      ///< that does the same here; empty: none does
  std::string_view note = {};  ///< why none does, and what to do instead
};

class TESSERA_API Fields {
 public:
  /// Adds the fields of `config` in `section` (empty: top level).
  template <class Config> void section(std::string_view section, Config& config) {
    section_ = section;
    config.fields(*this);
    section_ = {};
  }
  // Called by a Config's fields().
  template <class T>
  void add(std::string_view name, T& value, std::string_view help, Limits limits = {}) {
    fields_.push_back({path_of(name), &value, std::string(help), std::move(limits)});
  }
  /// Adds a member whose value is chosen by name from `options`.
  template <class T>
  void add_choice(std::string_view name, T& value, std::string_view help,
                  std::vector<std::pair<std::string, T>> options) {
    Limits limits;
    std::vector<T> values;
    for (auto& [text, v] : options) {
      limits.choices.push_back(std::move(text));
      values.push_back(v);
    }
    const auto get = [&value, values] {
      size_t i = 0;
      while (i < values.size() && !(values[i] == value)) ++i;
      return i;
    };
    const auto set = [&value, values](size_t i) { value = values[i]; };
    fields_.push_back({path_of(name), Choice{get, set}, std::string(help), std::move(limits)});
  }

  /// Names that an error about an unknown field knows; they outlive it.
  void know(std::span<const OtherName> names) { other_names_ = names; }
  [[nodiscard]] std::span<const OtherName> other_names() const { return other_names_; }

  [[nodiscard]] const std::vector<Field>& all() const { return fields_; }
  [[nodiscard]] Field* find(std::string_view path);
  /// Sets fields from `--section.field value`, `--section.field=value`, `--section.flag` and
  /// `--section.no-flag`, each once. Returns one message per fault; faulty fields keep their
  /// values.
  [[nodiscard]] std::vector<std::string> parse(std::span<const std::string> arguments);
  /// Sets fields from a JSON object of sections, as dump() writes it; types must be those of the
  /// fields, infinities are the texts "inf" and "-inf", none is null. Returns messages as parse()
  /// does, of the first faults; each begins with `where`. All fields without a fault are set.
  [[nodiscard]] std::vector<std::string> parse_json(std::string_view text, std::string_view where);
  /// Error messages for the current values.
  [[nodiscard]] std::vector<std::string> check() const;
  /// Two lines per field, by section: name and help; type, default, unit and range.
  [[nodiscard]] std::string help() const;
  /// All values as an indented JSON object of sections.
  [[nodiscard]] std::string dump() const;

 private:
  [[nodiscard]] std::string path_of(std::string_view name) const {
    std::string path(section_);
    if (!section_.empty()) path += '.';
    return path += name;
  }
  [[nodiscard]] std::string unknown(std::string_view path) const;
  /// The error message for the name of a section, if there is no such section.
  [[nodiscard]] std::optional<std::string> unknown_section(std::string_view name) const;
  std::vector<Field> fields_;
  std::span<const OtherName> other_names_;
  std::string_view section_;
};

/// The candidate nearest to `word` by edit distance, if it is near enough.
TESSERA_API std::optional<std::string> did_you_mean(std::string_view word,
                                                    std::span<const std::string> candidates);
/// Throws one ConfigError with all messages, a line each, if there are any.
TESSERA_API void throw_if_any(std::span<const std::string> messages);

/// ConfigError with every fault of a component's configuration, for programs that set it without
/// the command line.
template <class Config> void require_valid(std::string_view section, Config config) {
  Fields fields;
  fields.section(section, config);
  throw_if_any(fields.check());
}

}  // namespace tessera::config
