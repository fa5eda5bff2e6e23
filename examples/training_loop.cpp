// SPDX-License-Identifier: Apache-2.0
// A custom training loop with the library's components: model, data, optimizer, schedule and
// checkpoints, without the Trainer. An interrupted and resumed run ends with the bits of an
// uninterrupted one.
#include <filesystem>
#include <iostream>
#include <tessera/tessera.h>
#include <unistd.h>
using namespace tessera;

constexpr int64_t kSteps = 16, kMicroBatches = 2, kRows = 4, kLength = 32, kSeed = 7;
constexpr double kTokensPerStep = kMicroBatches * kRows * kLength;

// Trains from what the folder holds to step `last` and leaves a checkpoint there. -> the parameters
std::vector<nn::NamedParameter> train_to(int64_t last, const std::string& checkpoints,
                                         const std::string& text) {
  llama3::Model model({.dim = 32,
                       .n_layers = 2,
                       .n_heads = 4,
                       .n_kv_heads = 2,
                       .ffn_dim = 96,
                       .vocab_size = train::ByteTokenizer::kVocabulary,
                       .max_seq_len = kLength});
  nn::initialize(model, kSeed);
  const auto metadata = model.metadata(kLength);  // positions and mask
  optim::AdamW optimizer(nn::named_parameters(model), {.lr = 1e-2});
  const train::ScheduleConfig schedule{.warmup_steps = 4, .decay_type = "cosine"};
  train::DataLoader data({.path = text, .packing = "concat"},
                         {.seq_len = kLength,
                          .vocabulary = model.config().vocab_size,
                          .global_rows = kRows,
                          .rows = kRows,
                          .seed = kSeed});
  const auto from = train::load(model, optimizer, checkpoints);
  int64_t done = from ? from->step : 0;

  for (; done < last; ++done) {
    double loss = 0;
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {  // gradients add up
      const train::Batch batch = data.at((done * kMicroBatches + micro) * kRows);
      const Tensor part = model.loss(batch.tokens, batch.targets, metadata).sum / kTokensPerStep;
      backward(part);
      loss += part.item();
    }
    const Tensor norm = optim::clip_grad_norm_(optimizer.parameters(), /*max_norm=*/1);
    optimizer.set_lr_factor(train::lr_factor(schedule, done, kSteps));
    optimizer.step();
    optimizer.zero_grad();
    std::cout << "step " << done + 1 << "  loss " << loss << "  gradient norm " << norm.item()
              << '\n';
  }

  train::save(model, optimizer, checkpoints,
              {.step = done, .schedule_step = done, .data_rows = done * kMicroBatches * kRows});
  return nn::named_parameters(model);
}

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "README.md";
  const auto folder = std::filesystem::temp_directory_path() /
                      ("tessera_training_loop." + std::to_string(::getpid()));
  const Session session({.threads = 1});  // so small a model shares out badly
  const auto whole = train_to(kSteps, folder / "straight", text);
  (void)train_to(kSteps / 2, folder / "stopped", text);
  const auto resumed = train_to(kSteps, folder / "stopped", text);
  bool equal = true;
  for (size_t i = 0; i < whole.size(); ++i) {
    equal = equal && all(whole[i].tensor == resumed[i].tensor).item<bool>();
  }
  std::filesystem::remove_all(folder);
  std::cout << "stopped after step " << kSteps / 2
            << " and resumed: " << (equal ? "the same bits as without a stop" : "other bits")
            << '\n';
  return equal ? 0 : 1;
}
