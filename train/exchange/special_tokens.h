// SPDX-License-Identifier: Apache-2.0
// What the files of a model of Hugging Face say of special tokens by their ids. They belong to the
// model: the ids that end a text end generation, and all of them go out as they came in.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/models/hugging_face.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

/// Each value is JSON: an id, a list of ids, null; empty: the file says nothing.
struct TESSERA_API SpecialTokensConfig {
  models::HfMarks config;      ///< of config.json
  models::HfMarks generation;  ///< of generation_config.json
  void fields(config::Fields& f);
  /// Faults of single fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  bool operator==(const SpecialTokensConfig&) const = default;
};

/// What the files of a folder say; nothing of those that are not there, or of a config.json that is
/// not a model's of Hugging Face. DataError: not JSON, or something else than ids.
[[nodiscard]] TESSERA_API SpecialTokensConfig read_special_tokens(const std::string& folder);

/// The ids that end a text, each once: the tokenizer's end, what both files say, and `answer_end`,
/// the mark that ends an answer (below 0: none).
[[nodiscard]] TESSERA_API std::vector<int64_t> end_ids(const SpecialTokensConfig& said,
                                                       const Tokenizer& tokenizer,
                                                       int64_t answer_end);

/// What goes out for a model of this tokenizer: what the files said, and the tokenizer's marks
/// where config.json said nothing. `answer_end` is added to the ids that end a text.
/// `has_generation`: there is a generation_config.json; else one will say what config.json does.
[[nodiscard]] TESSERA_API SpecialTokensConfig
special_tokens_to_write(const SpecialTokensConfig& said, const Tokenizer* tokenizer,
                        int64_t answer_end, bool has_generation);

}  // namespace tessera::train
