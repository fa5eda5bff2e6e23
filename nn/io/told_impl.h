// SPDX-License-Identifier: Apache-2.0
// Values that several places say: two fields of a file, a file and the weights. No place wins over
// another: what they say is equal, or it is an error that names two of them with both values.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>

namespace tessera::io {

/// What one place says.
struct Told {
  std::string place;             ///< for errors: `rope_scaling.factor`
  nlohmann::ordered_json value;  ///< null: nothing
};

/// Whether both say the same: numbers by their values, objects in any order of their members.
[[nodiscard]] bool same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

/// The value that all places which say something agree on; null if none does.
struct Agreed {
  nlohmann::ordered_json value;
  std::optional<std::string> fault = {};  ///< "A is 1, but B is 2: they must agree"
};
[[nodiscard]] Agreed agreed(std::span<const Told> told);

/// A value in an error: its JSON, cut.
[[nodiscard]] std::string shown(const nlohmann::ordered_json& value);

}  // namespace tessera::io
