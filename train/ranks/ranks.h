// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run tell each other outside of tensors: texts, and errors that all of them
// end with. The ranks are those of the current World; without one the caller is alone, so that a
// program without ranks may call what is made of these. All functions are collective.
#pragma once

#include "tessera/core/api.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::train {

/// This rank, and how many there are: 0 and 1 without a World. Not collective.
[[nodiscard]] TESSERA_API int own_rank();
[[nodiscard]] TESSERA_API int rank_count();

/// The text of each rank.
[[nodiscard]] TESSERA_API std::vector<std::string> texts_of_ranks(const std::string& own);
/// The different texts among the ranks, in the order of the first ranks that have them.
[[nodiscard]] TESSERA_API std::vector<std::string> different_texts(const std::string& own);
/// The text of rank 0.
[[nodiscard]] TESSERA_API std::string text_of_first(const std::string& own);

/// Waits until all ranks are here, each about to throw the same error: no rank then sees only that
/// another one failed.
TESSERA_API void meet_before_failing();

/// Runs `work`, which has no collectives, on every rank. If it throws on any of them, the error of
/// the lowest such rank is thrown on all, with its type and its rank.
TESSERA_API void on_all_or_none(const std::function<void()>& work);

/// Sets the deadline of this rank's collectives while a Patience lives; an hour unless it is set.
TESSERA_API void set_storage_timeout(std::chrono::milliseconds timeout);

/// During its lifetime ranks wait for each other's disks, which may take longer than any step: the
/// deadline of collectives is that of set_storage_timeout. Not collective.
class TESSERA_API Patience {
 public:
  Patience();
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  int64_t before_ms_ = 0;
};

/// At most so many of these, separated by semicolons, and how many more there are. Not collective.
[[nodiscard]] TESSERA_API std::string first_few(const std::vector<std::string>& texts,
                                                size_t most = 12);

}  // namespace tessera::train
