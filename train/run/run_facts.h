// SPDX-License-Identifier: Apache-2.0
// The facts of a run besides its parts. Its ranks agree on them before any work; checkpoints keep
// them for runs that resume.
#pragma once

#include "tessera/train/chat/chat_encoder.h"
#include "tessera/train/config/config.h"
#include "tessera/train/data/fingerprint.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <functional>
#include <memory>
#include <string>

namespace tessera::train {

/// Gets lines for people.
using Print = std::function<void(const std::string&)>;

struct RunFacts {
  Config config;
  Device device = kCpu;       ///< of this rank
  DataFingerprint data = {};  ///< of the training data
  std::shared_ptr<const Tokenizer> tokenizer = {};
  std::shared_ptr<const ChatEncoder> chat = {};  ///< of a fine-tuning set; null for others
};

/// Chooses the rank's device, checks that the ranks agree on configuration, build and data, then
/// the configuration itself, and opens the tokenizer; sets the options of this rank that follow
/// from the configuration. `reads_data`: the rows are of dataloader. Collective. ConfigError: there
/// is no such device; every fault of the configuration. CollectiveMismatch on all ranks: what
/// differs, with values and ranks. Errors as of Config::open_tokenizer.
[[nodiscard]] TESSERA_API RunFacts agreed_facts(const Config& config, bool reads_data,
                                                const Print& print);

}  // namespace tessera::train
