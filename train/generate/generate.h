// SPDX-License-Identifier: Apache-2.0
// Text from a model, a token at a time, each drawn as SamplingOptions say. Keys and values of the
// tokens seen are cached. Prompts of equal length run as one batch, others one after another.
#pragma once

#include "tessera/models/model.h"
#include "tessera/train/generate/sampling.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct GenerateOptions {
  int64_t tokens = 200;    ///< at most; the end mark ends a text earlier
  double temperature = 0;  ///< this and the next two: as SamplingOptions
  int64_t top_k = 40;
  double top_p = 1;
  int64_t context = 256;  ///< tokens that the model sees, the last ones of what there is
  uint64_t seed = 0;      ///< draws are a function of (seed, number of the prompt, token) alone

  [[nodiscard]] SamplingOptions sampling() const { return {temperature, top_k, top_p}; }
};
/// ValueError: tokens below 0, context below 1, or sampling options out of their range.
TESSERA_API void check(const GenerateOptions& options);

/// Called with the bytes of each token of prompt `row` as soon as it is drawn.
using OnToken = std::function<void(size_t row, std::string_view bytes)>;

/// What follows each prompt, as bytes. A distributed model must be replicated: any rank may call
/// this alone; it is in eval mode meanwhile. Bad options are found before anything is computed.
TESSERA_API std::vector<std::string> generate(models::LanguageModel& model,
                                              std::span<const std::string> prompts,
                                              const GenerateOptions& options,
                                              const OnToken& on_token = {});
TESSERA_API std::string generate(models::LanguageModel& model, std::string_view prompt,
                                 const GenerateOptions& options);

/// Makes bytes that arrive in pieces fit for a terminal, as printable() does, without ever giving
/// a part of a UTF-8 character.
class TESSERA_API Utf8Stream {
 public:
  /// What can be shown after these bytes have come too.
  [[nodiscard]] std::string push(std::string_view bytes);
  /// What is left: the start of a character that never came to its end.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;
};

}  // namespace tessera::train
