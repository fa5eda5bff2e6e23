// SPDX-License-Identifier: Apache-2.0
// Files that somebody made to break the readers, or that went wrong on their way, and the command
// that meets them. errors.txt holds the exact error of each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::hostile {

using Words = std::vector<std::string>;
using Files = std::map<std::string, std::string>;

/// A command over files in a folder of its own, `$IN`, in which nothing may come to be. `$OUT` is
/// a folder that is not there, and may hold no more than a run's lock afterwards.
struct Case {
  std::string name;
  Words words;
  Files files = {};
  /// Symbolic links, by name.
  Files links = {};
};
using Cases = std::vector<Case>;

/// `text` with the only `from` in it replaced. std::invalid_argument: there is none, or several.
std::string with(std::string text, const std::string& from, const std::string& by);
/// `piece`, so often.
std::string repeated(const std::string& piece, int times);
/// A safetensors file.
std::string safetensors(const std::string& header, size_t bytes);
/// `length` as the first eight bytes, then `rest`.
std::string with_length(uint64_t length, const std::string& rest);

/// Weights, index and config.json of import-hf.
Cases weight_cases();
Cases index_cases();
Cases model_config_cases();
/// tokenizer.json, or vocab.json and merges.txt, of tokenize.
Cases tokenizer_cases();
/// Checkpoints of `checkpoint inspect`.
Cases checkpoint_cases();
/// Data and configuration of train.
Cases data_cases();
Cases config_cases();
/// Fine-tuning sets and chat templates of train.
Cases chat_cases();

}  // namespace tessera::hostile
