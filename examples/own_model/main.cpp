// SPDX-License-Identifier: Apache-2.0
// The `tessera` program with one more family and recipe: `own_model train --recipe bigram ...`.
// Without arguments it trains on its own source and checks that the loss falls.
#include "bigram.h"

#include <iostream>
#include <sstream>
#include <tessera/train/cli/cli.h>
#include <tessera/train/monitor/metrics.h>

using namespace tessera;

int main(int argc, char** argv) {
  const std::vector<std::pair<std::string, own::Bigram::Config>> sizes{{"tiny", {}},
                                                                       {"wide", {.dim = 256}}};
  train::Catalogue catalogue;
  const models::Family bigram =
      models::family<own::Bigram>("bigram", "the next token from the last", sizes);
  catalogue.families.push_back(bigram);
  catalogue.recipes.push_back({"bigram", "a bigram on bytes", [bigram] {
                                 train::Config c;
                                 c.recipe = "bigram";
                                 c.model = bigram.flavor("tiny");
                                 c.training.steps = 30;
                                 c.training.mixed_precision_param = DType::f32;
                                 c.training.seq_len = 64;
                                 c.lr_scheduler.warmup_steps = 2;
                                 c.optimizer.lr = 3e-2;
                                 c.sample.tokens = 20;
                                 return c;
                               }});
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty()) return train::run_program(words, catalogue);

  const std::string dump = concat(argv[0], "_out");
  words = {"train",  "--recipe",      "bigram", "--dataloader.path",
           __FILE__, "--dump_folder", dump,     "--overwrite"};
  if (train::run_cli(words, std::cout, std::cerr, catalogue) != 0) return 1;
  const train::Curve loss = train::read_metrics(dump + "/metrics.jsonl", "loss");
  words = {"generate", "--checkpoint", dump, "--prompt", "int ", "--tokens", "5"};
  std::ostringstream text;
  if (train::run_cli(words, text, std::cerr, catalogue) != 0) return 2;
  return loss.values.back() < loss.values.front() - 1 && text.str().starts_with("int ") ? 0 : 3;
}
