// SPDX-License-Identifier: Apache-2.0
// For tests of the trainer: runs that take milliseconds, in a folder of their own, inside the test
// or as processes that can be signalled and killed.
#pragma once

#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/process.h"
#include "tessera/train/cli/cli.h"
#include "tessera/train/config/config.h"

#include <sstream>
#include <string>
#include <vector>

namespace tessera::train {

using test::joined;
using test::Words;

/// Words of a Llama of some thousand parameters, for bytes.
inline Words tiny_model() {
  return {"--model.dim",        "32", "--model.n_layers", "2",  "--model.n_heads",    "4",
          "--model.n_kv_heads", "2",  "--model.ffn_dim",  "64", "--model.vocab_size", "260"};
}
/// A sentence again and again, for tests in which a model learns.
inline std::string fox_text(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += "the quick brown fox jumps over the lazy dog; ";
  return text;
}
/// A `tessera` process. The test program's main must know `--as-tessera`. Both outputs go to `log`,
/// or the errors to `errors` if it is given.
class Child : public test::Process {
 public:
  /// `variables`: of the environment, as `NAME=value`. `program`: a copy of this one, or empty.
  Child(const Words& words, const std::string& log, const Words& variables = {},
        const std::string& program = "", const std::string& errors = {})
      : Process(joined({program.empty() ? test::own_program() : program, "--as-tessera"}, words),
                {.variables = variables, .log = log, .errors = errors}) {}
};

class TinyRunTest : public test::FolderTest {
 protected:
  TinyRunTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += concat("the quick brown fox jumps over ", i, " dogs; ");
    io::write_file_atomically(folder_ + "/text.txt", text);
  }

  [[nodiscard]] std::string path(std::string_view name) const { return concat(folder_, '/', name); }
  /// Words of a run on the text, into a folder, on one thread.
  [[nodiscard]] Words into(const std::string& dump) const {
    return {"--dataloader.path", path("text.txt"), "--dump_folder", path(dump), "--threads", "1"};
  }
  /// `train` with a model of some thousand parameters; later words win.
  [[nodiscard]] Words train(const std::string& dump, const Words& more = {}) const {
    Words words = joined(joined({"train"}, into(dump)), tiny_model());
    const auto set = [&](std::string field, std::string value) {
      words.insert(words.end(), {"--" + std::move(field), std::move(value)});
    };
    set("training.steps", "20");
    set("training.local_batch_size", "2");
    set("training.seq_len", "16");
    set("optimizer.lr", "1e-2");
    set("lr_scheduler.warmup_steps", "3");
    set("sample.tokens", "0");
    set("debug.seed", "7");
    set("checkpoint.enable", "true");
    return joined(words, more);
  }
  [[nodiscard]] Config config(const std::string& dump, const Words& more = {}) const {
    const Words words = train(dump, more);
    return parse_config(std::span(words).subspan(1));
  }
  int run(const Words& words) {
    out_.str("");
    err_.str("");
    return run_cli(words, out_, err_);
  }

  std::ostringstream out_, err_;
};

}  // namespace tessera::train
