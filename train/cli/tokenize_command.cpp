// SPDX-License-Identifier: Apache-2.0
// Shows how a tokenizer splits text: each token in a colour of its own on a terminal, between bars
// elsewhere; then the ids.
#include "tessera/core/message.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/data/text_reader.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <array>
#include <ostream>

namespace tessera::train {
namespace {

struct TokenizeConfig {
  std::string tokenizer, text, file, text_field = "text";
  bool ids = false;
  void fields(config::Fields& f) {
    f.add(
        "tokenizer", tokenizer,
        "folder or file of the tokenizer (tokenizer.json, or vocab.json and merges.txt); bytes, or "
        "none: a token per byte");
    f.add("text", text, "text to tokenise");
    f.add("file", file, "file whose documents are tokenised: text or JSONL, also with .gz");
    f.add("text_field", text_field, "JSONL field of the text");
    f.add("ids", ids, "print the ids alone, a line for each document");
  }
};

std::string pieces(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool color) {
  constexpr std::array<const char*, 6> kColors{"\x1b[30;46m", "\x1b[30;43m", "\x1b[30;42m",
                                               "\x1b[30;45m", "\x1b[30;44m", "\x1b[30;41m"};
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    // Of a token that holds a part of a character, the bytes; line ends stay visible.
    const std::string piece = io::excerpt(tokenizer.bytes(ids[i]), std::string::npos);
    const bool ends_line = tokenizer.bytes(ids[i]).ends_with('\n');
    if (color) out += concat(kColors[i % kColors.size()], piece, "\x1b[0m");
    else out += concat(i == 0 || out.ends_with('\n') ? "" : "|", piece);
    if (ends_line) out += '\n';
  }
  if (!out.ends_with('\n')) out += '\n';
  return out;
}

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  const auto c = parsed_fields<TokenizeConfig>(arguments);
  if (c.text.empty() == c.file.empty())
    fail<ConfigError>("--text", "give either a text, by --text, or a file, by --file");
  if (!c.file.empty()) require_there("--file", c.file);
  const auto tokenizer = open_tokenizer(c.tokenizer, "--tokenizer");
  const bool color = Screen::style_of(out).color;
  const auto show = [&](std::string_view text) {
    std::vector<int32_t> ids;
    tokenizer->append(text, ids);
    if (!c.ids) {
      out << pieces(*tokenizer, ids, color);
      out << counted(ids.size(), "token") << " of " << counted(text.size(), "byte") << ":";
    }
    for (size_t i = 0; i < ids.size(); ++i) out << (i == 0 && c.ids ? "" : " ") << ids[i];
    out << '\n';
  };
  if (c.file.empty()) show(c.text);
  else read_documents(c.file, c.text_field, show);
  return 0;
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .arguments = " [fields]",
          .summary = "show the tokens of a text: tessera tokenize --tokenizer DIR --text TEXT",
          .run = run,
          .help = fields_help<TokenizeConfig>};
}

}  // namespace tessera::train
