// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/run_facts.h"

#include "tessera/core/context.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/dist/world.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/run/rank_check.h"

#include <chrono>
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
  config::throw_if_any(config.faults_on(world.size()));
  set_options(config);
  run.tokenizer = config.open_tokenizer();
  if (config.dataloader.format != "text") {
    run.chat =
        std::make_shared<const ChatEncoder>(chat_encoder_of(config.dataloader, *run.tokenizer));
  }
  return run;
}

}  // namespace tessera::train
