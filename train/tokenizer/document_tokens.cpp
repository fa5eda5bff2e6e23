// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/document_tokens.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>

namespace tessera::train {
namespace {

bool asks_for(const std::string& words, std::string_view side) {
  return words == side || words == "both";
}

std::string named(int64_t id, const Tokenizer& tokenizer) {
  if (!tokenizer.missing().empty()) return concat("token ", id);
  return concat(printable(io::excerpt(tokenizer.bytes(id), 60)), " (", id, ')');
}

}  // namespace

std::vector<std::string> document_token_words() {
  return {kTokensOfTokenizer, "both", "begin", "end", "none"};
}

DocumentTokens document_tokens(const std::string& words, const Tokenizer& tokenizer,
                               const std::string& field) {
  if (std::ranges::count(document_token_words(), words) == 0)
    fail<ConfigError>(field, io::excerpt(words), " is not auto, both, begin, end or none");
  if (words == kTokensOfTokenizer)
    return {tokenizer.begins_texts() ? tokenizer.begin_id() : -1, tokenizer.end_id()};
  const auto one = [&](const char* side, int64_t id, const char* role) {
    if (!asks_for(words, side)) return int64_t{-1};
    if (id < 0) {
      fail<ConfigError>(field, words, " is given, but the tokenizer has no token to ", side,
                        " a text with: give ", kTokensOfTokenizer,
                        ", or a tokenizer whose files "
                        "name one (",
                        role, " in tokenizer_config.json)");
    }
    return id;
  };
  return {one("begin", tokenizer.begin_id(), "bos_token"),
          one("end", tokenizer.end_id(), "eos_token")};
}

bool documents_begin(const std::string& words, const Tokenizer& tokenizer) {
  if (words == kTokensOfTokenizer) return tokenizer.begins_texts();
  return asks_for(words, "begin") && tokenizer.begin_id() >= 0;
}

bool are_asked_for(const DocumentTokens& tokens, const std::string& words) {
  return words == kTokensOfTokenizer || ((tokens.begin >= 0) == asks_for(words, "begin") &&
                                         (tokens.end >= 0) == asks_for(words, "end"));
}

std::string text_of(const DocumentTokens& tokens, const Tokenizer& tokenizer) {
  const bool begin = tokens.begin >= 0, end = tokens.end >= 0;
  if (!begin && !end) return "documents have no token at their begin and none at their end";
  std::string text = "documents";
  if (begin) text += " begin with " + named(tokens.begin, tokenizer);
  if (end) text += concat(begin ? " and" : "", " end with ", named(tokens.end, tokenizer));
  return text;
}

}  // namespace tessera::train
