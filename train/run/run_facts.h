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
#include <vector>

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

/// The folders of the run's own checkpoints, the latest first; none if it does not resume.
[[nodiscard]] TESSERA_API std::vector<std::string> own_steps(const Config& config);
/// The tokenizer at Config::tokenizer_path, or that of the run's own checkpoint if it was that of
/// `initial_hf`, which is no longer there. NoTokenizer: it is to be that of the folder of the
/// model, which has none that can be used. DataError, IoError: as train::open_tokenizer of a path.
/// ConfigError: it has more tokens than the model.
[[nodiscard]] TESSERA_API std::shared_ptr<const Tokenizer> open_tokenizer(const Config& config);

/// Chooses the rank's device, checks that the ranks agree on configuration, build and data, then
/// the configuration itself, and opens the tokenizer; sets the options of this rank that follow
/// from the configuration. `reads_data`: the rows are of dataloader. Collective. ConfigError: there
/// is no such device; every fault of the configuration. CollectiveMismatch on all ranks: what
/// differs, with values and ranks. Errors as of open_tokenizer.
[[nodiscard]] TESSERA_API RunFacts agreed_facts(const Config& config, bool reads_data,
                                                const Print& print);

}  // namespace tessera::train
