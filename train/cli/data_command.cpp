// SPDX-License-Identifier: Apache-2.0
// The command data. It installs no signal handlers: what a killed preparation has finished is whole
// at any moment, and the same command goes on from there.
#include "tessera/core/message.h"
#include "tessera/core/process.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/interruption.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ostream>

namespace tessera::train {
namespace {

// Smaller shards cost more in files than they hold; who gives such a number means thousands.
constexpr int64_t kLeastShardTokens = 1024;

struct PrepareConfig {
  PrepareOptions options{.threads = 0};
  int64_t threads = 0;
  std::string tokenizer;
  void fields(config::Fields& f) {
    f.add("out", options.out, "new folder, which --dataloader.path then takes");
    f.add(
        "tokenizer", tokenizer,
        "folder or file of the tokenizer, which training must use too; bytes, or none: a token per "
        "byte");
    f.add("text_field", options.text_field, "field of each .jsonl line that contains the document");
    f.add("document_tokens", options.document_tokens, kDocumentTokensHelp,
          {.choices = document_token_words()});
    f.add("shard_tokens", options.shard_tokens,
          "a shard ends with the document that reaches this size; an interrupted preparation goes "
          "on after the last whole shard",
          {.min = kLeastShardTokens, .max = int64_t{1} << 31, .unit = "tokens"});
    f.add("threads", threads, "threads that tokenise; 0: one per core", {.min = 0, .max = 1024});
  }
};

// On a terminal, how far the preparation is.
class Bar {
 public:
  explicit Bar(std::ostream& out) : screen_(out, Screen::style_of(out)) {}
  void show(const PrepareProgress& p) {
    if (first_ < 0) first_ = p.tokens;
    if (!screen_.bar_due()) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double share =
        p.all_bytes > 0 ? static_cast<double>(p.bytes) / static_cast<double>(p.all_bytes) : 1;
    std::string facts = fmt::format("{:.0f}%  {}", 100 * share, with_separators(p.tokens, "token"));
    if (seconds > 0) {
      const double rate = static_cast<double>(p.tokens - first_) / seconds;
      facts += fmt::format("  {}/s", with_separators(static_cast<int64_t>(rate)));
    }
    screen_.bar(bar_of(share, facts, screen_.width()));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Screen screen_;
  const Clock::time_point start_ = Clock::now();
  int64_t first_ = -1;  // tokens of an earlier try
};

int prepare(Arguments arguments, std::ostream& out) {
  PrepareConfig c;
  config::Fields fields;
  fields.section("", c);
  auto [files, rest] = files_and_fields(arguments, fields);
  std::vector<std::string> faults = fields.parse(rest);
  if (files.empty())
    faults.emplace_back(
        "[tessera data] no file is given: name text or JSONL files, or folders of them");
  if (c.options.out.empty()) faults.emplace_back("[--out] is missing: give a new folder");
  config::throw_if_any(faults);
  c.options.paths = std::move(files);
  c.options.say = [&out](const std::string& line) { out << line << '\n'; };
  c.options.threads = static_cast<int>(c.threads > 0 ? c.threads : Process::get().cores());
  const auto tokenizer = open_tokenizer(c.tokenizer, "--tokenizer");

  const auto start = std::chrono::steady_clock::now();
  PrepareProgress progress;
  DataIndex index;
  {
    const Interruption interruption("interrupted: the same command goes on from the whole shards");
    Bar bar(out);
    index = prepare_data(c.options, *tokenizer, [&](const PrepareProgress& p) {
      progress = p;
      interruption.check();
      bar.show(p);
    });
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (progress.resumed_shards > 0)
    out << "kept " << counted(progress.resumed_shards, "shard")
        << " of an interrupted preparation\n";
  out << fmt::format("wrote {}: {}, {}, {}, {:.1f} s\n", c.options.out,
                     with_separators(index.tokens(), "token"),
                     with_separators(index.documents(), "document"),
                     counted(index.shards.size(), "shard"), seconds);
  return 0;
}

struct VerifyConfig {
  std::string folder;
  void fields(config::Fields& f) {
    f.add("folder", folder, "prepared folder; may be the argument itself");
  }
};

int verify(Arguments arguments, std::ostream& out) {
  const std::string folder = parsed_folders<VerifyConfig>(arguments, 1).second[0];
  const std::vector<std::string> faults = verify_index(folder);
  for (const std::string& fault : faults) out << fault << '\n';
  if (!faults.empty()) return 1;
  const DataIndex index = read_index(folder);
  out << fmt::format("{} is whole: {}, {}\n", folder, with_separators(index.tokens(), "token"),
                     with_separators(index.documents(), "document"));
  return 0;
}

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  const std::string action = arguments.empty() ? "" : arguments[0];
  if (action == "prepare") return prepare(arguments.subspan(1), out);
  if (action == "verify") return verify(arguments.subspan(1), out);
  fail<ConfigError>("tessera data", action.empty() ? "no action is" : "an unknown action is",
                    " given, expected: tessera data prepare FILES or tessera data verify FOLDER");
}

std::string help(Arguments arguments, const Catalogue&) {
  return !arguments.empty() && arguments[0] == "verify" ? help_of_fields<VerifyConfig>()
                                                        : help_of_fields<PrepareConfig>();
}

}  // namespace

Command data_command() {
  return {
      .name = "data",
      .arguments = " prepare FILES | verify FOLDER [fields]",
      .summary = "prepare text for training: tessera data prepare --tokenizer DIR --out DIR FILES",
      .run = run,
      .help = help};
}

}  // namespace tessera::train
