// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training loop of your own, on any mesh: it begins on four ranks, each of which
// writes the shards that it holds, goes on on two and ends on one, where each rank reads what it
// needs. The losses are those of a run on one rank.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <tessera/models/data_parallel.h>
#include <tessera/tessera.h>
#include <unistd.h>

using namespace tessera;

constexpr int64_t kRows = 4, kLength = 32, kSeed = 7;

// Trains on so many ranks from what the folder holds to step `last`. -> the loss of that step
double train_to(int64_t last, int ranks, const std::string& folder) {
  double loss = 0;
  run_ranks(ranks,
            [&](World& world) {
              const Mesh mesh = Mesh::make({{"dp_shard", ranks}});
              llama3::Model model({.dim = 32,
                                   .n_layers = 2,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .ffn_dim = 96,
                                   .vocab_size = train::ByteTokenizer::kVocabulary,
                                   .max_seq_len = kLength});
              models::fully_shard(model, mesh, {{"dp_shard"}, {}});
              nn::initialize(model, kSeed, nn::laid_out(model, mesh));
              optim::AdamW optimizer(nn::named_parameters(model), {.lr = 1e-2});
              const auto metadata = model.metadata(kLength);
              const int64_t rows = kRows / ranks;  // of each step, read by this rank
              train::DataLoader data({.path = "README.md", .packing = "concat"},
                                     {.seq_len = kLength,
                                      .vocabulary = model.config().vocab_size,
                                      .global_rows = kRows,
                                      .first_row = rows * world.rank(),
                                      .rows = rows,
                                      .seed = kSeed});

              const auto from = train::load(model, optimizer, folder);
              for (int64_t done = from ? from->step : 0; done < last;) {
                const train::Batch batch = data.at(done * kRows);
                const Layout by_rows = Layout::of(mesh, {Shard(0)});
                const Tensor total =
                    model
                        .loss(wrap_local(batch.tokens, by_rows, {kRows, kLength}),
                              wrap_local(batch.targets, by_rows, {kRows, kLength}), metadata)
                        .sum /
                    static_cast<double>(kRows * kLength);
                backward(total);
                optimizer.step();
                optimizer.zero_grad();
                ++done;
                const double value = full_tensor(total).item();
                if (world.rank() != 0) continue;
                std::cout << "step " << done << " on " << ranks << " ranks  loss " << value << '\n';
                loss = value;
              }
              train::save(model, optimizer, folder, {.step = last, .data_rows = last * kRows});
            },
            {.threads = 1});
  return loss;
}

int main() {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("tessera_sharded_checkpoint." + std::to_string(::getpid()));
  (void)train_to(4, 4, folder / "on_others");
  (void)train_to(8, 2, folder / "on_others");
  const double resumed = train_to(12, 1, folder / "on_others");
  const double straight = train_to(12, 1, folder / "straight");
  std::filesystem::remove_all(folder);
  std::cout << "loss after step 12: " << resumed << ", without a stop " << straight << '\n';
  return std::abs(resumed - straight) < 1e-4 ? 0 : 1;
}
