// SPDX-License-Identifier: Apache-2.0
// The `tessera` program with three more families and a recipe for each: `own_model train --recipe
// parallel_blocks ...`. Without arguments it trains all on its own source and checks that the
// losses fall.
#include "arcee.h"
#include "bigram.h"
#include "parallel_blocks.h"

#include <iostream>
#include <sstream>
#include <tessera/train/cli/cli.h>
#include <tessera/train/monitor/metrics.h>

using namespace tessera;

// Adds the family, of one size, and a recipe of its name.
void add(train::Catalogue& catalogue, const models::Family& family, double lr) {
  catalogue.families.push_back(family);
  catalogue.recipes.push_back({family.name, family.description + ", on bytes", [family, lr] {
                                 train::Config c;
                                 c.recipe = family.name;
                                 c.model = family.flavor("tiny");
                                 c.training.steps = 30;
                                 c.training.mixed_precision_param = DType::f32;
                                 c.training.seq_len = 64;
                                 c.lr_scheduler.warmup_steps = 2;
                                 c.optimizer.lr = lr;
                                 c.sample.tokens = 20;
                                 return c;
                               }});
}

template <class Model>
models::Family family_of(const std::string& name, const std::string& description) {
  const std::vector<std::pair<std::string, typename Model::Config>> sizes{{"tiny", {}}};
  return models::family<Model>(name, description, sizes);
}

// 0: the loss falls, and the model writes on.
int try_out(const std::string& recipe, const std::string& dump, const train::Catalogue& catalogue) {
  std::vector<std::string> words{"train",  "--recipe",      recipe, "--dataloader.path",
                                 __FILE__, "--dump_folder", dump,   "--overwrite"};
  if (train::run_cli(words, std::cout, std::cerr, catalogue) != 0) return 1;
  const train::Curve loss = train::read_metrics(dump + "/metrics.jsonl", "loss");
  words = {"generate", "--checkpoint", dump, "--prompt", "int ", "--tokens", "5"};
  std::ostringstream text;
  if (train::run_cli(words, text, std::cerr, catalogue) != 0) return 2;
  return loss.values.back() < loss.values.front() - 1 && text.str().starts_with("int ") ? 0 : 3;
}

int main(int argc, char** argv) {
  train::Catalogue catalogue;
  add(catalogue, family_of<own::Bigram>("bigram", "the next token from the last"), 3e-2);
  add(catalogue,
      family_of<own::ParallelBlocks>(
          "parallel_blocks", "a transformer whose attention and feed-forward run side by side"),
      3e-3);
  add(catalogue, models::family_of(own::arcee()), 3e-3);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty()) return train::run_program(words, catalogue);
  for (const std::string recipe : {"bigram", "parallel_blocks", "arcee"}) {
    if (const int status = try_out(recipe, concat(argv[0], "_out/", recipe), catalogue))
      return status;
  }
  return 0;
}
