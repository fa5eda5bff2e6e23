// SPDX-License-Identifier: Apache-2.0
// A type of model of transformers as data: an architecture, the fields of config.json that say what
// is open in it, and the names of its tensors. Its fields under `--model.` are those that
// config.json has; all else is the type's own.
#pragma once

#include "tessera/models/architecture.h"
#include "tessera/models/hugging_face.h"
#include "tessera/models/transformer.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models {

struct Type;

/// The configuration of a model of a type.
struct TESSERA_API TypeConfig : Architecture {
  const Type* type = nullptr;

  [[nodiscard]] const Architecture& architecture() const { return *this; }
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  void simplify();
  /// With the values that the type gives.
  [[nodiscard]] TypeConfig defaults() const;
  /// The names of the fields under `--model.`.
  [[nodiscard]] std::vector<std::string_view> shown() const;
};

/// A published size: its name, and the fields in which it differs from the type's defaults, as on
/// the command line: `dim=2304 n_layers=26`.
struct Size {
  std::string_view name, fields;
};

struct Type {
  std::string_view description;
  Architecture architecture;  ///< `family` is names.model_type
  HuggingFace names;
  std::vector<Size> sizes = {};
  std::vector<std::string_view> rope_fields = {};  ///< beside RoPE's own: partial_rotary_factor ...
};

/// The family of a type, which must outlive it. UsageError: a size with a field that the type does
/// not show, or with values that conflict.
[[nodiscard]] TESSERA_API Family family_of(const Type& type);

}  // namespace tessera::models
