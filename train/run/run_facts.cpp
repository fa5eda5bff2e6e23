// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/run_facts.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/dist/world.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/exchange/weights.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/rank_check.h"

#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

namespace tessera::train {
namespace {

void set_options(const Config& config) {
  Context& context = Context::current();
  context.options.anomaly = config.debug.detect_anomaly;
  context.call_keys.set_seed(static_cast<uint64_t>(config.debug.seed));
  set_storage_timeout(std::chrono::seconds(config.comm.storage_timeout_seconds));
}

DataFingerprint add_training_data(RankFacts& facts, const DataConfig& data, bool reads_rows) {
  DataFingerprint all;
  const std::vector<MixturePart> parts = data.parts();
  for (size_t i = 0; i < parts.size() && reads_rows; ++i) {
    for (DataFile& file : facts.add_data(parts[i].path, parts[i].field)) {
      // Files of two data sets may have the same name.
      if (parts.size() > 1) file.name = concat("mixture[", i, "]/", file.name);
      all.push_back(std::move(file));
    }
  }
  if (const auto chat = chat_template_file(data.chat_template); !chat.empty()) {
    for (DataFile& file : facts.add_data(chat, "dataloader.chat_template")) {
      file.name = "chat_template/" + file.name;
      all.push_back(std::move(file));
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> own_steps(const Config& config) {
  if (!config.checkpoint.enable || config.overwrite) return {};
  const auto folder = std::filesystem::path(config.dump_folder) / config.checkpoint.folder;
  return CheckpointFolder(folder.string()).latest_first();
}

std::shared_ptr<const Tokenizer> open_tokenizer(const Config& config) {
  const std::string path = config.tokenizer_path();
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!config.initial_hf.empty() && path == config.initial_hf &&
      !has_hf_config(config.initial_hf)) {
    (void)first_whole(
        {own_steps(config)}, [](const std::string&) {},
        [&](const CheckpointReader& from) { tokenizer = from.tokenizer(); });
  }
  const auto open = [&] {
    if (!tokenizer) tokenizer = train::open_tokenizer(path, "hf_assets_path");
    if (path.empty() || tokenizer->vocabulary() <= config.model.vocab_size()) return;
    fail<ConfigError>("--model.vocab_size", config.model.vocab_size(), " is below the ",
                      counted(tokenizer->vocabulary(), "token"), " of --hf_assets_path ",
                      io::excerpt(path), "; give at least as many");
  };
  // An import names its own folder.
  const bool of_the_model =
      !path.empty() && path != kByteTokenizer &&
      (path == config.initial_hf_folder() || path == config.checkpoint.initial_load_path);
  try {
    open();
  } catch (const Error& error) {
    if (!of_the_model) throw;
    return std::make_shared<NoTokenizer>(
        concat("the model has no tokenizer that can be used: ", error.what(),
               "; give the tokenizer that the model was trained with as --hf_assets_path, or "
               "--hf_assets_path ",
               kByteTokenizer, " if its tokens are bytes"));
  }
  return tokenizer;
}

RunFacts agreed_facts(const Config& config, bool reads_data, const Print& print) {
  World& world = World::current();
  RunFacts run{.config = config,
               .device = rank_device(config.device, world.local_rank(), world.local_ranks())};
  world.group().recorder().set_entries(static_cast<size_t>(config.comm.trace_buf_size));
  RankFacts facts;
  facts.add("command", "train");
  facts.add_fields(run.config.fields());
  facts.add_device(run.device);
  run.data = add_training_data(facts, config.dataloader, reads_data);
  if (config.validation.enable)
    (void)facts.add_data(config.validation.dataset_path, "validation.dataset_path");
  facts.add_tokenizer(config.tokenizer_path(), "hf_assets_path");
  require_equal_ranks("train", facts);
  compare_kernels("train", run.device,
                  config.debug.deterministic && !config.debug.deterministic_warn_only, print);
  config::throw_if_any(faults(config, world.size()));
  set_options(config);
  run.tokenizer = open_tokenizer(config);
  if (config.dataloader.format != "text") {
    run.chat =
        std::make_shared<const ChatEncoder>(chat_encoder_of(config.dataloader, *run.tokenizer));
  }
  return run;
}

}  // namespace tessera::train
