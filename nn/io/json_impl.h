// SPDX-License-Identifier: Apache-2.0
// The one strict reader of JSON texts: configurations, manifests, safetensors headers, metrics.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

struct ParsedJson {
  /// Members in the order of the text; null unless the text is JSON within the limits. A name that
  /// occurs twice is kept twice.
  nlohmann::ordered_json value;
  std::vector<std::string> faults;  ///< empty if the text is accepted
};

struct JsonOptions {
  int most_depth = 32;
  bool nul_in_names = false;  ///< names may hold a NUL, written as \u0000
  bool is_line = false;       ///< the text is a line of a file: faults name bytes of the line
};

/// Parses JSON in linear time. Faults: not JSON (with its place), a NUL byte, a name that
/// holds a NUL or occurs twice in its object, more than most_depth levels, a number beyond a
/// double.
[[nodiscard]] ParsedJson parse_json(std::string_view text, const JsonOptions& options = {});

/// What a value is, for errors: "an object", "a string", "null".
[[nodiscard]] std::string kind_text(nlohmann::json::value_t type);

/// Adds a member that `object` does not have. (ordered_json's own operator[] compares all names.)
void append_member(nlohmann::ordered_json& object, std::string name, nlohmann::ordered_json value);

}  // namespace tessera::io
