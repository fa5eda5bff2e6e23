// SPDX-License-Identifier: Apache-2.0
// Checks that the ranks of a run agree: before any work on configuration, build and data, then on
// the bits of replicated tensors. Ranks exchange a digest first, and texts only if digests differ.
// The first collective of a run, so that ranks that differ in any way reach it.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/data/fingerprint.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// A property of a run that is equal on all its ranks.
struct RankFact {
  std::string name, value;  ///< "optimizer.lr", "0.001"
};

class TESSERA_API RankFacts {
 public:
  /// Starts with the build of this library and the program: version, compiler, build id.
  RankFacts();
  void add(std::string name, std::string value) {
    facts_.push_back({std::move(name), std::move(value)});
  }
  /// Every field that may not differ by rank; `prefix` goes before its path.
  void add_fields(const config::Fields& fields, std::string_view prefix = "");
  /// The kind alone: each rank has a device of its own.
  void add_device(Device device);
  /// The files of the data set that `field` names, which are returned; an error of reading them is
  /// a fact too, and thrown by no one here.
  DataFingerprint add_data(const std::string& path, const std::string& field);
  /// The same for the files of a tokenizer; none if `path` is empty.
  void add_tokenizer(const std::string& path, const std::string& field);
  /// Of a tokenizer that is open already.
  void add_tokenizer(std::span<const TokenizerFile> files, const std::string& field);
  [[nodiscard]] const std::vector<RankFact>& all() const { return facts_; }

 private:
  std::vector<RankFact> facts_;
};

/// Facts that differ between the ranks of the World, with each value and its ranks:
/// `optimizer.lr is 0.001 on ranks 0, 2, 3 and 0.05 on rank 1`. Collective; equal on all ranks.
[[nodiscard]] TESSERA_API std::vector<std::string> rank_differences(
    const std::vector<RankFact>& facts);
/// CollectiveMismatch on all ranks, which lists what differs; `where` begins its message.
TESSERA_API void require_equal_ranks(std::string_view where, const RankFacts& facts);

/// What computes matmuls and attention on `device`, which decides bits: product_route(), or the
/// GPU's name and cuDNN's version.
[[nodiscard]] TESSERA_API std::string products_on(Device device);
/// Compares it over the ranks. Where they differ, that is a warning, or an error as
/// require_equal_ranks if `strict`.
TESSERA_API void compare_kernels(std::string_view where, Device device, bool strict,
                                 const std::function<void(const std::string&)>& warn);

/// Compares the bits of the ranks that hold the same elements of each tensor: all ranks for a plain
/// or replicated tensor, those with the same shard for a sharded one; partial ones are not
/// compared, nor undefined ones, which
/// other ranks of a pipeline have. Names and order are equal on all ranks. Collective.
/// CollectiveMismatch on all ranks names `when` ("after step 3"), the tensors and the ranks.
TESSERA_API void check_replicas(std::string_view where,
                                const std::vector<nn::NamedParameter>& tensors,
                                std::string_view when);

/// `rank 1`, `ranks 0, 2, 3`, `ranks 0 to 6, 9`; ascending.
[[nodiscard]] TESSERA_API std::string ranks_text(const std::vector<int>& ranks);

}  // namespace tessera::train
