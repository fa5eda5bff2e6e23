// SPDX-License-Identifier: Apache-2.0
// What the readers of config.json share: a field of theirs is looked up, noted as known, and set
// through the family's own list of fields. RoPE, which has many spellings, has a file of its own.
#pragma once

#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/told_impl.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models {

class HfReader {
 public:
  using Json = nlohmann::ordered_json;

  HfReader(const Json& json, const HuggingFace& names, ModelConfig& config)
      : json_(json), names_(names) {
    fields_.section("model", config);
  }

  [[nodiscard]] const HuggingFace& names() const { return names_; }
  /// Whether somebody asked for it.
  [[nodiscard]] bool is_used(std::string_view key) const { return used_.contains(key); }

  void fault(std::string text) { faults.push_back(std::move(text)); }
  /// Null counts as absent.
  const Json* value_of(std::string_view key);
  io::Told told(std::string_view key);
  /// What all places agree on; a fault if they do not.
  Json agreed(const std::vector<io::Told>& places);

  /// Ours by its name; null: the configuration has none.
  config::Field* find(std::string_view ours) { return fields_.find(concat("model.", ours)); }
  /// The same of a field that a table names. UsageError: there is none.
  config::Field& field(std::string_view ours);
  void set(std::string_view ours, std::string_view theirs, const Json& value);

  std::vector<std::string> faults;

 protected:
  const Json& json_;
  const HuggingFace& names_;
  config::Fields fields_;
  std::set<std::string, std::less<>> used_;
};

[[nodiscard]] bool is_text(const HfReader::Json& value, std::string_view text);
[[nodiscard]] HfReader::Json parsed(std::string_view json);
/// A field's value as JSON. Numbers that need not be whole have a point, also where they are.
[[nodiscard]] HfReader::Json json_of(config::Fields& fields, std::string_view ours);

/// The fields of RoPE, in each of the spellings of transformers.
void read_rope(HfReader& reader);
/// In the spelling that all versions of transformers read. ValueError: there is none.
void write_rope(HfReader::Json& json, const HuggingFace& names, config::Fields& fields);

}  // namespace tessera::models
