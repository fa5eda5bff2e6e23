// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/splits.h"

#include <algorithm>

namespace tessera::train {
namespace {

constexpr const char* kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

#define TESSERA_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TESSERA_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
}  // namespace

const std::vector<NamedSplit>& named_splits() {
  static const std::vector<NamedSplit> all{
      {"llama3",
       "llama-bpe",
       {TESSERA_CONTRACTIONS
        R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" TESSERA_SPACES}},
      {"gpt2", "gpt-2", {kByteLevel}},
      {"qwen2",
       "qwen2",
       {TESSERA_CONTRACTIONS
        R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" TESSERA_SPACES}},
      {"deepseek3",
       "deepseek-v3",
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*)" TESSERA_SPACES}},
      {"o200k",
       "gpt-4o",
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" TESSERA_CONTRACTIONS
        R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" TESSERA_CONTRACTIONS
        R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" TESSERA_SPACES}}};
  return all;
}
#undef TESSERA_CONTRACTIONS
#undef TESSERA_SPACES

const NamedSplit* find_split(std::string_view name) {
  const auto& all = named_splits();
  if (name.empty()) return &all.front();
  const auto at =
      std::ranges::find(all, name, [](const NamedSplit& s) { return std::string_view(s.name); });
  return at == all.end() ? nullptr : &*at;
}

const char* byte_level_pattern() { return kByteLevel; }

}  // namespace tessera::train
