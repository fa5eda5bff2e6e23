// SPDX-License-Identifier: Apache-2.0
// What tokenizer_config.json says, with special_tokens_map.json and added_tokens.json of older
// folders, as transformers 5 reads them: a tokenizer_config.json with added_tokens_decoder has the
// last word, and the other two are not read. What changes tokens is taken or refused by its name.
#pragma once

#include "tessera/train/tokenizer/added_tokens.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// A class of transformers that prepares text in its own way, whatever tokenizer.json says.
struct TokenizerClass {
  const char* name;
  bool nfc;
  const char* split;           ///< as find_split
  const char *begin, *others;  ///< names of special tokens if no file says any; begin: null: none
};

/// A special token that a file, or the class, names. The token has no id.
struct NamedToken {
  std::string role;  ///< "eos_token"
  AddedToken token;
  std::string place;  ///< for errors
};
/// A token with its id.
struct ListedToken {
  AddedToken token;
  std::string place;
  bool decides = true;  ///< over what tokenizer.json says of the same token
};

struct TokenizerSettings {
  const TokenizerClass* known = nullptr;
  std::string class_place;  ///< for errors
  bool reads_older = true;  ///< special_tokens_map.json and added_tokens.json
  bool prefix_space = false;
  bool begins_documents = true;
  std::optional<std::string> refuses_begin;  ///< the place that says so
  std::vector<ListedToken> listed;           ///< by id
  std::vector<NamedToken> named;             ///< in the order in which they get ids
};

/// `slow`: without tokenizer.json these files are all that there is, so what is not known is an
/// error. DataError names file and key.
TokenizerSettings read_settings(std::span<const TokenizerFile> files, bool slow);

/// DataError: config.json of the folder is of a model whose vocab.json and merges.txt are read by
/// another class than GPT-2's, and `files` do not name one.
void require_class(const std::string& config_json, std::span<const TokenizerFile> files,
                   const std::string& folder, const std::string& field);

}  // namespace tessera::train
