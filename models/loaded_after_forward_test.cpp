// SPDX-License-Identifier: Apache-2.0
// Parameters that are loaded into a model that has run: the next forward computes with them, not
// with gathered, cast or joined copies of the old ones, whichever pass keeps such copies.
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/io/model_file.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <unistd.h>

namespace tessera::models {
namespace {

constexpr int64_t kLength = 6;

struct Way {
  std::string name;
  std::function<void(LanguageModel& to, LanguageModel& from)> load;
};

// Each of them fills `to`, which may be distributed, from the plain `from`.
std::vector<Way> ways(const std::string& file) {
  return {{"load",
           [](LanguageModel& to, LanguageModel& from) {
             std::vector<nn::NamedParameter> all = nn::named_parameters(from);
             for (auto& b : nn::named_buffers(from, true)) all.push_back(b);
             nn::load(to, all);
           }},
          {"a file", [file](LanguageModel& to, LanguageModel&) { nn::load(to, file); }},
          {"copy_parameters",
           [](LanguageModel& to, LanguageModel& from) { nn::copy_parameters(to, from); }},
          {"copy_values", [](LanguageModel& to, LanguageModel& from) {
             const auto into = nn::parameters(to), source = nn::parameters(from);
             for (size_t i = 0; i < into.size(); ++i) nn::copy_values(into[i], source[i]);
           }}};
}

using Wrap = std::function<void(LanguageModel&, Mesh)>;

struct Pass {
  std::string name;
  Wrap wrap;
};

std::vector<Pass> passes() {
  const auto sharded = [](nn::Reshard reshard) -> Wrap {
    return [reshard](LanguageModel& m, Mesh mesh) {
      fully_shard(m, mesh, {{"dp"}, {}},
                  {.precision = {.param = DType::bf16}, .reshard_after_forward = reshard});
    };
  };
  return {{"shards", sharded(nn::Reshard::automatic)},
          {"shards that stay", sharded(nn::Reshard::never)},
          {"replicas",
           [](LanguageModel& m, Mesh mesh) {
             replicate(m, mesh, "dp", {.precision = {.param = DType::bf16}});
           }},
          {"one rank's casts", [](LanguageModel& m, Mesh) {
             nn::mixed_precision(m, m.units(), {.param = DType::bf16});
           }}};
}

double loss_of(const LanguageModel& model, Mesh mesh) {
  std::vector<double> ids;
  for (int i = 0; i < 4 * kLength; ++i)
    ids.push_back(static_cast<double>((i * i + 3 * i) % test::kSmallVocabulary));
  const Tensor tokens =
      distribute(from_values(ids, {4, kLength}, DType::i64), Layout::of(mesh, {Shard(0)}));
  const Loss loss = model.loss(tokens, tokens, model.metadata(kLength));
  if (loss.sum.requires_grad()) backward(loss.sum);
  return full_tensor(loss.sum).item();
}

// What a model that never had other parameters computes.
double fresh_loss(const ModelConfig& config, const Pass& pass, Mesh mesh) {
  const auto model = config.make();
  pass.wrap(*model, mesh);
  nn::initialize(*model, 2, nn::laid_out(*model, mesh));
  return loss_of(*model, mesh);
}

TEST(LoadedAfterForward, TheNextForwardComputesWithWhatWasLoaded) {
  const std::string file =
      testing::TempDir() + "loaded_after_forward." + std::to_string(::getpid()) + ".safetensors";
  for (const std::string family : {"llama3", "tied"}) {
    const ModelConfig config = test::small_decoder(family, 2);
    for (const int ranks : {1, 2}) {
      test::on_ranks(ranks, [&](World& world) {
        const Mesh mesh = Mesh::make({{"dp", ranks}});
        const auto other = config.make();
        nn::initialize(*other, 2);
        const std::string own = file + std::to_string(world.rank());
        nn::save(*other, own);
        for (const Pass& pass : passes()) {
          const double want = fresh_loss(config, pass, mesh);
          for (const Way& way : ways(own)) {
            const auto model = config.make();
            pass.wrap(*model, mesh);
            nn::initialize(*model, 1, nn::laid_out(*model, mesh));
            EXPECT_NE(loss_of(*model, mesh), want);  // with backward, as a step
            {
              const NoGrad guard;
              static_cast<void>(loss_of(*model, mesh));
            }
            if (pass.name.starts_with("shards")) nn::hold(*model);
            way.load(*model, *other);
            EXPECT_EQ(loss_of(*model, mesh), want)
                << pass.name << ", " << way.name << ", " << family << ", rank " << world.rank();
          }
        }
        std::filesystem::remove(own);
      });
    }
  }
}

}  // namespace
}  // namespace tessera::models
